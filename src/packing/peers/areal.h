// SPDX-License-Identifier: Apache-2.0
// What AReaL's two packers share: the split over slots, and the agreement on one number of cells.
#pragma once

#include <functional>
#include <variant>

#include "packing/peers/bins.h"

namespace routepack::peers::areal {

/// At least `min_groups` bins of the lengths of one slot; bins hold indices into them.
using Allocate = std::variant<Bins, Infeasible> (*)(const Lengths& lengths, const std::vector<std::int64_t>& of_slot,
                                                    std::size_t min_groups);

/// By falling length to the cell with the fewest samples that holds it; a new cell below `min_groups`, or when the
/// emptiest cell is too full. Passes with more cells until row_multiple divides their number.
std::variant<Bins, Infeasible> allocate_ffd(const Lengths& lengths, const std::vector<std::int64_t>& of_slot,
                                            std::size_t min_groups);

/// Splits the samples, packs every slot, and repeats with the most cells until all slots have as many.
Packed pack(const Lengths& lengths, Allocate allocate);

}  // namespace routepack::peers::areal
