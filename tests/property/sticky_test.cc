// SPDX-License-Identifier: Apache-2.0
// Laws of placement that stays.
#include "placement/sticky.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "exec/team.h"
#include "exec/thread_pool.h"
#include "routepack/score.h"
#include "support/problems.h"
#include "support/property.h"
#include "support/team.h"

namespace routepack::testing {
namespace {

struct Case {
  std::vector<std::int64_t> demand;
  Placement home;
  double epsilon = 0.0, start_above = 0.0;
  MoveBudget budget;
  std::int64_t bytes = 1;
};

Case draw_case() {
  const std::int32_t layers = draw(1, 4);
  const std::int32_t ranks = draw(1, 6);
  const std::int32_t experts = ranks * draw(1, 6);
  std::mt19937_64 random(draw_seed());
  const std::int32_t spread = 1 + below(random, 200);
  std::vector<std::int64_t> demand;
  for (std::int32_t n = 0; n < layers * experts; ++n) {
    demand.push_back(std::int64_t{below(random, spread)} * (1 + below(random, 4)));
  }
  Case it{std::move(demand), to_placement(random_maps(random, layers, experts), ranks), 0.0, 0.0, {}, 1};
  it.epsilon = draw(0, 10) / 100.0;
  it.start_above = it.epsilon + draw(0, 10) / 100.0;
  if (draw(0, 2) == 0) it.budget.share = draw(0, 50) / 100.0;
  if (draw(0, 2) == 0) it.budget.rank_bytes = draw(0, 6);
  if (draw(0, 2) == 0) it.budget.price = it.budget.price_between_nodes = draw(0, 40);
  return it;
}

TEST(PlaceSticky, ends_every_layer_for_the_reason_that_it_gives) {
  for_all(500, [] {
    const Case it = draw_case();
    MoveLedger ledger(it.home, it.budget, it.bytes);
    const StickyResult result = place_sticky(it.demand, ledger, {.epsilon = it.epsilon, .start_above = it.start_above});
    const auto loads = rank_demand(it.demand, result.placement);
    const auto before = rank_demand(it.demand, it.home);
    const auto ranks = static_cast<std::size_t>(it.home.ranks());
    const bool free = it.budget == MoveBudget();
    for (const LayerId l : IdRange<LayerId>(it.home.layers())) {
      const StickyLayer& layer = result.layers[l];
      const auto now = std::span(loads).subspan(l * ranks, ranks);
      const double mean =
          static_cast<double>(std::accumulate(now.begin(), now.end(), std::int64_t{0})) / static_cast<double>(ranks);
      RC_ASSERT(layer.peak_after == *std::max_element(now.begin(), now.end()));
      RC_ASSERT(layer.peak_before == *std::max_element(before.begin() + static_cast<std::ptrdiff_t>(l * ranks),
                                                       before.begin() + static_cast<std::ptrdiff_t>((l + 1) * ranks)));
      RC_ASSERT(layer.peak_after <= layer.peak_before);
      const auto peak = static_cast<double>(layer.peak_after);
      switch (layer.end) {
        case LayerEnd::Kept:
          RC_ASSERT(layer.swaps == 0);
          RC_ASSERT(peak <= std::max((1.0 + it.start_above) * mean, mean + 1.0));
          break;
        case LayerEnd::Balanced:
          RC_ASSERT(peak <= std::max((1.0 + it.epsilon) * mean, mean + 1.0));
          break;
        case LayerEnd::HotExpert:
          RC_ASSERT(peak > (1.0 + it.epsilon) * mean);
          RC_ASSERT(layer.peak_after <= layer.target);
          break;
        case LayerEnd::Budget:
          RC_ASSERT(!free);
          break;
        case LayerEnd::NoSwap:
          RC_ASSERT(layer.peak_after > layer.target);
          break;
      }
      if (layer.swaps > 0 && layer.peak_after <= layer.target) {
        RC_ASSERT(layer.swaps_needed.has_value());
        RC_ASSERT(*layer.swaps_needed <= layer.swaps);
      }
    }
    MoveLedger again(it.home, it.budget, it.bytes);
    again.recount(result.placement);
    RC_ASSERT(again == ledger);
    RC_ASSERT(ledger.moved() <= ledger.most_moved());
    if (it.budget.rank_bytes) {
      for (const RankId p : IdRange<RankId>(it.home.ranks())) {
        RC_ASSERT(ledger.bytes_in(p) <= *it.budget.rank_bytes);
        RC_ASSERT(ledger.bytes_out(p) <= *it.budget.rank_bytes);
      }
    }
  });
}

TEST(PlaceSticky, gains_more_than_it_pays) {
  for_all(300, [] {
    Case it = draw_case();
    it.budget.price = it.budget.price_between_nodes = draw(0, 60);
    MoveLedger ledger(it.home, it.budget, it.bytes);
    const StickyResult result = place_sticky(it.demand, ledger, {.epsilon = 0.0, .start_above = 0.0});
    std::int64_t gained = 0;
    for (const StickyLayer& layer : result.layers) gained += layer.peak_before - layer.peak_after;
    RC_ASSERT(static_cast<double>(gained) >= ledger.total_price());
  });
}

TEST(PlaceSticky, balances_many_small_experts_within_two_percent_without_saying_no) {
  for_all(30, [] {
    std::mt19937_64 random(draw_seed());
    std::vector<std::int64_t> demand;
    for (int n = 0; n < 4 * 128; ++n) demand.push_back(500 + below(random, 1500));
    MoveLedger ledger(Placement::identity(4, 128, 8), {});
    const StickyResult result = place_sticky(demand, ledger, {.epsilon = 0.02, .start_above = 0.02});
    std::int64_t used = 0;
    std::int64_t needed = 0;
    for (const StickyLayer& layer : result.layers) {
      RC_ASSERT(layer.end == LayerEnd::Balanced || layer.end == LayerEnd::Kept);
      used += layer.swaps;
      needed += *layer.swaps_needed;
    }
    RC_ASSERT(used <= 2 * needed);
  });
}

TEST(PlaceSticky, comes_out_the_same_from_a_team_of_any_size) {
  for_all(100, [] {
    const Case it = draw_case();
    const StickyParams params{.epsilon = it.epsilon, .start_above = it.start_above};
    MoveLedger alone(it.home, it.budget, it.bytes);
    const StickyResult wanted = place_sticky(it.demand, alone, params);
    const auto found = in_team(draw(1, 5), [&](TeamLink& link) {
      MoveLedger ledger(it.home, it.budget, it.bytes);
      ThreadPool pool(2);
      Team team(pool, link);
      StickyResult result = place_sticky(it.demand, ledger, params, team);
      return std::pair(std::move(result), ledger == alone);
    });
    for (const auto& member : found) {
      RC_ASSERT(member.first.placement == wanted.placement);
      RC_ASSERT(member.first.layers == wanted.layers);
      RC_ASSERT(member.second);
    }
  });
}

}  // namespace
}  // namespace routepack::testing
