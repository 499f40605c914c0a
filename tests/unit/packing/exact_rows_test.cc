// SPDX-License-Identifier: Apache-2.0
#include "packing/exact_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "packing/bin_bound.h"
#include "packing/heuristics.h"
#include "support/bin_packing_families.h"

namespace routepack {
namespace {

using testing::fewest_bins_by_force;
using testing::triplet_class;
using testing::uniform_class;

constexpr std::int64_t kPlenty = 10'000'000;

/// Up to ten units in bins of up to 60, some with counts and a limit on them.
BinProblem tiny(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
  };
  BinProblem problem;
  problem.capacity = 4 + draw(57);
  if (draw(2) == 0) problem.max_count = 1 + draw(4);
  const std::int64_t units = 1 + draw(10);
  const std::int64_t largest = 1 + draw(problem.capacity);
  for (std::int64_t u = 0; u < units; ++u) {
    const std::int64_t most = std::min<std::int64_t>(problem.max_count, 3);
    problem.units.push_back({1 + draw(largest), draw(3) == 0 ? 1 + draw(most) : 1});
  }
  std::ranges::sort(problem.units, [](const auto& a, const auto& b) {
    return a.size != b.size ? a.size > b.size : a.count > b.count;
  });
  return problem;
}

TEST(PackExactly, agrees_with_trying_everything) {
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    const BinProblem problem = tiny(seed);
    const std::int64_t fewest = fewest_bins_by_force(problem);
    Work work(kPlenty);
    const ExactAnswer fits = pack_exactly(problem, fewest, work);
    ASSERT_EQ(fits.proof, Proof::Fits) << "seed " << seed;
    ASSERT_TRUE(is_packing(problem, fits.packing)) << "seed " << seed;
    ASSERT_LE(static_cast<std::int64_t>(fits.packing.size()), fewest) << "seed " << seed;
    ASSERT_EQ(pack_exactly(problem, fewest - 1, work).proof, Proof::Impossible) << "seed " << seed;
  }
}

TEST(PackExactly, gives_up_when_the_work_is_used_up) {
  const BinProblem problem = triplet_class(1, 120);
  Work work(500);
  EXPECT_EQ(pack_exactly(problem, 40, work).proof, Proof::Unknown);
  EXPECT_TRUE(work.over());
}

TEST(PackExactly, finds_the_triplets_of_full_bins) {
  const BinProblem problem = triplet_class(1, 30);
  Work work(kPlenty);
  const ExactAnswer answer = pack_exactly(problem, 10, work);
  ASSERT_EQ(answer.proof, Proof::Fits);
  EXPECT_TRUE(is_packing(problem, answer.packing));
}

TEST(PackExactly, proves_what_no_bound_shows) {
  // 38 in three bins of 13 wastes one; but each 7 with a 4, the best it can do, already wastes two.
  BinProblem problem{.capacity = 13, .max_count = BinProblem::kNoLimit, .units = {}};
  for (const std::int64_t size : {8, 7, 7, 5, 4, 4, 3}) problem.units.push_back({size, 1});
  EXPECT_EQ(least_bins(problem).bins, 3);
  Work work(kPlenty);
  EXPECT_EQ(pack_exactly(problem, 3, work).proof, Proof::Impossible);
  EXPECT_EQ(pack_exactly(problem, 4, work).proof, Proof::Fits);
}

TEST(PackEqualCounts, gives_every_slot_its_share_or_proves_that_none_can) {
  EqualProblem problem;
  problem.bins = {.capacity = 12, .max_count = BinProblem::kNoLimit, .units = {}};
  for (const std::int64_t count : {3, 3, 2, 2, 2}) problem.bins.units.push_back({count, count});
  problem.alone.assign(5, false);
  problem.slots = 2;
  problem.rows = 2;
  Work work(kPlenty);
  const ExactAnswer answer = pack_equal_counts(problem, work);
  ASSERT_EQ(answer.proof, Proof::Fits);
  ASSERT_EQ(answer.packing.size(), 4u);
  for (std::size_t slot = 0; slot < 2; ++slot) {
    std::int64_t samples = 0;
    for (std::size_t row = 0; row < 2; ++row) {
      EXPECT_FALSE(answer.packing[slot * 2 + row].empty());
      for (const std::uint32_t u : answer.packing[slot * 2 + row]) samples += problem.bins.units[u].count;
    }
    EXPECT_EQ(samples, 6);
  }
  problem.rows = 3;  // the slot of the two threes cannot fill three cells
  EXPECT_EQ(pack_equal_counts(problem, work).proof, Proof::Impossible);
}

TEST(Heuristics, give_packings_of_every_unit_within_both_limits) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const BinProblem problem = tiny(seed);
    const Packing first = first_fit_bins(problem);
    const auto bins = static_cast<std::int64_t>(first.size());
    Work work(20000);
    ASSERT_TRUE(is_packing(problem, first)) << "seed " << seed;
    ASSERT_TRUE(is_packing(problem, minimum_slack(problem, 0, 0, work))) << "seed " << seed;
    ASSERT_TRUE(is_packing(problem, minimum_slack(problem, 1, seed, work))) << "seed " << seed;
    const Packing fewer = fewer_bins(problem, 1, first, work);
    ASSERT_TRUE(is_packing(problem, fewer)) << "seed " << seed;
    ASSERT_LE(fewer.size(), first.size()) << "seed " << seed;
    const auto best = best_fit(problem, bins);
    ASSERT_TRUE(!best || is_packing(problem, *best)) << "seed " << seed;
    const auto level = level_bins(problem, bins, work);
    ASSERT_TRUE(!level || is_packing(problem, *level)) << "seed " << seed;
  }
}

TEST(Heuristics, fill_bins_that_first_fit_leaves_open) {
  const BinProblem problem = uniform_class(2, 250);
  const auto before = static_cast<std::int64_t>(first_fit_bins(problem).size());
  const std::int64_t tokens = (problem.total_size() + problem.capacity - 1) / problem.capacity;
  ASSERT_GT(before, tokens);
  Work work(kPlenty);
  EXPECT_EQ(static_cast<std::int64_t>(fewer_bins(problem, tokens, first_fit_bins(problem), work).size()), tokens);
}

TEST(LevelBins, bring_overfull_bins_under_the_capacity) {
  // Emptiest first puts 6 + 3 + 3 against 5 + 5; a 6 for a 5 makes both full.
  BinProblem problem{.capacity = 11, .max_count = BinProblem::kNoLimit, .units = {}};
  for (const std::int64_t size : {6, 5, 5, 3, 3}) problem.units.push_back({size, 1});
  Work work(kPlenty);
  const auto level = level_bins(problem, 2, work);
  ASSERT_TRUE(level.has_value());
  EXPECT_TRUE(is_packing(problem, *level));
}

}  // namespace
}  // namespace routepack
