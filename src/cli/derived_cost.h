// SPDX-License-Identifier: Apache-2.0
// The cost of a plan: a cost file, or what the model's configuration or preset says.
#pragma once

#include <string>

#include "cli/options.h"
#include "routepack/cost.h"
#include "routepack/window.h"

namespace routepack::cli {

/// From --cost, --model-config or --model, in this order; --cap and the parallel sizes are known by now.
/// @throws UsageError when none is given, or two that exclude each other; IoError, FormatError, InvalidInput
CostModel cost_of(const PlanSetup& setup);

/// What was derived from a model, in one line; empty for a cost file.
std::string describe_derived_cost(const PlanSetup& setup);

/// Holds the window against the model that the cost is derived from.
/// @throws InvalidInput when they have different layers or experts
void require_fits_model(const PlanSetup& setup, const Window& window, const std::string& where);

}  // namespace routepack::cli
