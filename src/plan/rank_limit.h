// SPDX-License-Identifier: Apache-2.0
// The cap on rank tokens: the only rule that depends on which cells meet, and so the only one that rows must keep.
#pragma once

#include <optional>
#include <variant>

#include "packing/fit.h"
#include "packing/items.h"
#include "routepack/error.h"
#include "routepack/instance.h"
#include "routepack/layout.h"
#include "routepack/params.h"
#include "routepack/placement.h"

namespace routepack {

/// The unit that exceeds max_rank_tokens most all by itself, whatever shares its row.
std::optional<Infeasible> sample_over_rank_limit(const Instance& instance, const Placement& placement,
                                                 const Items& items);

/// Fills the rows; where max_rank_tokens cannot be kept, with more of them. `fitted` becomes what was filled in the
/// end.
std::variant<Layout, Infeasible> fill_with_as_few_rows_as_possible(const Instance& instance, const Placement& placement,
                                                                   const Items& items, FittedCells& fitted,
                                                                   RowOrder order);

}  // namespace routepack
