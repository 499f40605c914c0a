// SPDX-License-Identifier: Apache-2.0
// One rank's part of a move. Every rank computes its own from the same integers and asks nobody.
#include <fmt/format.h>

#include <array>

#include "core/assert.h"
#include "routepack/error.h"
#include "routepack/move_schedule.h"
#include "transfer/pieces.h"

namespace routepack {
namespace {

using Hops = std::array<std::vector<Copy>, 2>;

void add_copy(const PlacedPiece& placed, const Leg& leg, std::int32_t rank, std::int64_t element, Hops& hops) {
  Copy copy{.hop = leg.hop, .piece = placed.piece, .bytes = placed.bytes};
  const bool sends = leg.from_rank == rank;
  const bool receives = leg.to_rank == rank;
  if (sends != receives) {
    copy.kind = sends ? CopyKind::Send : CopyKind::Receive;
    copy.peer = sends ? leg.to_rank : leg.from_rank;
  }
  copy.from_live = sends && leg.from_live;
  copy.to_final = receives && leg.to_final;
  if (copy.from_live) copy.source_offset = (placed.piece.begin - placed.from_begin) * element;
  if (copy.to_final) copy.target_offset = (placed.piece.begin - placed.to_begin) * element;
  hops[static_cast<std::size_t>(leg.hop - 1)].push_back(copy);
}

/// Final pieces first, then those in transit, which the second hop sends on in the order in which they came.
void place_in_staging(Hops& hops, LayerSchedule& layer) {
  std::int64_t end = 0;
  const auto take = [&](Copy& copy) {
    copy.staging_offset = end;
    end += staged_size(copy.bytes);
  };
  for (auto& hop : hops) {
    for (Copy& copy : hop) {
      if (copy.to_final) take(copy);
    }
  }
  const std::int64_t final_bytes = end;
  auto onward = hops[1].begin();
  const auto passes_on = [](const Copy& copy) { return copy.kind == CopyKind::Send && !copy.from_live; };
  for (Copy& copy : hops[0]) {
    if (copy.kind != CopyKind::Receive || copy.to_final) continue;
    take(copy);
    while (onward != hops[1].end() && !passes_on(*onward)) ++onward;
    ROUTEPACK_ASSERT(onward != hops[1].end() && onward->piece == copy.piece, "a piece in transit that goes nowhere");
    onward->staging_offset = copy.staging_offset;
    ++onward;
  }
  layer.staging_bytes = end;
  layer.transit_bytes = end - final_bytes;
}

}  // namespace

std::vector<LayerSchedule> schedule_moves(const GridLayout& layout, const Placement& from, const Placement& to,
                                          std::int32_t rank, Route route) {
  check_move(layout, from, to);
  const ExpertGrid& grid = layout.grid();
  if (rank < 0 || rank >= grid.ranks()) {
    throw InvalidInput(fmt::format("rank: found {}, wanted 0 to {}", rank, grid.ranks() - 1));
  }
  const std::int32_t slots = layout.slots();
  std::vector<std::int64_t> element;  // bytes
  for (const ExpertTensor& tensor : layout.tensors()) element.push_back(bytes_of(tensor.type));

  std::vector<LayerSchedule> schedule;
  std::vector<SlotChange> changes;
  PieceCutter cutter(layout);
  Hops hops;
  for (const LayerId l : IdRange<LayerId>(layout.layers())) {
    find_changes(from, to, l, changes);
    if (changes.empty()) continue;
    for (auto& hop : hops) hop.clear();
    for (const SlotChange& change : changes) {
      const std::int32_t here = grid.ep_rank(rank);
      if (change.from_slot / slots != here && change.to_slot / slots != here) continue;
      for (const PlacedPiece& placed : cutter.cut(l, change, grid.lane(rank))) {
        for (const Leg& leg : legs_of(grid, slots, placed.piece, route)) {
          if (leg.from_rank != rank && leg.to_rank != rank) continue;
          add_copy(placed, leg, rank, element[static_cast<std::size_t>(placed.piece.tensor)], hops);
        }
      }
    }
    LayerSchedule& layer = schedule.emplace_back();
    layer.layer = l;
    place_in_staging(hops, layer);
    layer.copies.reserve(hops[0].size() + hops[1].size());
    for (const auto& hop : hops) layer.copies.insert(layer.copies.end(), hop.begin(), hop.end());
  }
  return schedule;
}

}  // namespace routepack
