// SPDX-License-Identifier: Apache-2.0
// Why the cap on rank tokens cannot be kept.
#pragma once

#include <cstdint>
#include <optional>

#include "packing/items.h"
#include "routepack/error.h"
#include "routepack/instance.h"
#include "routepack/placement.h"

namespace routepack {

/// A unit that exceeds max_rank_tokens all by itself, whatever shares its row.
std::optional<Infeasible> sample_over_rank_limit(const Instance& instance, const Placement& placement,
                                                 const Items& items);

/// No number of rows up to `rows` was found to keep max_rank_tokens.
Infeasible rank_limit_unmet(const Instance& instance, std::int64_t rows);

}  // namespace routepack
