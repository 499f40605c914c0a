// SPDX-License-Identifier: Apache-2.0
#include "packing/reduce.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/integer.h"
#include "packing/heuristics.h"

namespace routepack {
namespace {

BinProblem::Unit unit_of(const Item& item) {
  return {item.totals.aligned, item.count};
}

bool comes_first(const BinProblem::Unit& a, const BinProblem::Unit& b) {
  return a.size != b.size ? a.size > b.size : a.count > b.count;
}

/// Units of samples without routes, together as the cap and the limit on counts allow.
std::vector<std::vector<std::size_t>> together(const BinProblem& limits, const Items& items,
                                               std::vector<std::size_t> routeless) {
  std::ranges::stable_sort(routeless, [&](std::size_t a, std::size_t b) {
    return comes_first(unit_of(items.items[a]), unit_of(items.items[b]));
  });
  BinProblem problem{.capacity = limits.capacity, .max_count = limits.max_count, .units = {}};
  for (const std::size_t index : routeless) problem.units.push_back(unit_of(items.items[index]));
  std::vector<std::vector<std::size_t>> result;
  for (const auto& bin : first_fit_bins(problem)) {
    auto& members = result.emplace_back();
    for (const std::uint32_t u : bin) members.push_back(routeless[u]);
  }
  return result;
}

}  // namespace

Reduced reduce(const Instance& instance, const Items& items, std::span<const std::size_t> wanted,
               RoutelessItems routeless) {
  Reduced reduced;
  std::vector<std::size_t> with_routes;
  std::vector<std::size_t> without_routes;
  std::int64_t divisor = 0;
  for (const std::size_t index : wanted) {
    const Item& item = items.items[index];
    if (item.oversized) {
      reduced.alone.push_back(index);
      continue;
    }
    divisor = std::gcd(divisor, item.totals.aligned);
    (item.without_routes ? without_routes : with_routes).push_back(index);
  }
  BinProblem& problem = reduced.problem;
  problem.capacity = room_of_a_cell(instance);
  if (divisor > 0) problem.capacity = round_down(problem.capacity, divisor);
  if (instance.constraints.max_samples_per_cell > 0) problem.max_count = instance.constraints.max_samples_per_cell;

  std::vector<std::vector<std::size_t>> members;
  // Only when some samples do have routes is there anything to protect them from.
  if (routeless == RoutelessItems::Merged && !with_routes.empty() && without_routes.size() > 1) {
    members = together(problem, items, std::move(without_routes));
    reduced.merged = true;
    for (const std::size_t index : with_routes) members.push_back({index});
  } else {
    for (const std::size_t index : wanted) {
      if (!items.items[index].oversized) members.push_back({index});
    }
  }
  std::vector<std::pair<BinProblem::Unit, std::size_t>> order;
  for (std::size_t n = 0; n < members.size(); ++n) {
    BinProblem::Unit unit{0, 0};
    for (const std::size_t index : members[n]) {
      unit.size += items.items[index].totals.aligned;
      unit.count += items.items[index].count;
    }
    order.emplace_back(unit, n);
  }
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) { return comes_first(a.first, b.first); });
  for (const auto& [unit, n] : order) {
    problem.units.push_back(unit);
    reduced.members.push_back(std::move(members[n]));
  }
  return reduced;
}

Reduced reduce(const Instance& instance, const Items& items) {
  std::vector<std::size_t> all(items.items.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return reduce(instance, items, all, RoutelessItems::Apart);
}

}  // namespace routepack
