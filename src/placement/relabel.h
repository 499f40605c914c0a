// SPDX-License-Identifier: Apache-2.0
// The same partition of experts with ranks renamed so that most experts stay where they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "routepack/placement.h"

namespace routepack {

/// For a square table of values, [n, n], the column for each row so that the sum of values is largest; of equal sums,
/// always the same one. Hungarian method, O(n³).
std::vector<std::int32_t> best_assignment(std::span<const std::int64_t> values, std::int32_t n);

/// Per layer, the groups of experts that share a rank in `wanted` on the ranks where most of them are at home; of equal
/// choices one with the most movers inside their node (`ranks_per_node` 0: one node). Who stays keeps its slot,
/// newcomers their local index where they can. No score depends on the names of ranks.
/// @throws InvalidInput when the placements differ in shape
Placement relabel(const Placement& wanted, const Placement& home, std::int32_t ranks_per_node = 0);

}  // namespace routepack
