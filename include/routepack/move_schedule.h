// SPDX-License-Identifier: Apache-2.0
// Which bytes go from where to where when one placement becomes another: integers only, computed by every rank alone.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "routepack/grid_layout.h"
#include "routepack/placement.h"

namespace routepack {

/// How sharded state reaches its lane.
enum class Route {
  TwoHop,  ///< across EP at equal lane, then inside the destination's EDP group (paper, section 3.3)
  Direct,  ///< each intersection straight to its final rank: fewer bytes, but pairs outside EP and EDP groups
};
constexpr auto choices(Route) {
  return std::array{Choice<Route>{"two-hop", Route::TwoHop}, Choice<Route>{"direct", Route::Direct}};
}

/// The smallest unit: what source lane and destination lane share of one tensor of one expert that changes its slot.
/// Of a replicated tensor both lanes are the same and the piece is all of it.
struct Piece {
  LayerId layer;
  ExpertId expert;
  std::int32_t tensor = 0;                  ///< index into GridLayout::tensors()
  std::int32_t from_slot = 0, to_slot = 0;  ///< global slots, p·n + i
  std::int32_t from_lane = 0, to_lane = 0;
  std::int64_t begin = 0, end = 0;  ///< elements of the whole tensor
  friend bool operator==(const Piece&, const Piece&) = default;
};

enum class CopyKind {
  Local,    ///< this rank, live → staging
  Send,     ///< to `peer`, from live (hop 1, or hop 2 of an expert that stays on its rank) or from transit staging
  Receive,  ///< from `peer`, into transit staging (hop 1 of two) or into the place from which it is committed
};

/// One thing that one rank does for one piece.
struct Copy {
  CopyKind kind = CopyKind::Local;
  std::int32_t hop = 1;    ///< 1 or 2; all of hop 1 of a layer before hop 2
  std::int32_t peer = -1;  ///< grid rank; −1 for local copies
  Piece piece;
  bool from_live = false;           ///< Local, Send: read from the live tensor, else from transit staging
  bool to_final = false;            ///< Local, Receive: staged where commit takes it from, else in transit
  std::int64_t source_offset = 0;   ///< bytes into this rank's part of the source slot's tensor; when from_live
  std::int64_t target_offset = 0;   ///< bytes into this rank's part of the destination slot's tensor; when to_final
  std::int64_t staging_offset = 0;  ///< bytes into the layer's staging; a Send from live has none (0)
  std::int64_t bytes = 0;
  friend bool operator==(const Copy&, const Copy&) = default;
};

/// What one rank does in one layer, in order. Between two ranks the sends of one and the receives of the other come in
/// the same order, hop by hop, so that no message needs a name.
struct LayerSchedule {
  LayerId layer;
  std::vector<Copy> copies;        ///< by (hop, expert, tensor, from_lane, to_lane)
  std::int64_t staging_bytes = 0;  ///< a multiple of 64, like all offsets, which lie below it
  std::int64_t transit_bytes = 0;  ///< the part of it that only passes through
  friend bool operator==(const LayerSchedule&, const LayerSchedule&) = default;
};

/// One rank's schedule: the layers in which any rank of the grid moves anything, in order, with empty copies where this
/// rank has nothing to do. O(L·E + pieces of this rank).
/// @throws InvalidInput when placements and layout differ in shape, or the rank is not on the grid
std::vector<LayerSchedule> schedule_moves(const GridLayout& layout, const Placement& from, const Placement& to,
                                          std::int32_t rank, Route route = Route::TwoHop);

/// Bytes and messages by the links that they use. State only: canaries and checksums are in `overhead`.
struct LinkTraffic {
  std::int64_t local = 0;          ///< between slots of one rank, or kept on their lane
  std::int64_t across_ep = 0;      ///< to another EP rank, equal lane
  std::int64_t within_edp = 0;     ///< to another lane of the same EP rank
  std::int64_t across_both = 0;    ///< to another EP rank and another lane (direct route only)
  std::int64_t between_nodes = 0;  ///< the part of the three above that leaves its node
  std::int64_t overhead = 0;       ///< canaries, and 8 bytes of checksum per piece, as far as they leave their rank
  std::int64_t messages = 0;       ///< pieces sent, canaries included; a transport may cut or join them
  friend bool operator==(const LinkTraffic&, const LinkTraffic&) = default;
};

struct RankLoad {
  LinkTraffic out, in;             ///< local bytes are counted in both
  std::int64_t staging_peak = 0;   ///< bytes, the largest layer
  std::int64_t staging_total = 0;  ///< bytes, all layers together (atomic = step)
};

/// Rates for a forecast; bytes per second one way, seconds.
struct LinkRates {
  double across_ep = 0.0, within_edp = 0.0, between_nodes = 0.0, memory = 0.0;
  double message_seconds = 0.0;
};

/// The whole move, known before anything runs.
struct TrafficForecast {
  std::vector<RankLoad> ranks;     ///< [P·edp]
  LinkTraffic total;               ///< sum of `out`
  std::int64_t moved_experts = 0;  ///< whose rank changes
  std::int64_t local_experts = 0;  ///< that only change slot inside their rank
  std::int64_t layers = 0;         ///< with any change
  double seconds = 0.0;            ///< 0 without rates: per layer and hop the busiest rank, summed, plus commit copies
};

/// @param ranks_per_node consecutive grid ranks that share a node; 0: one node
/// @throws InvalidInput as schedule_moves, or for rates that are not positive where traffic needs them
TrafficForecast forecast_traffic(const GridLayout& layout, const Placement& from, const Placement& to,
                                 Route route = Route::TwoHop, std::int32_t ranks_per_node = 0,
                                 const std::optional<LinkRates>& rates = std::nullopt);

}  // namespace routepack
