// SPDX-License-Identifier: Apache-2.0
// Items into cells: how many rows, and what each cell holds. Which row a cell joins is decided later (fill_rows.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "packing/items.h"
#include "packing/row_bound.h"
#include "routepack/error.h"
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

/// R·D cells that respect every rule but max_rank_tokens, none empty.
struct FittedCells {
  std::int64_t rows = 0;
  std::vector<Cell> cells;
};

/// The fewest rows, from `at_least` up, for which a fit is found. Every length class is spread over all cells; when
/// that runs into the cap, a best fit takes over. O(rows tried · N log N).
std::variant<FittedCells, Infeasible> fewest_rows(const Instance& instance, const Items& items,
                                                  const RowBound& at_least);

/// First-fit decreasing: items to the first cell that takes them. Empty when more than `cells` would be needed.
std::optional<std::vector<Cell>> first_fit_decreasing(const Instance& instance, const Items& items, std::int64_t cells);

}  // namespace routepack
