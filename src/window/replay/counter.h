// SPDX-License-Identifier: Apache-2.0
// Counting one sample.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "routepack/replay.h"

namespace routepack::replay {

/// Adds `extra` to `counts` in proportion to them, by largest remainder (ties by index), so that exactly `extra` is
/// added. Σ counts > 0, and Σ counts and extra are below 2^32.
void spread(std::span<std::uint32_t> counts, std::uint64_t extra);

/// Experts, or slots when ids are physical.
std::int64_t slots_of(const RouteIds& ids, const CountOptions& options);
/// One more than the largest id that the type can hold.
std::int64_t values_of(IdType type);

/// What is wrong with options or shapes, before the first id is read.
/// @throws InvalidInput with `where` in front
void check_options(const SampleRoutes& sample, const CountOptions& options, const std::string& where);

}  // namespace routepack::replay
