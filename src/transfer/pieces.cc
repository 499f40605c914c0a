// SPDX-License-Identifier: Apache-2.0
#include "transfer/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/integer.h"
#include "routepack/error.h"

namespace routepack {
namespace {

constexpr std::int64_t kStagingAlignment = 64;

void check_placement(const GridLayout& layout, const Placement& placement, std::string_view which) {
  if (placement.layers() == layout.layers() && placement.experts() == layout.experts() &&
      placement.ranks() == layout.grid().ep) {
    return;
  }
  throw InvalidInput(
      fmt::format("placement {} the move: found {} layers, {} experts, ep {}; wanted {}, {} and {}, as "
                  "the grid layout has",
                  which, placement.layers(), placement.experts(), placement.ranks(), layout.layers(), layout.experts(),
                  layout.grid().ep));
}

}  // namespace

void find_changes(const Placement& from, const Placement& to, LayerId layer, std::vector<SlotChange>& changes) {
  changes.clear();
  if (from.physical_to_logical()[layer] == to.physical_to_logical()[layer]) return;
  for (const ExpertId e : IdRange<ExpertId>(from.experts())) {
    const std::int32_t before = from.slot_of(layer, e);
    const std::int32_t after = to.slot_of(layer, e);
    if (before != after) changes.push_back({e, before, after});
  }
}

std::span<const PlacedPiece> PieceCutter::cut(LayerId layer, const SlotChange& change,
                                              std::optional<std::int32_t> lane) {
  pieces_.clear();
  Piece piece{.layer = layer, .expert = change.expert, .from_slot = change.from_slot, .to_slot = change.to_slot};
  const auto tensors = layout_.tensors();
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    piece.tensor = static_cast<std::int32_t>(t);
    switch (tensors[t].spread) {
      case Spread::Replicated:
        piece.end = tensors[t].elements;
        cut_whole(piece, lane, tensors[t].bytes());
        break;
      case Spread::Sharded:
        cut_sharded(piece, tensors[t], lane);
        break;
      case Spread::Equal:
        break;
    }
  }
  return pieces_;
}

void PieceCutter::cut_whole(const Piece& piece, std::optional<std::int32_t> lane, std::int64_t bytes) {
  const std::int32_t first = lane.value_or(0);
  const std::int32_t last = lane.value_or(layout_.grid().edp - 1);
  for (std::int32_t k = first; k <= last; ++k) {
    PlacedPiece& placed = pieces_.emplace_back(PlacedPiece{.piece = piece, .bytes = bytes});
    placed.piece.from_lane = placed.piece.to_lane = k;
  }
}

void PieceCutter::cut_sharded(Piece piece, const ExpertTensor& tensor, std::optional<std::int32_t> lane) {
  const std::int32_t slots = layout_.slots();
  const auto sources = layout_.lanes_of(piece.layer, piece.from_slot % slots, *tensor.parameter);
  const auto targets = layout_.lanes_of(piece.layer, piece.to_slot % slots, *tensor.parameter);
  const std::int64_t size = bytes_of(tensor.type);
  const std::size_t first = pieces_.size();
  // Two partitions of the same elements, both by rising begin.
  for (std::size_t a = 0, b = 0; a < sources.size() && b < targets.size();) {
    const LaneRange& source = sources[a];
    const LaneRange& target = targets[b];
    if (!lane || source.lane == *lane || target.lane == *lane) {
      piece.from_lane = source.lane;
      piece.to_lane = target.lane;
      piece.begin = std::max(source.begin, target.begin);
      piece.end = std::min(source.end, target.end);
      pieces_.push_back({.piece = piece,
                         .from_begin = source.begin,
                         .to_begin = target.begin,
                         .bytes = (piece.end - piece.begin) * size});
    }
    if (source.end <= target.end) ++a;
    if (target.end <= source.end) ++b;
  }
  // Megatron's lanes rise with the elements; explicit ones need not.
  const auto lanes = [](const PlacedPiece& p) { return std::pair(p.piece.from_lane, p.piece.to_lane); };
  const auto added = std::span(pieces_).subspan(first);
  if (!std::ranges::is_sorted(added, {}, lanes)) std::ranges::sort(added, {}, lanes);
}

Legs legs_of(const ExpertGrid& grid, std::int32_t slots, const Piece& piece, Route route) {
  const std::int32_t p = piece.from_slot / slots;
  const std::int32_t q = piece.to_slot / slots;
  const std::int32_t source = grid.rank(p, piece.from_lane);
  const std::int32_t target = grid.rank(q, piece.to_lane);
  if (route == Route::Direct || piece.from_lane == piece.to_lane) return {{Leg{1, source, target, true, true}, {}}, 1};
  if (p == q) return {{Leg{2, source, target, true, true}, {}}, 1};
  const std::int32_t between = grid.rank(q, piece.from_lane);
  return {{Leg{1, source, between, true, false}, Leg{2, between, target, false, true}}, 2};
}

std::int64_t staged_size(std::int64_t bytes) {
  return round_up(bytes, kStagingAlignment);
}

void check_move(const GridLayout& layout, const Placement& from, const Placement& to) {
  check_placement(layout, from, "before");
  check_placement(layout, to, "after");
}

}  // namespace routepack
