// SPDX-License-Identifier: Apache-2.0
// What a grid layout may be at all. Checked before anything is allocated, since the numbers may come from a file.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "routepack/grid_layout.h"

namespace routepack {

inline constexpr std::int64_t kMostGridRanks = (std::int64_t{1} << 15) - 1;
/// Layers · local slots · parameters.
inline constexpr std::int64_t kMostParameterInstances = std::int64_t{1} << 20;
/// Lane ranges of all of them.
inline constexpr std::int64_t kMostLaneRanges = std::int64_t{1} << 21;
/// Bytes on the whole grid, and elements of a buffer, stay below this: sums of them never overflow.
inline constexpr std::int64_t kTooMuch = std::int64_t{1} << 62;

/// @throws InvalidInput that begins with «grid layout: »
[[noreturn]] void refuse_layout(const std::string& what);

/// a·b, or kTooMuch when that is less. Neither is negative.
std::int64_t capped_product(std::int64_t a, std::int64_t b);

/// The grid, the layers, the slots and the parameters.
/// @throws InvalidInput
void check_shape(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots,
                 std::span<const ExpertParameter> parameters);

/// The tensors, canary excluded, once the shape is checked. @throws InvalidInput
void check_tensors(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots,
                   std::span<const ExpertParameter> parameters, std::span<const ExpertTensor> tensors);

/// The canary that every layout has. Its name is taken.
ExpertTensor canary_tensor();

}  // namespace routepack
