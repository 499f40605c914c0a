// SPDX-License-Identifier: Apache-2.0
// The score of a plan, row-shards side by side.
#pragma once

#include "exec/executor.h"
#include "routepack/instance.h"
#include "routepack/layout.h"
#include "routepack/placement.h"
#include "routepack/score.h"

namespace routepack {

/// evaluate() of routepack/score.h. Where processes hold parts of the counts, all of them call it together.
Evaluation evaluate(const Instance& instance, const Placement& placement, const Layout& layout, Executor& executor);

/// Processes that hold parts of a window's counts have to hold all of them together, each sample once. All call it.
/// @throws InvalidInput in all of them
void require_all_counts(const Window& window, Executor& executor);

}  // namespace routepack
