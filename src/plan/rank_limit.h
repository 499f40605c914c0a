// SPDX-License-Identifier: Apache-2.0
// The cap on rank tokens: the only rule that depends on which cells meet, and so the only one that rows must keep.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "packing/arrangement.h"
#include "packing/fit.h"
#include "packing/items.h"
#include "packing/unit_loads.h"
#include "routepack/error.h"
#include "routepack/instance.h"

namespace routepack {

/// The unit that exceeds max_rank_tokens most all by itself, whatever shares its row.
std::optional<Infeasible> sample_over_rank_limit(const Instance& instance, const UnitLoads& loads, const Items& items);

/// Fills the rows; where max_rank_tokens cannot be kept, with more of them. `fitted` becomes what was filled in the
/// end. `pad_rates` [L, P] as from pad_rank_rates.
std::variant<Arrangement, Infeasible> fill_with_as_few_rows_as_possible(const Instance& instance,
                                                                        const UnitLoads& loads,
                                                                        std::span<const std::int64_t> pad_rates,
                                                                        const Items& items, FittedCells& fitted);

}  // namespace routepack
