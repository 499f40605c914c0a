// SPDX-License-Identifier: Apache-2.0
// What Megatron's buffers mean for lanes.
#pragma once

#include <cstdint>
#include <vector>

#include "routepack/grid_layout.h"

namespace routepack {

/// The parts of one parameter instance that lanes own, by rising begin (and so by rising lane), in elements of the
/// parameter; appended to `ranges`.
void append_lane_ranges(const BufferSpan& span, std::int32_t edp, std::vector<LaneRange>& ranges);

}  // namespace routepack
