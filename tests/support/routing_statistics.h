// SPDX-License-Identifier: Apache-2.0
// What recordings of routing are described by: skew, differences between samples, what rows make of them.
#pragma once

#include <cstdint>
#include <vector>

#include "routepack/placement.h"
#include "routepack/window.h"

namespace routepack::testing {

/// Coefficient of variation of the loads of `ranks` equal blocks of experts in index order; mean over layers.
double identity_cv(const Window& window, std::int32_t ranks);

/// Variance between samples of the share q of tokens that take an expert, over q(1 − q), token noise removed: sums over
/// experts; mean over layers.
double between_sample_variance(const Window& window);

/// Samples of each row, in order.
using Rows = std::vector<std::vector<SampleId>>;

/// First-fit decreasing into cells of `capacity` tokens; each `slots` cells in the order of opening make a row.
Rows decreasing_fit(const Window& window, std::int32_t slots, std::int64_t capacity);

/// The samples, in the given order, cut into as many rows of equal tokens as `slots` cells of `capacity` need.
Rows cut_into_rows(const Window& window, std::vector<SampleId> order, std::int32_t slots, std::int64_t capacity);
std::vector<SampleId> by_falling_length(const Window& window);
std::vector<SampleId> shuffled(const Window& window, std::uint64_t seed);

/// Σ mean rank load / Σ busiest rank load over rows and layers, all slots in one shard.
double efficiency(const Window& window, const Placement& placement, const Rows& rows);
Placement lpt(const Window& window, std::int32_t ranks);

}  // namespace routepack::testing
