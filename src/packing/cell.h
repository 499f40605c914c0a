// SPDX-License-Identifier: Apache-2.0
// One cell while it is being filled.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "packing/items.h"
#include "routepack/ids.h"
#include "routepack/instance.h"

namespace routepack {

/// The items of one cell (indices into Items::items) and what they add up to.
struct Cell {
  std::vector<std::size_t> items;
  CellTotals totals;
  std::int64_t samples = 0;
  bool closed = false;         ///< holds an oversized sample, takes nothing else
  std::optional<SlotId> slot;  ///< fixed when counts per slot must be equal

  void add(std::size_t index, const Item& item);
  [[nodiscard]] bool accepts(const Item& item, const Instance& instance) const;
};

/// Gives every empty cell the smallest item of the cell with the most items; cells only get lighter by it. False when
/// there are too few items.
bool fill_empty_cells(std::vector<Cell>& cells, const Items& items);

}  // namespace routepack
