// SPDX-License-Identifier: Apache-2.0
// Cells into rows: similar dense work meets, and ranks that are busy in one cell meet idle ones in another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "packing/arrangement.h"
#include "packing/fit.h"
#include "packing/items.h"
#include "packing/row_table.h"
#include "packing/unit_loads.h"
#include "routepack/instance.h"
#include "routepack/layout.h"

namespace routepack {

/// Assigns every cell to a row and a slot. Cells of similar dense work stay within a band of row-shards (row_table.h);
/// inside it each cell joins the one whose J[r, g] it raises least. Where that breaks max_rank_tokens, hot cells are
/// spread first, over all rows. Empty when the limit cannot be kept either way. `pad_rates` [L, P] as from
/// pad_rank_rates. O(cells · band · L·P) time, without bands only under the limit; O(cells · L·P) memory.
std::optional<Arrangement> fill_rows(const Instance& instance, const UnitLoads& loads,
                                     std::span<const std::int64_t> pad_rates, const FittedCells& fitted);

/// Routed tokens on the busiest rank when hot cells are spread as evenly as fill_rows knows, whatever the limit.
std::int64_t coolest_peak(const Instance& instance, const UnitLoads& loads, std::span<const std::int64_t> pad_rates,
                          const FittedCells& fitted);

/// Row-shards of equally large shards may change places when no cell is bound to a slot. With one meeting per step the
/// slowest shard gets the lightest; with a meeting in every row, equals meet. Nothing happens when counts must be
/// equal.
void settle_shards(const Instance& instance, RowTable& full_table);

/// An order of rows for pipelines, from J [R, G]: light rows at both ends, heavy ones in the middle, since a pipeline
/// fills and drains through the ends. A row weighs as much as its heaviest shard.
std::vector<std::size_t> pipeline_order(std::span<const double> joint, std::int64_t rows);

/// The rows order[0], order[1], … of an arrangement.
Arrangement with_rows_in(Arrangement arrangement, std::span<const std::size_t> order);

/// The cells in the order they were fitted, row after row: what a packer without routes does.
Layout rows_in_order(const Instance& instance, const Items& items, const FittedCells& fitted);

}  // namespace routepack
