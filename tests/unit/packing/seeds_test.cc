// SPDX-License-Identifier: Apache-2.0
// The operators that make seeds, on problems small enough to follow by hand.
#include "packing/seeding/seeds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "packing/seeding/construct.h"
#include "packing/seeding/draws.h"
#include "packing/seeding/pair.h"
#include "packing/seeding/units.h"
#include "support/packing.h"

namespace routepack::testing {
namespace {

using Lengths = std::vector<std::int64_t>;

/// The lengths in each cell. Items are in falling order, so they come as they were put in.
std::vector<Lengths> lengths_of(const Prepared& prepared, std::span<const Cell> cells) {
  std::vector<Lengths> lengths;
  for (const Cell& cell : cells) {
    auto& own = lengths.emplace_back();
    for (const std::size_t index : cell.items) own.push_back(prepared.items.items[index].totals.tokens);
  }
  return lengths;
}

/// One slot; how many cells a test fills is up to the test.
struct Bench {
  explicit Bench(const Problem& problem) : prepared(problem), units(make_units(prepared.items, prepared.fitted)) {}
  Bench(std::vector<std::int32_t> lengths, std::int64_t capacity)
      : Bench(problem_of_lengths(std::move(lengths), {{0}}, capacity)) {}

  [[nodiscard]] Compartment into(std::int64_t cells) const {
    Compartment compartment{.slot = std::nullopt, .cells = cells, .units = {}};
    for (std::size_t u = 0; u < units.free.size(); ++u) compartment.units.push_back(u);
    return compartment;
  }
  [[nodiscard]] std::optional<std::vector<Lengths>> first_fit_into(std::int64_t cells) const {
    const auto result = first_fit(prepared.scene.instance, prepared.items, units, into(cells));
    if (!result) return std::nullopt;
    return lengths_of(prepared, *result);
  }
  [[nodiscard]] std::optional<std::vector<Lengths>> randomized_into(std::int64_t cells, FitRule rule,
                                                                    std::size_t choice) const {
    Draws draws(1, Draws::Purpose::BestFit, 0);
    const auto result =
        randomized_fit(prepared.scene.instance, prepared.items, units, into(cells), rule, choice, draws);
    if (!result) return std::nullopt;
    return lengths_of(prepared, *result);
  }

