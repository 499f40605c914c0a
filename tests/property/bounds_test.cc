// SPDX-License-Identifier: Apache-2.0
// No layout beats a lower bound: every layout of small problems is tried.
#include "routepack/bounds.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "routepack/score.h"
#include "support/problems.h"
#include "support/property.h"

namespace routepack::testing {
namespace {

/// Rounding in sums of a dozen terms.
constexpr double kRounding = 1e-12;

/// Calls `check` with the score of every feasible layout of every row count, and returns how many there were.
template <class Check>
int for_each_score(const Problem& problem, const Instance& instance, const Placement& placement, const Check& check) {
  int layouts = 0;
  for (std::int32_t rows = 1; rows <= problem.samples() / problem.slots(); ++rows) {
    for_each_layout(problem, rows, 0, [&](const Cells& cells) {
      check(evaluate(instance, placement, to_layout(cells, problem)).score.max_shard);
      ++layouts;
      return true;
    });
  }
  return layouts;
}

TEST(Bounds, hold_for_every_feasible_layout) {
  int layouts = 0;
  for_all(400, [&] {
    const Problem problem = draw_problem(Shape{.max_samples = 5, .max_slots = 3});
    const Scene scene(problem);
    std::mt19937_64 random(draw_seed());
    const Placement placement =
        to_placement(random_maps(random, problem.spec.layers, problem.spec.experts), problem.ranks);
    const Bounds bounds = lower_bounds(scene.instance, placement, aggregate_demand(scene.window));
    RC_ASSERT(bounds.any_placement >= 0.0);
    RC_ASSERT(bounds.any_placement <= bounds.fixed_placement * (1 + kRounding));
    layouts += for_each_score(problem, scene.instance, placement,
                              [&](double score) { RC_ASSERT(score * (1 + kRounding) >= bounds.fixed_placement); });
  });
  EXPECT_GT(layouts, 1000);
}

TEST(Bounds, over_any_placement_hold_for_every_layout_under_every_placement) {
  int layouts = 0;
  for_all(200, [&] {
    Problem problem =
        draw_problem(Shape{.max_samples = 4, .max_layers = 2, .max_slots = 2, .max_ranks = 2, .max_slots_per_rank = 2});
    const Scene scene(problem);
    std::mt19937_64 random(draw_seed());
    Maps maps = random_maps(random, problem.spec.layers, problem.spec.experts);
    const Bounds bounds =
        lower_bounds(scene.instance, to_placement(maps, problem.ranks), aggregate_demand(scene.window));
    // Odometer over the permutations of all layers, restricted to ascending experts inside each rank.
    maps = identity_maps(problem.spec.layers, problem.spec.experts);
    const auto per_rank = static_cast<std::ptrdiff_t>(problem.spec.experts / problem.ranks);
    const auto ascending_in_ranks = [&](const std::vector<std::int32_t>& map) {
      for (std::ptrdiff_t p = 0; p < problem.ranks; ++p) {
        if (!std::is_sorted(map.begin() + p * per_rank, map.begin() + (p + 1) * per_rank)) return false;
      }
      return true;
    };
    for (bool more = true; more;) {
      if (std::all_of(maps.begin(), maps.end(), ascending_in_ranks)) {
        const Placement placement = to_placement(maps, problem.ranks);
        layouts += for_each_score(problem, scene.instance, placement,
                                  [&](double score) { RC_ASSERT(score * (1 + kRounding) >= bounds.any_placement); });
        const Bounds here = lower_bounds(scene.instance, placement, aggregate_demand(scene.window));
        RC_ASSERT(here.any_placement == bounds.any_placement);
      }
      more = false;
      for (auto& map : maps) {
        if (std::next_permutation(map.begin(), map.end())) {
          more = true;
          break;
        }
      }
    }
  });
  EXPECT_GT(layouts, 1000);
}

TEST(Bounds, are_at_least_the_plain_aggregate_ones) {
  for_all(200, [] {
    const Problem problem = draw_problem(Shape{.max_samples = 12});
    const Scene scene(problem);
    std::mt19937_64 random(draw_seed());
    const Maps maps = random_maps(random, problem.spec.layers, problem.spec.experts);
    const Bounds bounds =
        lower_bounds(scene.instance, to_placement(maps, problem.ranks), aggregate_demand(scene.window));

    const auto capacity = static_cast<double>(problem.capacity);
    double tokens = 0.0;
    double pairs = 0.0;
    for (std::int32_t i = 0; i < problem.samples(); ++i) {
      const auto length = static_cast<double>(problem.length(i));
      tokens += length / capacity;
      pairs += length * length / (capacity * capacity);
    }
    double dense = 0.0;
    for (const Stage& stage : problem.stages) dense += stage.alpha * tokens + stage.beta * pairs;
    std::size_t smallest = problem.shards[0].size();
    for (const auto& shard : problem.shards) smallest = std::min(smallest, shard.size());
    const double share = static_cast<double>(smallest) / problem.slots();

    double fixed = 0.0;
    double any = 0.0;
    const std::int64_t per_rank = problem.spec.experts / problem.ranks;
    RC_ASSERT(bounds.layers.size() == static_cast<std::size_t>(problem.spec.layers));
    for (std::int64_t l = 0; l < problem.spec.layers; ++l) {
      std::vector<std::int64_t> demand;
      for (std::int64_t e = 0; e < problem.spec.experts; ++e) {
        demand.push_back(0);
        for (std::int32_t i = 0; i < problem.samples(); ++i) demand.back() += problem.count(i, l, e);
      }
      std::int64_t peak = 0;
      std::int64_t total = 0;
      for (std::int64_t p = 0; p < problem.ranks; ++p) {
        std::int64_t on_rank = 0;
        for (std::int64_t v = p * per_rank; v < (p + 1) * per_rank; ++v) {
          const std::int32_t e = maps[static_cast<std::size_t>(l)][static_cast<std::size_t>(v)];
          on_rank += demand[static_cast<std::size_t>(e)];
        }
        peak = std::max(peak, on_rank);
        total += on_rank;
      }
      std::sort(demand.begin(), demand.end());
      std::int64_t hottest = demand.back();
      for (std::int64_t n = 0; n + 1 < per_rank; ++n) hottest += demand[static_cast<std::size_t>(n)];
      const std::int64_t mean = (total + problem.ranks - 1) / problem.ranks;
      const double weight = problem.expert[problem.expert.size() == 1 ? 0 : static_cast<std::size_t>(l)];
      fixed += weight * static_cast<double>(peak);
      any += weight * std::max(static_cast<double>(total) / problem.ranks, static_cast<double>(hottest));

      const LayerBound& layer = bounds.layers[static_cast<std::size_t>(l)];
      RC_ASSERT(layer.placed_peak == peak);
      RC_ASSERT(layer.rank_mean == mean);
      RC_ASSERT(layer.any_placement >= std::max(mean, hottest));
      if (hottest > mean) RC_ASSERT(layer.replication_needed);
      if (hottest * problem.ranks <= total) RC_ASSERT(!layer.replication_needed);
    }
    RC_ASSERT(bounds.fixed_placement >= (dense / problem.slots() + share * fixed / capacity) * (1 - kRounding));
    RC_ASSERT(bounds.any_placement >= (dense / problem.slots() + share * any / capacity) * (1 - kRounding));
  });
}

TEST(Gap, is_the_relative_distance_and_zero_when_there_is_nothing_to_do) {
  EXPECT_DOUBLE_EQ(gap_to(1.5, 1.0), 0.5);
  EXPECT_EQ(gap_to(0.0, 0.0), 0.0);
}

}  // namespace
}  // namespace routepack::testing
