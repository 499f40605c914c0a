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

/// The largest of: bins for the aligned lengths and samples per cell (bin_bound.h; equation 9 is its weakest part), the
/// slot that must hold the most tokens when counts are equal, rank tokens under the placement whose rank demand [L, P]
/// is given, min_rows, pipeline stages; rounded up to row_multiple. At most some million steps.
RowBound row_bound(const Instance& instance, const Items& items, std::span<const std::int64_t> rank_demand);

}  // namespace routepack
