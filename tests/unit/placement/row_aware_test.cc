// SPDX-License-Identifier: Apache-2.0
#include "placement/row_aware.h"

#include <gtest/gtest.h>

#include "exec/executor.h"
#include "placement/slots.h"
#include "routepack/error.h"
#include "support/refusal.h"

namespace routepack {
namespace {

/// One layer, one shard, capacity 1, no dense side: the score is Σ over rows of the busiest rank.
/// `loads[e][r]` is the load of expert e in row r.
RowLoads rows_of(const std::vector<std::vector<std::int32_t>>& loads, std::int32_t ranks) {
  RowLoads rows;
  rows.rows = static_cast<std::int32_t>(loads[0].size());
  rows.shards = 1;
  rows.layers = 1;
  rows.experts = static_cast<std::int32_t>(loads.size());
  rows.ranks = ranks;
  std::vector<std::int32_t> flat;
  for (const auto& expert : loads) flat.insert(flat.end(), expert.begin(), expert.end());
  rows.loads = flat;
  rows.dense.assign(loads[0].size(), 0.0);
  rows.weights = {1.0};
  return rows;
}

struct Refined {
  RowAwareResult result;
  std::int64_t moved;
};
Refined refine(const RowLoads& rows, const MoveBudget& budget = {}, std::int64_t bytes = 0) {
  const Placement home = Placement::identity(rows.layers, rows.experts, rows.ranks);
  MoveLedger ledger(home, budget, bytes);
  SerialExecutor executor;
  RowAwareResult result = refine_placement(rows, home, ledger, {}, executor);
  return {std::move(result), ledger.moved()};
}

// Both ranks carry 10 over the window, but rank 0 carries 8 of it in row 0 and rank 1 in row 1: peaks 8 + 8. With
// experts 0 and 2 exchanged every rank carries 5 in every row.
const std::vector<std::vector<std::int32_t>> kOpposed = {{5, 1}, {3, 1}, {0, 4}, {2, 4}};

TEST(RefinePlacement, balances_rows_that_are_opposed_where_totals_see_nothing) {
  const Refined refined = refine(rows_of(kOpposed, 2));
  EXPECT_EQ(refined.result.before.max_shard, 16.0);
  EXPECT_EQ(refined.result.after.max_shard, 10.0);
  EXPECT_EQ(refined.moved, 2);
  EXPECT_EQ(refined.result.swaps, 1);
  EXPECT_TRUE(refined.result.converged);
  EXPECT_TRUE(refined.result.complete);
}

// The swap gains 6 for two experts.
TEST(RefinePlacement, does_not_pay_more_than_it_gains) {
  for (const auto& [price, after] : {std::pair{"price:2.9", 10.0}, std::pair{"price:3", 16.0}}) {
    MoveBudget budget;
    budget.add(price);
    EXPECT_EQ(refine(rows_of(kOpposed, 2), budget).result.after.max_shard, after) << price;
  }
}

TEST(RefinePlacement, moves_nothing_over_the_budget) {
  for (const std::string limit : {"0.25", "0", "9B"}) {
    MoveBudget budget;
    budget.add(limit);
    EXPECT_EQ(refine(rows_of(kOpposed, 2), budget, 10).moved, 0) << limit;
  }
  MoveBudget budget;
  budget.add("10B");
  EXPECT_EQ(refine(rows_of(kOpposed, 2), budget, 10).moved, 2);
}

// Layer 1 is layer 0 ten times over: with one swap allowed, it gets it, 16 + 160 → 16 + 100.
TEST(RefinePlacement, gives_the_moves_to_the_swap_that_gains_most) {
  RowLoads rows = rows_of(kOpposed, 2);
  rows.layers = 2;
  rows.weights = {1.0, 1.0};
  auto loads = std::get<std::vector<std::int32_t>>(rows.loads);
  for (const std::int32_t load : {50, 10, 30, 10, 0, 40, 20, 40}) loads.push_back(load);
  rows.loads = loads;
  MoveBudget budget;
  budget.add("0.25");
  const Refined refined = refine(rows, budget);
  EXPECT_EQ(refined.moved, 2);
  EXPECT_EQ(refined.result.after.max_shard, 16.0 + 100.0);
}

// Row 0 is 12 | 0, row 1 is 10 | 16. Every swap makes row 0 6 | 6 but brings some rank to 18 in row 1.
TEST(RefinePlacement, keeps_the_limit_on_a_rank) {
  RowLoads rows = rows_of({{6, 0}, {6, 10}, {0, 8}, {0, 8}}, 2);
  rows.max_rank_tokens = 17;
  EXPECT_EQ(refine(rows).moved, 0);
  rows.max_rank_tokens = 18;
  EXPECT_EQ(refine(rows).result.after.max_shard, 24.0);
}

// Two shards: the slower one decides. Row-shards are (row 0, shard 0) and (row 0, shard 1).
TEST(RefinePlacement, lowers_the_slowest_shard_first) {
  RowLoads rows = rows_of({{10, 2}, {6, 2}, {0, 1}, {0, 3}}, 2);
  rows.rows = 1;
  rows.shards = 2;
  const Refined refined = refine(rows);
  EXPECT_EQ(refined.result.before.max_shard, 16.0);
  EXPECT_EQ(refined.result.after.max_shard, 10.0);
  EXPECT_EQ(refined.result.after.total, 15.0);
}

// Padding: rate 1 on expert 0 only (65536/65536), ten padding tokens in row 0.
TEST(RefinePlacement, moves_the_padding_of_an_expert_with_it) {
  RowLoads rows = rows_of({{0}, {6}, {0}, {0}}, 2);
  rows.pads = {10};
  rows.pad_counts = {65536, 0, 0, 0};
  const Refined refined = refine(rows);
  EXPECT_EQ(refined.result.before.max_shard, 16.0);
  EXPECT_EQ(refined.result.after.max_shard, 10.0);
}

TEST(RefinePlacement, leaves_layers_without_weight_alone) {
  RowLoads rows = rows_of(kOpposed, 2);
  rows.weights = {0.0};
  EXPECT_EQ(refine(rows).moved, 0);
}

TEST(RefinePlacement, of_one_rank_does_nothing) {
  EXPECT_EQ(refine(rows_of(kOpposed, 1)).moved, 0);
}

TEST(RefinePlacement, ends_when_its_steps_are_spent) {
  const RowLoads rows = rows_of(kOpposed, 2);
  const Placement home = Placement::identity(1, 4, 2);
  MoveLedger ledger(home, {});
  SerialExecutor executor;
  const RowAwareResult result = refine_placement(rows, home, ledger, {.most_steps = 0}, executor);
  EXPECT_FALSE(result.converged);
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.placement, home);
}

TEST(RefinePlacement, refuses_a_placement_of_another_shape) {
  const RowLoads rows = rows_of(kOpposed, 2);
  const Placement other = Placement::identity(1, 4, 4);
  MoveLedger ledger(other, {});
  SerialExecutor executor;
  EXPECT_EQ(testing::refusal<InvalidInput>([&] { refine_placement(rows, other, ledger, {}, executor); }),
            "placement: found 1 layers of 4 experts on 4 ranks, wanted 1 of 4 on 2");
}

}  // namespace
}  // namespace routepack
