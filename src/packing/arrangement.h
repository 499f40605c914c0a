// SPDX-License-Identifier: Apache-2.0
// Cells at their places: what every seed is and every search starts from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "packing/cell.h"
#include "packing/items.h"
#include "routepack/instance.h"
#include "routepack/layout.h"

namespace routepack {

/// R·D filled cells; cells[r·D + d] is trained at row r on slot d.
struct Arrangement {
  std::int64_t rows = 0;
  std::vector<Cell> cells;
};

/// The samples of each cell in rising order, rows as given.
Layout to_layout(const Instance& instance, const Items& items, const Arrangement& arrangement);

}  // namespace routepack
