// SPDX-License-Identifier: Apache-2.0
// Prices kept while rows fill up are those of the reference scorer, to the last bit.
#include "packing/row_table.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "packing/fill_rows.h"
#include "routepack/score.h"
#include "support/packing.h"
#include "support/property.h"

namespace routepack::testing {
namespace {

RowTable table_of(const Prepared& prepared, std::span<const Cell> cells) {
  return {prepared.scene.instance, *prepared.loads, prepared.pad_rates, prepared.fitted.rows, cells};
}

/// Four samples of 8, 6, 4 and 2 tokens, one per cell, two rows of two slots in one shard; one expert.
Prepared four_cells() {
  Problem problem = problem_of_lengths({8, 6, 4, 2}, {{0, 1}}, 8);
  problem.constraints.min_rows = 2;
  problem.constraints.max_samples_per_cell = 1;
  return Prepared(problem);
}

TEST(RowTable, prices_a_row_as_the_formula_says) {
  const Prepared prepared = four_cells();
  RowTable table = table_of(prepared, prepared.fitted.cells);
  ASSERT_EQ(table.size(), 2U);
  const auto cell_of_tokens = [&](std::int64_t tokens) {
    const auto at =
        std::ranges::find_if(prepared.fitted.cells, [&](const Cell& cell) { return cell.totals.tokens == tokens; });
    return static_cast<std::size_t>(at - prepared.fitted.cells.begin());
  };
  // alpha = beta = 1: 8 tokens cost 1 + 1, 4 tokens 1/2 + 1/4; the expert rank sees 8, then 12 of C = 8.
  const auto alone = table.price_with(1, cell_of_tokens(8));
  EXPECT_EQ(alone.joint, 2.0 + 1.0);
  EXPECT_EQ(alone.peaks, 8.0);
  EXPECT_EQ(alone.peak, 8);
  table.join(1, cell_of_tokens(8), alone);
  const auto both = table.price_with(1, cell_of_tokens(4));
  EXPECT_EQ(both.joint, 2.0 + 1.5);
  EXPECT_EQ(table.price(1).joint, 3.0);
  EXPECT_EQ(table.price(0).joint, 0.0);
  EXPECT_EQ(table.price_with(0, cell_of_tokens(4)).joint, 0.75 + 0.5);
}

TEST(RowTable, has_room_until_the_slots_of_a_shard_are_taken) {
  const Prepared prepared = four_cells();
  RowTable table = table_of(prepared, prepared.fitted.cells);
  for (const std::size_t c : {0U, 1U}) {
    EXPECT_TRUE(table.has_room(0, c));
    table.join(0, c, table.price_with(0, c));
  }
  EXPECT_FALSE(table.has_room(0, 2));
  EXPECT_TRUE(table.has_room(1, 2));
  EXPECT_EQ(table.cell_at(0, SlotId(1)), 1U);
  EXPECT_EQ(table.cell_at(1, SlotId(0)), RowTable::kNone);
  table.clear();
  EXPECT_TRUE(table.has_room(0, 2));
  EXPECT_EQ(table.price(0).joint, 0.0);
  EXPECT_EQ(table.peak(), 0);
}

TEST(RowTable, keeps_a_cell_that_is_bound_to_a_slot_there) {
  const Prepared prepared = four_cells();
  std::vector<Cell> cells = prepared.fitted.cells;
  for (Cell& cell : cells) cell.slot = SlotId(1);
  RowTable table = table_of(prepared, cells);
  table.join(0, 3, table.price_with(0, 3));
  EXPECT_EQ(table.cell_at(0, SlotId(1)), 3U);
  EXPECT_EQ(table.cell_at(0, SlotId(0)), RowTable::kNone);
  EXPECT_FALSE(table.has_room(0, 2));
  EXPECT_TRUE(table.has_room(1, 2));
}

TEST(RowTable, counts_loads_beyond_32_bits) {
  // 24 cells of 90 million routed tokens meet on one rank.
  constexpr std::int32_t kSlots = 24;
  constexpr std::int32_t kTokens = 90'000'000;
  std::vector<std::vector<std::int32_t>> shards(1);
  for (std::int32_t d = 0; d < kSlots; ++d) shards[0].push_back(d);
  const Prepared prepared(problem_of_lengths(std::vector<std::int32_t>(kSlots, kTokens), shards, kTokens));
  const auto filled = fill_rows(prepared.scene.instance, *prepared.loads, prepared.pad_rates, prepared.fitted);
  ASSERT_TRUE(filled.has_value());
  RowTable table = table_of(prepared, filled->cells);
  for (std::size_t c = 0; c < kSlots; ++c) table.join(0, c, table.price_with(0, c));
  EXPECT_EQ(table.peak(), std::int64_t{kSlots} * kTokens);
  const Layout layout = to_layout(prepared.scene.instance, prepared.items, *filled);
  EXPECT_EQ(table.score(), evaluate(prepared.scene.instance, prepared.placement, layout).score);
}

TEST(RowTable, knows_the_scorers_joint_costs_score_and_peaks_of_any_full_table) {
  int full = 0;
  for_all(600, [&] {
    const Problem problem = draw_problem(Shape{.max_samples = 30, .max_slots = 6});
    std::mt19937_64 random(draw_seed());
    const Prepared prepared(problem, random_maps(random, problem.spec.layers, problem.spec.experts));
    if (!prepared.refusal.empty()) return;
    std::vector<Cell> cells = prepared.fitted.cells;
    std::shuffle(cells.begin(), cells.end(), random);
    RowTable table = table_of(prepared, cells);
    for (std::size_t c = 0; c < cells.size(); ++c) {
      std::size_t at = 0;
      do {
        at = static_cast<std::size_t>(below(random, static_cast<std::int32_t>(table.size())));
      } while (!table.has_room(at, c));
      table.join(at, c, table.price_with(at, c));
    }
    const Instance& instance = prepared.scene.instance;
    const Layout layout = to_layout(instance, prepared.items, table.arrangement());
    const Evaluation evaluation = evaluate(instance, prepared.placement, layout);
    RC_ASSERT(table.joint() == evaluation.joint);
    RC_ASSERT(table.score() == evaluation.score);
    RC_ASSERT(table.peak() == evaluation.tail_peak);
    std::int64_t peak = 0;
    std::vector<std::int64_t> peaks(static_cast<std::size_t>(problem.spec.layers));
    for (std::size_t at = 0; at < table.size(); ++at) {
      table.layer_peaks(at, peaks);
      peak = std::max(peak, std::ranges::max(peaks));
    }
    RC_ASSERT(peak == evaluation.tail_peak);

    // Row-shards that change places take their prices along.
    settle_shards(instance, table);
    const Layout settled = to_layout(instance, prepared.items, table.arrangement());
    RC_ASSERT(table.joint() == evaluate(instance, prepared.placement, settled).joint);
    ++full;
  });
  EXPECT_GT(full, 300);
}

TEST(RowBands, hold_as_many_cells_as_their_row_shards_heaviest_cells_first) {
  std::vector<std::int32_t> lengths(140);
  std::iota(lengths.begin(), lengths.end(), 1);
  Problem problem = problem_of_lengths(lengths, {{0}, {1}}, 200);
  problem.constraints.max_samples_per_cell = 1;
  const Prepared prepared(problem);
  ASSERT_EQ(prepared.fitted.rows, 70);
  const auto bands = row_bands(prepared.scene.instance, 70, prepared.fitted.cells);
  // 32 rows of two shards at a time.
  ASSERT_EQ(bands.size(), 3U);
  std::int64_t lightest_before = 1000;
  std::set<std::size_t> seen;
  for (const Band& band : bands) {
    EXPECT_EQ(band.cells.size(), band.last - band.first);
    for (const std::size_t c : band.cells) {
      EXPECT_LE(prepared.fitted.cells[c].totals.tokens, lightest_before);
      lightest_before = prepared.fitted.cells[c].totals.tokens;
      seen.insert(c);
    }
  }
  EXPECT_EQ(seen.size(), 140U);
  EXPECT_EQ(bands[2].last, 140U);
}

TEST(PipelineOrder, puts_light_rows_at_both_ends) {
  // Rows weigh as much as their heavier shard: 5, 1, 3, 4, 2.
  const std::vector<double> joint = {5, 0, 0, 1, 3, 3, 4, 1, 2, 0};
  EXPECT_EQ(pipeline_order(joint, 5), (std::vector<std::size_t>{1, 2, 0, 3, 4}));
}

}  // namespace
}  // namespace routepack::testing
