// SPDX-License-Identifier: Apache-2.0
// What every cell, rank and layer has to do in a step: all that a timeline needs to know of window, plan and layout.
#pragma once

#include <cstdint>
#include <vector>

#include "routepack/instance.h"
#include "routepack/layout.h"
#include "routepack/placement.h"

namespace routepack {

struct CellLoad {
  double tokens = 0.0;   ///< Σ t
  double squares = 0.0;  ///< Σ t²
};

/// What an EP rank does in one row and layer.
struct RankWork {
  std::int64_t tokens = 0;    ///< W, padding among them
  std::int64_t computed = 0;  ///< every expert's load as the next multiple of the tile
  std::int64_t active = 0;    ///< experts with load
};

struct StepLoads {
  std::int32_t rows = 0, slots = 0, shards = 0, layers = 0, ranks = 0;
  std::vector<CellLoad> cells = {};     ///< [R, D]
  std::vector<std::int64_t> sent = {};  ///< [R, D, L] routed tokens of the cell
  std::vector<RankWork> rank = {};      ///< [R, G, L, P]

  [[nodiscard]] std::size_t cell_index(std::int32_t row, SlotId d) const {
    return static_cast<std::size_t>(std::int64_t{row} * slots + d.value());
  }
  [[nodiscard]] const RankWork* ranks_of(std::int32_t row, ShardId g, std::int32_t layer) const {
    return rank.data() + ((std::int64_t{row} * shards + g.value()) * layers + layer) * ranks;
  }
};

/// O(N·L·E). Padding joins the ranks' loads as in the score; it is not rounded to tiles.
/// @throws InvalidInput when the shapes disagree
StepLoads step_loads(const Instance& instance, const Placement& placement, const Layout& layout, std::int64_t tile);

}  // namespace routepack
