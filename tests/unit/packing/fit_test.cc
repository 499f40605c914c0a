// SPDX-License-Identifier: Apache-2.0
// How many rows a window gets: never more than needed where that can be known, and every rule kept on the way.
#include "packing/fit.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "packing/heuristics.h"
#include "packing/items.h"
#include "packing/row_bound.h"
#include "support/bin_packing_families.h"
#include "support/problems.h"
#include "support/property.h"

namespace routepack::testing {
namespace {

/// A window of one expert whose samples have the given lengths.
Problem problem_of(std::vector<std::int32_t> lengths, std::int32_t slots, std::int64_t capacity) {
  Problem problem;
  problem.spec.samples = static_cast<std::int64_t>(lengths.size());
  problem.spec.layers = 1;
  problem.spec.experts = 1;
  problem.spec.counts.assign(lengths.begin(), lengths.end());
  problem.spec.lengths = std::move(lengths);
  problem.shards.emplace_back();
  for (std::int32_t d = 0; d < slots; ++d) problem.shards[0].push_back(d);
  problem.stages = {{"dense", 1.0, 1.0}};
  problem.expert = {1.0};
  problem.capacity = capacity;
  return problem;
}

struct Rows {
  explicit Rows(const Problem& problem) : scene(problem) {
    auto made = make_items(scene.instance);
    if (const auto* why = std::get_if<Infeasible>(&made)) {
      refusal = why->reason;
      return;
    }
    items = std::get<Items>(std::move(made));
    at_first = row_bound(scene.instance, items, {});
    auto outcome = fewest_rows(scene.instance, items, at_first);
    if (const auto* why = std::get_if<Infeasible>(&outcome)) {
      refusal = why->reason;
    } else {
      fitted = std::get<FittedCells>(std::move(outcome));
    }
  }
  Scene scene;
  Items items;
  RowBound at_first;
  FittedCells fitted;
  std::string refusal;
};

/// Puts the cells into rows (the slots given, or in order) and asks the rules written in the test support.
bool keeps_every_rule(const Problem& problem, const Rows& rows) {
  const auto slots = static_cast<std::size_t>(problem.slots());
  Cells cells(static_cast<std::size_t>(rows.fitted.rows), std::vector<std::vector<std::int32_t>>(slots));
  std::vector<std::size_t> next(slots, 0);
  for (std::size_t c = 0; c < rows.fitted.cells.size(); ++c) {
    const Cell& cell = rows.fitted.cells[c];
    const std::size_t d = cell.slot ? static_cast<std::size_t>(*cell.slot) : c % slots;
    if (next[d] >= cells.size()) return false;
    auto& samples = cells[next[d]++][d];
    for (const std::size_t index : cell.items) {
      for (const SampleId i : rows.items.samples_of(rows.items.items[index])) samples.push_back(i.value());
    }
  }
  return feasible_without_routes(problem, cells, static_cast<std::int32_t>(rows.items.dummies));
}

void add_rules(Problem& problem, std::mt19937_64& random) {
  const auto one_in = [&](std::int32_t n) { return below(random, n) == 0; };
  Constraints& rules = problem.constraints;
  if (one_in(5)) rules.min_rows = 1 + below(random, 3);
  if (one_in(5)) rules.row_multiple = 1 + below(random, 3);
  if (one_in(3)) rules.max_samples_per_cell = 1 + below(random, 4);
  if (one_in(2)) {
    rules.equal_count = true;
    rules.add_dummies = !one_in(3);
  }
  if (one_in(5)) problem.pipeline_stages = 1 + below(random, 2);
  if (one_in(2)) {
    for (std::int32_t i = 0; i < problem.samples(); ++i) {
      problem.spec.atomic.push_back(std::max(below(random, 5) - 2, -1));
    }
  }
  rules.oversized = one_in(2) ? Oversized::OwnCell : Oversized::Error;
  problem.capacity = std::max<std::int64_t>(rules.cell_multiple, problem.capacity * (2 + below(random, 8)) / 9);
}

std::optional<std::int32_t> fewest_by_force(const Problem& problem) {
  const std::int32_t dummies = dummies_wanted(problem);
  for (std::int32_t rows = 1; rows <= (problem.samples() + dummies) / problem.slots(); ++rows) {
    if (!for_each_layout(problem, rows, dummies, [](const Cells&) { return false; })) return rows;
  }
  return std::nullopt;
}

TEST(FewestRows, of_a_tiny_window_are_what_trying_everything_gives_and_are_certified) {
  int found = 0;
  int refused = 0;
  for_all(6000, [&] {
    Problem problem = draw_problem(Shape{.max_samples = 6, .max_layers = 1, .max_slots = 3, .max_ranks = 1});
    std::mt19937_64 random(draw_seed());
    add_rules(problem, random);
    const Rows rows(problem);
    const auto fewest = fewest_by_force(problem);
    if (!rows.refusal.empty()) {
      if (fewest) RC_FAIL("a layout of " + std::to_string(*fewest) + " rows exists; refused with: " + rows.refusal);
      ++refused;
      return;
    }
    RC_ASSERT(fewest.has_value());
    RC_ASSERT(rows.fitted.rows == *fewest);
    RC_ASSERT(rows.fitted.bound.rows == *fewest);
    RC_ASSERT(keeps_every_rule(problem, rows));
    ++found;
  });
  EXPECT_GT(found, 1000);
  EXPECT_GT(refused, 300);
}

TEST(FewestRows, keep_every_rule_on_windows_of_any_size) {
  int found = 0;
  for_all(300, [&] {
    Problem problem = draw_problem(Shape{.min_samples = 10, .max_samples = 120, .max_layers = 1, .max_slots = 6});
    std::mt19937_64 random(draw_seed());
    add_rules(problem, random);
    const Rows rows(problem);
    if (!rows.refusal.empty()) return;
    RC_ASSERT(keeps_every_rule(problem, rows));
    RC_ASSERT(rows.fitted.bound.rows <= rows.fitted.rows);
    ++found;
  });
  EXPECT_GT(found, 50);
}

TEST(FewestRows, of_random_windows_are_certified) {
  int certified = 0;
  for (std::uint64_t seed = 1000; seed < 1040; ++seed) {
    const DrawnWindow window = draw_window_lengths(seed);
    const Problem problem = problem_of(window.lengths, window.slots, window.capacity);
    const Rows rows(problem);
    ASSERT_EQ(rows.refusal, "");
    ASSERT_TRUE(keeps_every_rule(problem, rows));
    certified += rows.fitted.rows == rows.fitted.bound.rows ? 1 : 0;
  }
  EXPECT_GE(certified, 38);
}

TEST(FewestRows, come_from_a_search_where_simple_fits_need_more) {
  // Three full cells: 8 + 5, 7 + 4 + 2, 5 + 4 + 2 + 2. First fit and best fit put the 2s elsewhere.
  const std::vector<std::int32_t> lengths = {8, 7, 5, 5, 4, 4, 2, 2, 2};
  const BinProblem bins = bins_of(lengths, 13);
  Work work(1'000'000);
  ASSERT_EQ(first_fit_bins(bins).size(), 4u);
  ASSERT_FALSE(best_fit(bins, 3).has_value());
  ASSERT_FALSE(level_bins(bins, 3, work).has_value());
  const Problem problem = problem_of(lengths, 1, 13);
  const Rows rows(problem);
  EXPECT_EQ(rows.fitted.rows, 3);
  EXPECT_EQ(rows.fitted.bound.rows, 3);
  EXPECT_TRUE(keeps_every_rule(problem, rows));
}

TEST(FewestRows, say_so_when_a_search_raised_the_bound) {
  // 38 tokens in three cells of 13 waste one; but each 7 with a 4, the best it can do, already wastes two.
  const Problem problem = problem_of({8, 7, 7, 5, 4, 4, 3}, 1, 13);
  const Rows rows(problem);
  EXPECT_EQ(rows.fitted.rows, 4);
  EXPECT_EQ(rows.fitted.bound.rows, 4);
  EXPECT_EQ(rows.at_first.rows, 3);
  EXPECT_EQ(rows.fitted.bound.because, "an exhaustive search found no way into 3 rows");
}

TEST(FewestRows, spread_every_length_class_when_that_works) {
  const Problem problem = problem_of({8, 8, 1, 1}, 2, 16);
  const Rows rows(problem);
  ASSERT_EQ(rows.fitted.rows, 1);
  EXPECT_EQ(rows.fitted.cells[0].totals.tokens, 9);
  EXPECT_EQ(rows.fitted.cells[1].totals.tokens, 9);
}

TEST(FewestRows, with_equal_counts_find_groups_that_add_up) {
  // Groups of 3, 3, 2, 2, 2 samples on two slots: only 3 + 3 and 2 + 2 + 2 are equal.
  Problem problem = problem_of(std::vector<std::int32_t>(12, 1), 2, 12);
  problem.spec.atomic = {0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 4};
  problem.constraints.equal_count = true;
  const Rows rows(problem);
  ASSERT_EQ(rows.refusal, "");
  EXPECT_EQ(rows.fitted.rows, 1);
  EXPECT_TRUE(keeps_every_rule(problem, rows));
}

TEST(FewestRows, are_the_same_every_time) {
  const BinProblem bins = triplet_class(3, 120);
  std::vector<std::int32_t> lengths;
  for (const auto& unit : bins.units) lengths.push_back(static_cast<std::int32_t>(unit.size));
  const Problem problem = problem_of(lengths, 1, 1000);
  const Rows first(problem);
  const Rows again(problem);
  ASSERT_EQ(first.fitted.cells.size(), again.fitted.cells.size());
  for (std::size_t c = 0; c < first.fitted.cells.size(); ++c) {
    EXPECT_EQ(first.fitted.cells[c].items, again.fitted.cells[c].items);
  }
}

}  // namespace
}  // namespace routepack::testing
