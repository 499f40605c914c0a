// SPDX-License-Identifier: Apache-2.0
// What a move is made of: experts that change their slot, the pieces of their state, and the legs that a piece travels.
// Schedules and forecasts both read it from here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "routepack/grid_layout.h"
#include "routepack/move_schedule.h"

namespace routepack {

/// An expert of a layer that another slot holds after the move. Slots are global, p·n + i.
struct SlotChange {
  ExpertId expert;
  std::int32_t from_slot = 0, to_slot = 0;
};

/// Refills `changes` with those of a layer, by expert.
void find_changes(const Placement& from, const Placement& to, LayerId layer, std::vector<SlotChange>& changes);

/// A piece, and where the parts of its two lanes begin in the whole tensor.
struct PlacedPiece {
  Piece piece;
  std::int64_t from_begin = 0, to_begin = 0;  ///< elements
  std::int64_t bytes = 0;
};

/// Cuts the state of one expert after the other. Keeps its buffers.
class PieceCutter {
 public:
  explicit PieceCutter(const GridLayout& layout) : layout_(layout) {}

  /// The pieces by (tensor, from_lane, to_lane), those of `lane` at either end or all. Valid until the next call.
  std::span<const PlacedPiece> cut(LayerId layer, const SlotChange& change, std::optional<std::int32_t> lane);

 private:
  void cut_whole(const Piece& piece, std::optional<std::int32_t> lane, std::int64_t bytes);
  void cut_sharded(Piece piece, const ExpertTensor& tensor, std::optional<std::int32_t> lane);

  const GridLayout& layout_;
  std::vector<PlacedPiece> pieces_;
};

/// One trip of a piece between two ranks; inside one rank it is a local copy.
struct Leg {
  std::int32_t hop = 1;
  std::int32_t from_rank = 0, to_rank = 0;
  bool from_live = true;  ///< else out of transit staging
  bool to_final = true;   ///< else into transit staging
};

/// One leg, or two when a piece changes EP rank and lane over two hops.
struct Legs {
  std::array<Leg, 2> legs;
  std::size_t count = 0;
  [[nodiscard]] const Leg* begin() const { return legs.data(); }
  [[nodiscard]] const Leg* end() const { return legs.data() + count; }
};
Legs legs_of(const ExpertGrid& grid, std::int32_t slots, const Piece& piece, Route route);

/// What a staged piece of so many bytes takes.
std::int64_t staged_size(std::int64_t bytes);

/// @throws InvalidInput when placements and layout differ in shape
void check_move(const GridLayout& layout, const Placement& from, const Placement& to);

}  // namespace routepack
