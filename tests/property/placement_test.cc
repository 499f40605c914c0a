// SPDX-License-Identifier: Apache-2.0
// Laws of placements and of Algorithm 1.
#include "routepack/placement.h"

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

struct Case {
  std::int32_t layers, experts, ranks;
  std::vector<std::int64_t> demand;
  Maps current;

  [[nodiscard]] std::int64_t demand_of(std::int32_t layer, std::int32_t expert) const {
    return demand[static_cast<std::size_t>(layer * experts + expert)];
  }
};

/// Demands with many ties.
Case draw_case() {
  Case it{draw(1, 3), 0, draw(1, 5), {}, {}};
  it.experts = it.ranks * draw(1, 4);
  const std::int32_t spread = draw(1, 100);
  std::mt19937_64 random(draw_seed());
  for (std::int32_t n = 0; n < it.layers * it.experts; ++n)
    it.demand.push_back(below(random, spread) * below(random, 9));
  it.current = random_maps(random, it.layers, it.experts);
  return it;
}

/// Algorithm 1: the rank of each expert of a layer.
std::vector<std::int32_t> lpt_by_hand(const Case& it, std::int32_t layer) {
  std::vector<std::int32_t> order;
  for (std::int32_t e = 0; e < it.experts; ++e) order.push_back(e);
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return std::pair(-it.demand_of(layer, a), a) < std::pair(-it.demand_of(layer, b), b);
  });
  std::vector<std::int64_t> load(static_cast<std::size_t>(it.ranks), 0);
  std::vector<std::int32_t> used(static_cast<std::size_t>(it.ranks), 0);
  std::vector<std::int32_t> rank_of(static_cast<std::size_t>(it.experts), -1);
  for (const std::int32_t e : order) {
    std::int32_t best = -1;
    for (std::int32_t p = 0; p < it.ranks; ++p) {
      if (used[static_cast<std::size_t>(p)] == it.experts / it.ranks) continue;
      if (best < 0 || load[static_cast<std::size_t>(p)] < load[static_cast<std::size_t>(best)]) best = p;
    }
    load[static_cast<std::size_t>(best)] += it.demand_of(layer, e);
    ++used[static_cast<std::size_t>(best)];
    rank_of[static_cast<std::size_t>(e)] = best;
  }
  return rank_of;
}

TEST(Lpt, follows_algorithm_1_with_ties_by_index) {
  for_all(300, [] {
    const Case it = draw_case();
    const Placement placed = place_lpt(it.demand, to_placement(it.current, it.ranks));
    for (std::int32_t l = 0; l < it.layers; ++l) {
      const auto wanted = lpt_by_hand(it, l);
      for (std::int32_t e = 0; e < it.experts; ++e) {
        RC_ASSERT(placed.rank_of(LayerId(l), ExpertId(e)).value() == wanted[static_cast<std::size_t>(e)]);
      }
    }
  });
}

TEST(Lpt, leaves_an_expert_in_its_slot_when_it_stays_on_its_rank) {
  for_all(300, [] {
    const Case it = draw_case();
    const Placement current = to_placement(it.current, it.ranks);
    const Placement placed = place_lpt(it.demand, current);
    RC_ASSERT(count_moves(current, placed).local == 0);
    for (const LayerId l : IdRange<LayerId>(it.layers)) {
      for (std::int32_t p = 0; p < it.ranks; ++p) {
        for (std::int32_t v = p * placed.slots_per_rank(); v < (p + 1) * placed.slots_per_rank(); ++v) {
          const ExpertId e = placed.physical_to_logical()[l][static_cast<std::size_t>(v)];
          if (current.rank_of(l, e).value() == p) RC_ASSERT(current.slot_of(l, e) == v);
        }
      }
    }
  });
}

TEST(Lpt, with_one_slot_per_rank_peaks_at_the_hottest_expert) {
  for_all(100, [] {
    Case it = draw_case();
    it.ranks = it.experts;
    const Placement placed = place_lpt(it.demand, to_placement(it.current, it.ranks));
    const auto load = rank_demand(it.demand, placed);
    for (std::int32_t l = 0; l < it.layers; ++l) {
      std::int64_t hottest = 0;
      std::int64_t peak = 0;
      for (std::int32_t e = 0; e < it.experts; ++e) {
        hottest = std::max(hottest, it.demand_of(l, e));
        peak = std::max(peak, load[static_cast<std::size_t>(l * it.ranks + e)]);
      }
      RC_ASSERT(peak == hottest);
    }
  });
}

TEST(Moves, count_changed_owners_and_changed_slots_apart) {
  for_all(200, [] {
    const Case it = draw_case();
    std::mt19937_64 random(draw_seed());
    const Maps after = random_maps(random, it.layers, it.experts);
    const Moves moves = count_moves(to_placement(it.current, it.ranks), to_placement(after, it.ranks));
    const std::int32_t per_rank = it.experts / it.ranks;
    std::int64_t moved = 0;
    std::int64_t local = 0;
    for (std::size_t l = 0; l < after.size(); ++l) {
      for (std::int32_t to = 0; to < it.experts; ++to) {
        const std::int32_t e = after[l][static_cast<std::size_t>(to)];
        const auto from =
            static_cast<std::int32_t>(std::find(it.current[l].begin(), it.current[l].end(), e) - it.current[l].begin());
        moved += from / per_rank != to / per_rank ? 1 : 0;
        local += from / per_rank == to / per_rank && from != to ? 1 : 0;
      }
    }
    RC_ASSERT(moves.experts == moved);
    RC_ASSERT(moves.local == local);
    RC_ASSERT(moves.fraction == static_cast<double>(moved) / (it.layers * it.experts));
  });
}

TEST(Placement, maps_experts_to_slots_and_back) {
  for_all(200, [] {
    const Case it = draw_case();
    const Placement placement = to_placement(it.current, it.ranks);
    RC_ASSERT(maps_of(placement) == it.current);
    for (const LayerId l : IdRange<LayerId>(it.layers)) {
      for (std::int32_t v = 0; v < it.experts; ++v) {
        const ExpertId e(it.current[l][static_cast<std::size_t>(v)]);
        RC_ASSERT(placement.slot_of(l, e) == v);
        RC_ASSERT(placement.rank_of(l, e).value() == v / placement.slots_per_rank());
        RC_ASSERT(placement.ranks_of_layer(l)[e] == v / placement.slots_per_rank());
      }
    }
  });
}

}  // namespace
}  // namespace routepack::testing
