// SPDX-License-Identifier: Apache-2.0
#include "plan/blame.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cost/row_cost.h"

namespace routepack {

std::optional<Infeasible> sample_over_rank_limit(const Instance& instance, const Placement& placement,
                                                 const Items& items) {
  const std::int64_t limit = instance.constraints.max_rank_tokens;
  if (limit == 0) return std::nullopt;
  const auto ranks = static_cast<std::size_t>(placement.ranks());
  std::vector<std::int64_t> loads(static_cast<std::size_t>(placement.layers()) * ranks);
  for (const Item& item : items.items) {
    std::ranges::fill(loads, 0);
    for (const SampleId i : items.samples_of(item)) add_rank_loads(instance.window, placement, i, loads);
    const auto worst = std::ranges::max_element(loads);
    if (*worst <= limit) continue;
    const auto at = static_cast<std::size_t>(worst - loads.begin());
    return Infeasible{fmt::format("max_rank_tokens {}: sample {}{} alone puts {} routed tokens on rank {} at layer {}",
                                  limit, items.samples_of(item).front().value(),
                                  item.count > 1 ? " and its atomic group" : "", *worst, at % ranks, at / ranks),
                      fmt::format("--max-rank-tokens {}", *worst)};
  }
  return std::nullopt;
}

Infeasible rank_limit_unmet(const Instance& instance, std::int64_t rows) {
  return {
      fmt::format("max_rank_tokens {}: no layout found below {} rows that keeps every rank within it, and the window "
                  "has too few samples for more rows of {} cells",
                  instance.constraints.max_rank_tokens, rows, instance.topology.slots()),
      "a larger --max-rank-tokens, or fewer slots"};
}

}  // namespace routepack
