// SPDX-License-Identifier: Apache-2.0
// Cells into rows: similar dense work meets, and ranks that are busy in one cell meet idle ones in another.
#pragma once

#include <cstdint>
#include <optional>

#include "packing/fit.h"
#include "packing/items.h"
#include "routepack/instance.h"
#include "routepack/layout.h"
#include "routepack/params.h"
#include "routepack/placement.h"

namespace routepack {

/// Assigns every cell to a row and a slot. Cells of similar dense work stay within a band of row-shards; inside it each
/// cell joins the one whose J[r, g] it raises least. Where that breaks max_rank_tokens, hot cells are spread first,
/// over all rows. Empty when the limit cannot be kept either way. O(cells · band · L·P) time, without bands only under
/// the limit; O(cells · L·P) memory.
std::optional<Layout> fill_rows(const Instance& instance, const Placement& placement, const Items& items,
                                const FittedCells& fitted, RowOrder order);

/// Routed tokens on the busiest rank when hot cells are spread as evenly as fill_rows knows, whatever the limit.
std::int64_t coolest_peak(const Instance& instance, const Placement& placement, const Items& items,
                          const FittedCells& fitted);

/// The cells in the order they were fitted, row after row: what a packer without routes does.
Layout rows_in_order(const Instance& instance, const Items& items, const FittedCells& fitted);

}  // namespace routepack
