// SPDX-License-Identifier: Apache-2.0
#include "placement/slots.h"

#include <utility>
#include <vector>

#include "core/assert.h"

namespace routepack {
namespace {

constexpr std::int32_t kFree = -1;

/// The expert in each slot of one layer.
std::vector<std::int32_t> fill_layer(const Placement& home, LayerId l, std::span<const std::int32_t> rank_of) {
  const std::int32_t per_rank = home.slots_per_rank();
  std::vector<std::int32_t> slots(rank_of.size(), kFree);
  std::vector<ExpertId> newcomers;
  for (const ExpertId e : IdRange<ExpertId>(home.experts())) {
    if (home.rank_of(l, e).value() == rank_of[e]) {
      slots[static_cast<std::size_t>(home.slot_of(l, e))] = e.value();
    } else {
      newcomers.push_back(e);
    }
  }
  const auto at_slot = [per_rank](std::int32_t rank, std::int32_t index) {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(per_rank) + static_cast<std::size_t>(index);
  };
  std::vector<ExpertId> others;
  for (const ExpertId e : newcomers) {
    const std::int32_t index = home.slot_of(l, e) % per_rank;
    std::int32_t& slot = slots[at_slot(rank_of[e], index)];
    if (slot == kFree) {
      slot = e.value();
    } else {
      others.push_back(e);
    }
  }
  std::vector<std::int32_t> gap(static_cast<std::size_t>(home.ranks()), 0);
  for (const ExpertId e : others) {
    const std::int32_t rank = rank_of[e];
    std::int32_t& at = gap[static_cast<std::size_t>(rank)];
    while (at < per_rank && slots[at_slot(rank, at)] != kFree) ++at;
    ROUTEPACK_ASSERT(at < per_rank, "a rank got more experts than it has slots");
    slots[at_slot(rank, at)] = e.value();
  }
  return slots;
}

}  // namespace

Placement fill_slots(const Placement& home, std::span<const std::int32_t> rank_of) {
  const auto experts = static_cast<std::size_t>(home.experts());
  ROUTEPACK_ASSERT(rank_of.size() == experts * static_cast<std::size_t>(home.layers()), "ranks have another shape");
  std::vector<std::vector<ExpertId>> maps;
  for (const LayerId l : IdRange<LayerId>(home.layers())) {
    const auto slots = fill_layer(home, l, rank_of.subspan(l * experts, experts));
    maps.emplace_back(slots.begin(), slots.end());
  }
  return Placement::from_maps(home.ranks(), std::move(maps));
}

std::vector<std::int32_t> ranks_of(const Placement& placement) {
  std::vector<std::int32_t> ranks;
  for (const LayerId l : IdRange<LayerId>(placement.layers())) {
    const auto layer = placement.ranks_of_layer(l);
    ranks.insert(ranks.end(), layer.begin(), layer.end());
  }
  return ranks;
}

}  // namespace routepack
