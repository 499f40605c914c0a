// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "core/assert.h"
#include "routepack/placement.h"

namespace routepack {
namespace {

/// Algorithm 1 of the paper on one layer: the rank of each expert.
std::vector<std::size_t> balance(std::span<const std::int64_t> loads, std::size_t ranks) {
  const std::size_t per_rank = loads.size() / ranks;
  std::vector<std::size_t> by_load(loads.size());
  std::iota(by_load.begin(), by_load.end(), std::size_t{0});
  std::ranges::stable_sort(by_load, [&](std::size_t a, std::size_t b) { return loads[a] > loads[b]; });

  std::vector<std::size_t> rank_of(loads.size());
  std::vector<std::int64_t> rank_load(ranks, 0);
  std::vector<std::size_t> taken(ranks, 0);
  for (const std::size_t expert : by_load) {
    std::size_t best = ranks;
    for (std::size_t p = 0; p < ranks; ++p) {
      if (taken[p] < per_rank && (best == ranks || rank_load[p] < rank_load[best])) best = p;
    }
    rank_of[expert] = best;
    rank_load[best] += loads[expert];
    ++taken[best];
  }
  return rank_of;
}

/// Slots for a layer: who stays on its rank keeps its slot, newcomers fill the gaps in order of their number.
std::vector<ExpertId> assign_slots(std::span<const std::size_t> rank_of, const Placement& current, LayerId l) {
  const auto& before = current.physical_to_logical()[l];
  const auto per_rank = static_cast<std::size_t>(current.slots_per_rank());
  constexpr std::int32_t kFree = -1;
  std::vector<std::int32_t> slots(before.size(), kFree);
  std::vector<std::vector<ExpertId>> newcomers(static_cast<std::size_t>(current.ranks()));
  for (const ExpertId e : IdRange<ExpertId>(current.experts())) {
    if (current.rank_of(l, e) == rank_of[e]) {
      slots[static_cast<std::size_t>(current.slot_of(l, e))] = e.value();
    } else {
      newcomers[rank_of[e]].push_back(e);
    }
  }
  std::vector<ExpertId> experts;
  for (std::size_t v = 0; v < slots.size(); ++v) {
    auto& waiting = newcomers[v / per_rank];
    if (slots[v] != kFree) {
      experts.emplace_back(slots[v]);
    } else {
      ROUTEPACK_ASSERT(!waiting.empty(), "a rank got fewer experts than it has slots");
      experts.push_back(waiting.front());
      waiting.erase(waiting.begin());
    }
  }
  return experts;
}

}  // namespace

Placement place_lpt(std::span<const std::int64_t> demand, const Placement& current) {
  const auto experts = static_cast<std::size_t>(current.experts());
  ROUTEPACK_ASSERT(demand.size() == experts * static_cast<std::size_t>(current.layers()), "demand has another shape");
  std::vector<std::vector<ExpertId>> maps;
  for (const LayerId l : IdRange<LayerId>(current.layers())) {
    const auto rank_of = balance(demand.subspan(l * experts, experts), static_cast<std::size_t>(current.ranks()));
    maps.push_back(assign_slots(rank_of, current, l));
  }
  return Placement::from_maps(current.ranks(), std::move(maps));
}

}  // namespace routepack
