// SPDX-License-Identifier: Apache-2.0
#include "packing/row_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "packing/bin_bound.h"
#include "support/bin_packing_families.h"
#include "support/builders.h"

namespace routepack {
namespace {

using testing::make_window;
using Numbers = std::vector<std::int64_t>;

BinProblem bins(std::int64_t capacity, const Numbers& sizes, std::int64_t max_count = BinProblem::kNoLimit) {
  BinProblem problem{.capacity = capacity, .max_count = max_count, .units = {}};
  for (const std::int64_t size : sizes) problem.units.push_back({size, 1});
  return problem;
}

/// The most that f adds up to over anything that fits into one bin.
std::int64_t largest_sum(const DualFeasible& f) {
  Numbers most(static_cast<std::size_t>(f.capacity) + 1, 0);
  for (std::int64_t room = 1; room <= f.capacity; ++room) {
    for (std::int64_t size = 1; size <= room; ++size) {
      auto& best = most[static_cast<std::size_t>(room)];
      best = std::max(best, most[static_cast<std::size_t>(room - size)] + f(size));
    }
  }
  return most.back();
}

TEST(DualFeasible, never_adds_up_to_more_than_the_whole_in_one_bin) {
  for (std::int64_t capacity = 2; capacity <= 40; ++capacity) {
    for (std::int64_t parameter = 1; parameter <= 2 * capacity; ++parameter) {
      for (const auto family :
           {DualFeasible::Family::FeketeSchepers, DualFeasible::Family::Ccm, DualFeasible::Family::Vanderbeck}) {
        if (family == DualFeasible::Family::Ccm && 2 * parameter > capacity) continue;
        if (family == DualFeasible::Family::Vanderbeck && parameter < 2) continue;
        const DualFeasible f{family, parameter, capacity};
        ASSERT_LE(largest_sum(f), f.whole())
            << "family " << static_cast<int>(family) << ", parameter " << parameter << ", capacity " << capacity;
      }
    }
  }
}

TEST(L2Bound, counts_tokens_large_units_and_what_they_leave_free) {
  const auto l2 = [](std::int64_t capacity, const Numbers& sizes, const Numbers& copies) {
    return l2_bound(std::span(sizes), std::span(copies), capacity);
  };
  EXPECT_EQ(l2(10, {5, 3, 2}, {1, 1, 1}), 1);
  EXPECT_EQ(l2(10, {6}, {4}), 4);        // no two meet
  EXPECT_EQ(l2(10, {7, 4}, {2, 2}), 3);  // the 4s meet no 7
  EXPECT_EQ(l2(10, {5}, {5}), 3);
  EXPECT_EQ(l2(10, {}, {}), 0);
}

TEST(LeastBins, sees_by_rounding_what_tokens_do_not) {
  // Seven units a little over a third: two to a bin, though 7 · 34 tokens would fill only three bins of 100.
  EXPECT_EQ(least_bins(bins(100, Numbers(7, 34))).bins, 4);
  // Thirteen a little over a quarter: three to a bin.
  EXPECT_EQ(least_bins(bins(100, Numbers(13, 26))).bins, 5);
}

TEST(LeastBins, joins_counts_and_sizes) {
  // At most three to a bin. Tokens alone: two bins; counts alone: two bins. But a 9 leaves room for one token only, so
  // each 9 takes at most one 1 with it, and of the four 1s two need a third bin.
  const BinBound bound = least_bins(bins(10, {9, 9, 1, 1, 1, 1}, 3));
  EXPECT_EQ(least_bins(bins(10, {9, 9, 1, 1, 1, 1})).bins, 3);
  EXPECT_EQ(bound.bins, 3);
  EXPECT_EQ(least_bins(bins(100, {60, 60, 10, 10, 10, 10, 10}, 3)).bins, 3);
  EXPECT_TRUE(least_bins(bins(100, {60, 60, 10, 10, 10, 10, 10}, 3)).by_count);
}

TEST(LeastBins, never_exceeds_what_trying_everything_needs_and_often_meets_it) {
  std::mt19937_64 random(5);
  const auto draw = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
  };
  int met = 0;
  for (int n = 0; n < 4000; ++n) {
    BinProblem problem;
    problem.capacity = 5 + draw(60);
    const std::int64_t units = 1 + draw(9);
    if (draw(2) == 0) problem.max_count = 1 + draw(4);
    for (std::int64_t u = 0; u < units; ++u) {
      const std::int64_t most = problem.max_count == BinProblem::kNoLimit ? 3 : problem.max_count;
      problem.units.push_back({1 + draw(problem.capacity), draw(3) == 0 ? 1 + draw(most) : 1});
    }
    std::ranges::sort(problem.units, [](const auto& a, const auto& b) {
      return a.size != b.size ? a.size > b.size : a.count > b.count;
    });
    const std::int64_t fewest = testing::fewest_bins_by_force(problem);
    const std::int64_t bound = least_bins(problem).bins;
    ASSERT_LE(bound, fewest) << "case " << n;
    met += bound == fewest ? 1 : 0;
  }
  EXPECT_GT(met, 3600);
}

class RowBoundOf : public ::testing::Test {
 protected:
  RowBound bound(std::vector<std::int32_t> lengths, std::int64_t capacity, std::int32_t slots = 2,
                 const std::vector<std::int64_t>& demand = {}) {
    testing::WindowSpec spec;
    spec.samples = static_cast<std::int64_t>(lengths.size());
    spec.layers = 1;
    spec.experts = 1;
    spec.counts.assign(lengths.size(), 0);
    spec.lengths = std::move(lengths);
    const Window window = make_window(std::move(spec));
    std::vector<std::vector<SlotId>> shards(1);
    for (std::int32_t d = 0; d < slots; ++d) shards[0].emplace_back(d);
    const Instance instance(window, Topology::from_shards(1, std::move(shards), stages_), CostModel({}, 1.0), capacity,
                            rules_);
    const auto items = make_items(instance);
    return row_bound(instance, std::get<Items>(items), demand);
  }
  Constraints rules_;
  std::int32_t stages_ = 1;
};

TEST_F(RowBoundOf, tokens_is_on_aligned_lengths) {
  EXPECT_EQ(bound({5, 5, 5, 5}, 10).rows, 1);
  rules_.sample_multiple = 8;
  EXPECT_EQ(bound({5, 5, 5, 5}, 10).rows, 2);
  EXPECT_EQ(bound({5, 5, 5, 5}, 10).because, "the tokens need 4 cells of capacity 10");
}

TEST_F(RowBoundOf, tokens_uses_what_the_lengths_can_reach_of_the_capacity) {
  // Fours reach 8 of 10: three cells, where 24 tokens would fill two and a half.
  EXPECT_EQ(bound({4, 4, 4, 4, 4}, 10, 1).rows, 3);
}

TEST_F(RowBoundOf, samples_per_cell_is_named) {
  rules_.max_samples_per_cell = 2;
  const RowBound found = bound(std::vector<std::int32_t>(9, 1), 100);
  EXPECT_EQ(found.rows, 3);
  EXPECT_EQ(found.because, "max_samples_per_cell 2");
}

TEST_F(RowBoundOf, oversized_samples_counts_a_cell_each) {
  rules_.oversized = Oversized::OwnCell;
  EXPECT_EQ(bound({50, 50, 50, 5, 5}, 10).rows, 2);
}

TEST_F(RowBoundOf, equal_counts_looks_at_the_slot_with_most_of_the_longest) {
  // Three samples a slot. One slot has two of the three 9s and at least one more token: 19 on a slot of 10 a cell.
  rules_.equal_count = true;
  const RowBound found = bound({9, 9, 9, 1, 1, 1}, 18, 2);
  EXPECT_EQ(found.rows, 2);
  EXPECT_EQ(found.because, "equal_count: the slot with the most of the longest samples");
  rules_.equal_count = false;
  EXPECT_EQ(bound({9, 9, 9, 1, 1, 1}, 18, 2).rows, 1);
}

TEST_F(RowBoundOf, rank_tokens_shares_the_busiest_rank_over_rows_and_shards) {
  rules_.max_rank_tokens = 10;
  const RowBound found = bound({5, 5, 5, 5}, 100, 2, {35});
  EXPECT_EQ(found.rows, 4);
  EXPECT_EQ(found.because, "max_rank_tokens 10");
}

TEST_F(RowBoundOf, rows_and_stages_asked_for_are_kept_and_rounded_up) {
  rules_.min_rows = 2;
  EXPECT_EQ(bound({1, 1, 1, 1}, 10).because, "min_rows 2");
  stages_ = 3;
  EXPECT_EQ(bound({1, 1, 1, 1}, 10).because, "3 pipeline stages");
  rules_.row_multiple = 2;
  const RowBound found = bound({1, 1, 1, 1}, 10);
  EXPECT_EQ(found.rows, 4);
  EXPECT_EQ(found.because, "row_multiple 2 over 3 pipeline stages");
}

}  // namespace
}  // namespace routepack
