// SPDX-License-Identifier: Apache-2.0
// Karmarkar and Karp's largest differencing method for k sets, as verl, AReaL and slime have it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "packing/peers/bins.h"

namespace routepack::peers {

/// k bins of nearly equal sums, heaviest first; some may be empty. With `equal_counts` each has n / k items (k must
/// divide n). The two partial solutions with the widest spread are merged, largest set on smallest, until one is left;
/// ties by set size, then by the items. Values are positive. O(n·k log k).
Bins karmarkar_karp(std::span<const std::int64_t> values, std::size_t k, bool equal_counts);

/// linear·t + t² per sample, in `work`; false when their sum does not fit 63 bits.
bool work_of(std::span<const std::int64_t> lengths, std::int64_t linear, std::vector<std::int64_t>& work);

}  // namespace routepack::peers
