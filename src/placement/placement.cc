// SPDX-License-Identifier: Apache-2.0
#include "routepack/placement.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "routepack/error.h"

namespace routepack {
namespace {

void check_shape(std::size_t layers, std::size_t experts, std::int32_t ranks, const std::string& where) {
  if (layers == 0)
    throw InvalidInput(fmt::format("{}: physical_to_logical: found no layers, wanted at least one", where));
  if (experts == 0) {
    throw InvalidInput(fmt::format("{}: physical_to_logical[0]: found no experts, wanted at least one", where));
  }
  constexpr auto kMax = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
  if (layers > kMax / experts) {
    throw InvalidInput(fmt::format("{}: physical_to_logical: found {} layers of {} experts, wanted at most {} entries",
                                   where, layers, experts, kMax));
  }
  if (ranks < 1) throw InvalidInput(fmt::format("{}: ep: found {}, wanted at least 1", where, ranks));
  if (experts % static_cast<std::size_t>(ranks) != 0) {
    throw InvalidInput(fmt::format("{}: found {} experts on ep = {} ranks, wanted an ep that divides the experts",
                                   where, experts, ranks));
  }
}

/// The slot of each expert of one layer.
std::vector<std::int32_t> invert(const std::vector<ExpertId>& expert_in_slot, const std::string& where) {
  const std::size_t experts = expert_in_slot.size();
  std::vector<std::int32_t> slot_of(experts, -1);
  for (std::size_t slot = 0; slot < experts; ++slot) {
    const ExpertId e = expert_in_slot[slot];
    if (e.value() < 0 || e >= experts) {
      throw InvalidInput(
          fmt::format("{}: found expert {} in slot {}, wanted 0 to {}", where, e.value(), slot, experts - 1));
    }
    if (slot_of[e] >= 0) {
      throw InvalidInput(
          fmt::format("{}: expert {} occurs twice (slots {} and {})", where, e.value(), slot_of[e], slot));
    }
    slot_of[e] = static_cast<std::int32_t>(slot);
  }
  return slot_of;
}

}  // namespace

Placement Placement::identity(std::int32_t layers, std::int32_t experts, std::int32_t ranks) {
  if (layers < 1 || experts < 1) {
    throw InvalidInput(
        fmt::format("placement: found {} layers of {} experts, wanted at least one of each", layers, experts));
  }
  check_shape(static_cast<std::size_t>(layers), static_cast<std::size_t>(experts), ranks, "placement");
  std::vector<ExpertId> map;
  for (const ExpertId e : IdRange<ExpertId>(experts)) map.push_back(e);
  return from_maps(ranks, std::vector(static_cast<std::size_t>(layers), map));
}

Placement Placement::from_maps(std::int32_t ranks, std::vector<std::vector<ExpertId>> physical_to_logical,
                               const std::string& where) {
  const std::size_t layers = physical_to_logical.size();
  const std::size_t experts = layers == 0 ? 0 : physical_to_logical[0].size();
  check_shape(layers, experts, ranks, where);
  Placement placement;
  placement.ranks_ = ranks;
  placement.experts_ = static_cast<std::int32_t>(experts);
  placement.slot_of_.reserve(layers * experts);
  placement.rank_of_.reserve(layers * experts);
  for (std::size_t l = 0; l < layers; ++l) {
    const std::string where_layer = fmt::format("{}: physical_to_logical[{}]", where, l);
    if (physical_to_logical[l].size() != experts) {
      throw InvalidInput(fmt::format("{}: found {} experts, wanted {}, as in physical_to_logical[0]", where_layer,
                                     physical_to_logical[l].size(), experts));
    }
    for (const std::int32_t slot : invert(physical_to_logical[l], where_layer)) {
      placement.slot_of_.push_back(slot);
      placement.rank_of_.push_back(slot / placement.slots_per_rank());
    }
  }
  placement.physical_to_logical_ = std::move(physical_to_logical);
  return placement;
}

Moves count_moves(const Placement& from, const Placement& to) {
  if (from.layers() != to.layers() || from.experts() != to.experts() || from.ranks() != to.ranks()) {
    throw InvalidInput(
        fmt::format("placement: found {} layers, {} experts, ep {}; wanted {}, {} and {}, as before the move",
                    to.layers(), to.experts(), to.ranks(), from.layers(), from.experts(), from.ranks()));
  }
  Moves moves;
  for (const LayerId l : IdRange<LayerId>(from.layers())) {
    for (const ExpertId e : IdRange<ExpertId>(from.experts())) {
      if (from.rank_of(l, e) != to.rank_of(l, e)) {
        ++moves.experts;
      } else if (from.slot_of(l, e) != to.slot_of(l, e)) {
        ++moves.local;
      }
    }
  }
  moves.fraction = static_cast<double>(moves.experts) / (static_cast<double>(from.layers()) * from.experts());
  return moves;
}

}  // namespace routepack
