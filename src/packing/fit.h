// SPDX-License-Identifier: Apache-2.0
// Items into cells: how many rows, and what each cell holds. Which row a cell joins is decided later (fill_rows.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "packing/cell.h"
#include "packing/items.h"
#include "packing/row_bound.h"
#include "routepack/error.h"
#include "routepack/instance.h"

namespace routepack {

/// R·D cells that respect every rule but max_rank_tokens, none empty.
struct FittedCells {
  std::int64_t rows = 0;
  std::vector<Cell> cells;
  /// `at_least`, or more rows when the search proved that so few do not suffice. The rows are certified when equal.
  RowBound bound = {};
};

/// The fewest rows, from `at_least` up, for which a fit is found. At each row count every length class is spread over
/// all cells if possible; searches for few cells run only where that and simple fits fail at the bound (docs/rows.md).
/// The work is limited by counted steps: about 50 ms beyond O(N log N) per row count tried.
std::variant<FittedCells, Infeasible> fewest_rows(const Instance& instance, const Items& items,
                                                  const RowBound& at_least);

/// First-fit decreasing: items to the first cell that takes them. Empty when more than `cells` would be needed.
std::optional<std::vector<Cell>> first_fit_decreasing(const Instance& instance, const Items& items, std::int64_t cells);

}  // namespace routepack
