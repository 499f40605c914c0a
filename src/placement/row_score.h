// SPDX-License-Identifier: Apache-2.0
// The score of a placement from row loads alone, equal to evaluate() of the layout they came from to the last bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/row_loads.h"
#include "routepack/score.h"

namespace routepack {

/// J [R·G] from the busiest rank's load of each layer and row-shard, [L, R·G], in the order of docs/mathematics.md.
std::vector<double> joint_cost(const RowLoads& rows, std::span<const std::int64_t> peaks);

/// The score when the experts, [L, E], are on these ranks; from scratch, O(L·E·R·G).
Score score_rows(const RowLoads& rows, std::span<const std::int32_t> rank_of);

}  // namespace routepack
