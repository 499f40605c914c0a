// SPDX-License-Identifier: Apache-2.0
// From «which rank» to «which slot».
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "routepack/placement.h"

namespace routepack {

/// The placement that puts each expert on `rank_of`, [L, E], H per rank, disturbing the slots of `home` least: who is
/// on its home rank keeps its slot; a newcomer gets the vacated slot with its own local index where there is one, so
/// that its optimizer state needs no re-partition (as many as possible do), the others fill the gaps in order.
Placement fill_slots(const Placement& home, std::span<const std::int32_t> rank_of);

/// The rank of every expert, [L, E].
std::vector<std::int32_t> ranks_of(const Placement& placement);

}  // namespace routepack