  Prepared prepared;
  Units units;
};

TEST(Draws, are_named_by_seed_purpose_trial_and_place) {
  const auto first_nine = [](std::uint64_t seed, Draws::Purpose purpose, std::uint32_t trial) {
    Draws draws(seed, purpose, trial);
    std::array<std::uint32_t, 9> bits{};
    for (auto& b : bits) b = draws.bits();
    return bits;
  };
  const auto bits = first_nine(5, Draws::Purpose::Pair, 3);
  EXPECT_EQ(bits, first_nine(5, Draws::Purpose::Pair, 3));
  EXPECT_NE(bits, first_nine(6, Draws::Purpose::Pair, 3));
  EXPECT_NE(bits, first_nine(5, Draws::Purpose::Shuffle, 3));
  EXPECT_NE(bits, first_nine(5, Draws::Purpose::Pair, 4));
  EXPECT_NE(bits[0], bits[4]);
}

TEST(Draws, that_decay_halve_from_rank_to_rank) {
  Draws draws(1, Draws::Purpose::Pair, 0);
  std::array<int, 4> times{};
  for (int n = 0; n < 8000; ++n) ++times[draws.decaying(4)];
  EXPECT_NEAR(times[0], 4000, 200);
  EXPECT_NEAR(times[1], 2000, 200);
  EXPECT_NEAR(times[2], 1000, 150);
  EXPECT_NEAR(times[3], 1000, 150);
  EXPECT_EQ(draws.decaying(1), 0U);
}

TEST(WindowShuffle, takes_each_next_one_from_the_prefix_of_what_is_left) {
  Draws draws(1, Draws::Purpose::Shuffle, 0);
  const auto order = window_shuffle(200, 4, draws);
  std::vector<std::size_t> left(200);
  std::iota(left.begin(), left.end(), std::size_t{0});
  int beyond_first = 0;
  for (const std::size_t chosen : order) {
    const auto at = std::ranges::find(left, chosen);
    ASSERT_LT(at - left.begin(), 4);
    beyond_first += at == left.begin() ? 0 : 1;
    left.erase(at);
  }
  EXPECT_TRUE(left.empty());
  EXPECT_GT(beyond_first, 100);
}

TEST(WindowShuffle, of_width_one_keeps_the_order) {
  Draws draws(1, Draws::Purpose::Shuffle, 0);
  EXPECT_EQ(window_shuffle(4, 1, draws), (std::vector<std::size_t>{0, 1, 2, 3}));
}

TEST(FixedRowFfd, puts_each_unit_into_the_first_cell_that_takes_it) {
  const Bench bench({2, 6, 4, 3, 5}, 10);
  EXPECT_EQ(bench.first_fit_into(2), (std::vector<Lengths>{{6, 4}, {5, 3, 2}}));
}

TEST(FixedRowFfd, leaves_no_cell_empty) {
  const Bench bench({4, 1, 1, 1}, 10);
  EXPECT_EQ(bench.first_fit_into(3), (std::vector<Lengths>{{4, 1}, {1}, {1}}));
  EXPECT_EQ(bench.first_fit_into(4), (std::vector<Lengths>{{4}, {1}, {1}, {1}}));
  EXPECT_EQ(bench.first_fit_into(5), std::nullopt);
}

TEST(FixedRowFfd, gives_up_when_a_unit_finds_no_room) {
  const Bench bench({6, 6, 6}, 10);
  EXPECT_EQ(bench.first_fit_into(2), std::nullopt);
}

TEST(RandomizedBestFit, of_width_one_takes_the_fullest_cell_that_has_room) {
  const Bench bench({6, 5, 4, 3, 2}, 10);
  EXPECT_EQ(bench.randomized_into(2, FitRule::Fullest, 1), (std::vector<Lengths>{{6, 4}, {5, 3, 2}}));
}

TEST(RandomizedBestFit, prefers_fewer_samples_among_equally_full_cells) {
  // 5 and 4 + 1 are equally full when the last 1 comes.
  const Bench bench({5, 4, 1, 1}, 6);
  EXPECT_EQ(bench.randomized_into(2, FitRule::Emptiest, 1), (std::vector<Lengths>{{5}, {4, 1, 1}}));
  EXPECT_EQ(bench.randomized_into(2, FitRule::Fullest, 1), (std::vector<Lengths>{{5, 1}, {4, 1}}));
}

TEST(RandomizedFit, into_the_emptiest_cell_evens_them_out) {
  const Bench bench({6, 5, 4, 3}, 10);
  EXPECT_EQ(bench.randomized_into(2, FitRule::Emptiest, 1), (std::vector<Lengths>{{6, 3}, {5, 4}}));
}

TEST(RandomizedFit, gives_up_when_a_unit_finds_no_room) {
  const Bench bench({6, 5, 4, 3, 2}, 10);
  EXPECT_EQ(bench.randomized_into(2, FitRule::Emptiest, 1), std::nullopt);
}

TEST(RandomizedFit, passes_over_cells_with_as_many_samples_as_allowed) {
  Problem problem = problem_of_lengths({6, 2, 1, 1}, {{0}}, 10);
  problem.constraints.max_samples_per_cell = 2;
  const Bench bench(problem);
  EXPECT_EQ(bench.randomized_into(2, FitRule::Fullest, 1), (std::vector<Lengths>{{6, 1}, {2, 1}}));
}

TEST(RandomizedFit, keeps_cells_in_order_when_there_are_many) {
  // More cells than a block of the order holds: every 1 belongs to one of the 500 cells of 9 and fills it.
  std::vector<std::int32_t> lengths(500, 9);
  lengths.insert(lengths.end(), 500, 1);
  const Bench bench(lengths, 10);
  for (const FitRule rule : {FitRule::Fullest, FitRule::Emptiest}) {
    const auto cells = bench.randomized_into(500, rule, 4);
    ASSERT_TRUE(cells.has_value());
    for (const Lengths& cell : *cells) EXPECT_EQ(cell, (Lengths{9, 1}));
  }
}

TEST(ExchangeSlots, gives_every_slot_as_many_units_and_samples_as_before) {
  Problem problem = problem_of_lengths({9, 8, 7, 6, 5, 4, 3, 2, 2, 2, 1, 1}, {{0}, {1}, {2}}, 30);
  problem.constraints.equal_count = true;
  problem.spec.atomic = {0, 0, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1};
  const Prepared prepared(problem);
  const Units units = make_units(prepared.items, prepared.fitted);
  std::vector<std::size_t> order(units.free.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto samples_by_slot = [&](std::span<const SlotId> slots) {
    std::map<std::int32_t, std::int64_t> samples;
    for (std::size_t u = 0; u < slots.size(); ++u) samples[slots[u].value()] += units.free[u].whole.count;
    return samples;
  };
  bool changed = false;
  for (std::uint32_t trial = 0; trial < 20; ++trial) {
    Draws draws(1, Draws::Purpose::Slots, trial);
    const auto slots = exchange_slots(units, order, 3, draws);
    EXPECT_EQ(samples_by_slot(slots), (std::map<std::int32_t, std::int64_t>{{0, 4}, {1, 4}, {2, 4}}));
    changed = changed || slots != fitted_slots(units);
  }
  EXPECT_TRUE(changed);
}

TEST(ExchangedCells, swap_units_of_like_size_where_the_cap_allows) {
  // Two full cells of 10: 6 + 4 and 6 + 4. Only equals can change places.
  const Prepared prepared(problem_of_lengths({6, 6, 4, 4}, {{0, 1}}, 10));
  const Units units = make_units(prepared.items, prepared.fitted);
  const std::vector<std::size_t> order = {0, 1, 2, 3};
  bool changed = false;
  for (std::uint32_t trial = 0; trial < 20; ++trial) {
    Draws draws(1, Draws::Purpose::Exchange, trial);
    const auto cells =
        exchanged_cells(prepared.scene.instance, prepared.items, units, prepared.fitted, order, 2, draws);
    EXPECT_EQ(lengths_of(prepared, cells), (std::vector<Lengths>{{6, 4}, {6, 4}}));
    for (std::size_t c = 0; c < 2; ++c) changed = changed || cells[c].items != prepared.fitted.cells[c].items;
  }
  EXPECT_TRUE(changed);
}

TEST(SeedUnits, hold_samples_without_routes_together_as_the_fit_has_them) {
  Problem problem = problem_of_lengths({8, 7, 3, 2, 2}, {{0}}, 12);
  problem.spec.recorded = {8, 7, 0, 0, 2};
  problem.spec.counts = {8, 7, 0, 0, 2};
  const Prepared prepared(problem);
  const Units units = make_units(prepared.items, prepared.fitted);
  ASSERT_EQ(units.free.size(), 4U);
  EXPECT_TRUE(std::ranges::any_of(units.free, [](const Unit& unit) {
    return unit.items == std::vector<std::size_t>{2, 3} && unit.whole.count == 2 && unit.whole.totals.tokens == 5;
  }));
}

TEST(SeedUnits, leave_oversized_samples_in_their_cells) {
  Problem problem = problem_of_lengths({30, 4, 3}, {{0}}, 10);
  problem.constraints.oversized = Oversized::OwnCell;
  const Prepared prepared(problem);
  const Units units = make_units(prepared.items, prepared.fitted);
  ASSERT_EQ(units.closed.size(), 1U);
  EXPECT_EQ(units.closed[0].totals.tokens, 30);
  EXPECT_EQ(units.free.size(), 2U);
  const auto parts = compartments(prepared.scene.instance, units, 2, std::vector<std::size_t>{0, 1}, {});
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].cells, 1);
}

/// Two experts on two ranks and one layer; per sample its tokens for each, one sample per cell, two rows of two slots.
Problem two_ranks(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& routes) {
  Problem problem = problem_of_lengths(std::vector<std::int32_t>(routes.size(), 20), {{0, 1}}, 20);
  problem.ranks = 2;
  problem.spec.experts = 2;
  problem.spec.counts.clear();
  for (const auto& [first, second] : routes) {
    problem.spec.counts.push_back(first);
    problem.spec.counts.push_back(second);
  }
  return problem;
}

/// Which items meet in each row.
std::vector<std::vector<std::size_t>> rows_of(const RowTable& table) {
  std::vector<std::vector<std::size_t>> rows;
  for (std::int64_t r = 0; r < table.rows(); ++r) {
    auto& row = rows.emplace_back();
    for (const std::int32_t d : {0, 1}) row.push_back(table.cells()[table.cell_at(r, SlotId(d))].items.front());
    std::ranges::sort(row);
  }
  return rows;
}

TEST(EdpAwarePair, lets_cells_meet_that_are_hot_on_different_ranks) {
  const Prepared prepared(two_ranks({{10, 0}, {9, 0}, {0, 10}, {0, 9}}));
  RowTable table(prepared.scene.instance, *prepared.loads, {}, 2, prepared.fitted.cells);
  EXPECT_EQ(edp_aware_pair(prepared.scene.instance, table, {}, nullptr), PairOutcome::Paired);
  EXPECT_EQ(rows_of(table), (std::vector<std::vector<std::size_t>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(table.peak(), 10);
}

TEST(EdpAwarePair, breaks_ties_by_the_largest_peak) {
  // All on one rank: whatever the row, a cell adds its own load. The hottest is left alone as long as it can be.
  const Prepared prepared(two_ranks({{10, 0}, {4, 0}, {3, 0}, {1, 0}}));
  RowTable table(prepared.scene.instance, *prepared.loads, {}, 2, prepared.fitted.cells);
  EXPECT_EQ(edp_aware_pair(prepared.scene.instance, table, {}, nullptr), PairOutcome::Paired);
  EXPECT_EQ(rows_of(table), (std::vector<std::vector<std::size_t>>{{0, 3}, {1, 2}}));
}

TEST(EdpAwarePair, gives_up_when_no_row_keeps_the_cap_on_rank_tokens) {
  Problem problem = two_ranks({{10, 0}, {9, 0}, {5, 0}, {4, 0}});
  problem.constraints.max_rank_tokens = 14;
  const Prepared prepared(problem);
  ASSERT_EQ(prepared.fitted.rows, 2);
  RowTable table(prepared.scene.instance, *prepared.loads, {}, 2, prepared.fitted.cells);
  EXPECT_EQ(edp_aware_pair(prepared.scene.instance, table, {}, nullptr), PairOutcome::Paired);
  EXPECT_EQ(rows_of(table), (std::vector<std::vector<std::size_t>>{{0, 3}, {1, 2}}));
  problem.constraints.max_rank_tokens = 13;
  const Prepared tighter(problem);
  RowTable full(tighter.scene.instance, *tighter.loads, {}, 2, tighter.fitted.cells);
  EXPECT_EQ(edp_aware_pair(tighter.scene.instance, full, {}, nullptr), PairOutcome::OverRankLimit);
}

TEST(Seeds, count_trials_without_room_and_can_go_on_from_the_fit_instead) {
  // Cells must be full to the token, which no greedy rule finds.
  const Prepared prepared(problem_of_lengths({5, 5, 4, 3, 3, 4, 3, 3}, {{0, 1, 2}}, 10));
  ASSERT_EQ(prepared.fitted.rows, 1);
  SerialExecutor executor;
  SeedBudget budget{.candidates = 10, .population = 4, .choice = 2};
  const auto seeds_with = [&] {
    return diverse_seeds(prepared.scene.instance, *prepared.loads, {}, prepared.items, prepared.fitted, budget, 1,
                         executor, {});
  };
  const Seeds given_up = seeds_with();
  EXPECT_GT(given_up.no_room, 0U);
  EXPECT_EQ(given_up.exchanged, 0U);
  budget.exchange_when_full = true;
  const Seeds gone_on = seeds_with();
  EXPECT_GT(gone_on.exchanged, 0U);
  EXPECT_EQ(gone_on.no_room + gone_on.exchanged, given_up.no_room);
  EXPECT_GT(gone_on.found, given_up.found);
}

}  // namespace
}  // namespace routepack::testing
