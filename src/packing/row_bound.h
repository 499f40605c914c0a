// SPDX-License-Identifier: Apache-2.0
// Fewer rows than this cannot hold the window.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "packing/items.h"
#include "routepack/instance.h"

namespace routepack {

struct RowBound {
  std::int64_t rows = 1;
  std::string because;  ///< the rule that binds, for messages
};

/// The largest of: the token bound (equation 9 on aligned lengths, sharpened for items over half a cell), sample counts
/// per cell, rank tokens under the placement whose rank demand [L, P] is given, min_rows, pipeline stages; rounded up
/// to row_multiple. O(items).
RowBound row_bound(const Instance& instance, const Items& items, std::span<const std::int64_t> rank_demand);

}  // namespace routepack
