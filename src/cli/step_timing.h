// SPDX-License-Identifier: Apache-2.0
// How long a layout takes on a device, for the subcommands that say so.
#pragma once

#include <optional>
#include <string>

#include "cli/options.h"
#include "routepack/simulate.h"

namespace routepack::cli {

/// Takes --device, --model-config or --model and the parallel sizes of a comparison; nothing without a device.
/// @throws IoError, FormatError, InvalidInput
std::optional<StepTiming> step_timing_of(const PlanSetup& setup, const Topology& topology);

/// Where a node has `asked` ranks, or as most machines do.
std::int32_t ranks_per_node_or_default(std::int64_t asked);

}  // namespace routepack::cli
