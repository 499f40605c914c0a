// SPDX-License-Identifier: Apache-2.0
// How long a layout takes on a device, for the subcommands that say so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/options.h"
#include "routepack/simulate.h"

namespace routepack::cli {

/// What a comparison may say about time beside the options of a plan.
struct StepTimingOptions {
  std::string timing;  ///< a timing file
  std::int64_t tile = 128;
  bool recompute = false;
};

/// Takes --timing, or --device with --model-config or --model and the parallel sizes; nothing without both.
/// @throws UsageError for options that exclude each other; IoError, FormatError, InvalidInput
std::optional<StepTiming> step_timing_of(const PlanSetup& setup, const StepTimingOptions& options,
                                         const Topology& topology);

/// Where a node has `asked` ranks, or as most machines do.
std::int32_t ranks_per_node_or_default(std::int64_t asked);

}  // namespace routepack::cli
