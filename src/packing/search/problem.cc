// SPDX-License-Identifier: Apache-2.0
#include "packing/search/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/integer.h"
#include "cost/kernels/exchange.h"
#include "cost/row_cost.h"
#include "routepack/error.h"

namespace routepack::search {
namespace {

bool power_of_two(double value) {
  int exponent = 0;
  return value > 0.0 && std::frexp(value, &exponent) == 0.5;
}

/// Σ over all items, in lanes: no row-shard receives more.
std::vector<std::int64_t> demand_in_lanes(const UnitLoads& loads) {
  const std::size_t lanes = loads.shape().lanes();
  std::vector<std::int64_t> demand(lanes);
  const auto add = [&](const auto* item) {
    for (std::size_t at = 0; at < lanes; ++at) demand[at] += item[at];
  };
  for (std::size_t item = 0; item < loads.items(); ++item) {
    if (loads.narrow()) {
      add(loads.narrow(item));
    } else {
      add(loads.wide(item));
    }
  }
  return demand;
}

/// Padding tokens of any layout together.
std::int64_t most_pads(const Problem& problem) {
  std::int64_t pads = 0;
  for (const ItemFacts& item : problem.facts) pads += item.aligned - item.tokens;
  return pads + static_cast<std::int64_t>(problem.cells()) * (problem.instance.constraints.cell_multiple - 1);
}

/// An upper bound of Σ J of any layout: every cell the slowest of its row-shard, every rank the busiest.
double largest_total(const Problem& problem, std::span<const std::int64_t> demand) {
  CellTotals all;
  for (const ItemFacts& item : problem.facts) {
    all.tokens += item.tokens;
    all.squares += item.squares;
  }
  double total = 0.0;
  for (const Stage& stage : problem.instance.cost.stages()) {
    total += stage_work(stage, all, problem.instance.capacity);
  }
  const LaneShape& shape = problem.loads.shape();
  const double pads = static_cast<double>(most_pads(problem)) / 65536.0 + 1.0;
  for (std::size_t l = 0; l < shape.layers(); ++l) {
    for (std::size_t p = 0; p < shape.ranks(); ++p) {
      const std::size_t lane = shape.lane(l, p);
      double load = static_cast<double>(demand[lane]);
      if (!problem.pad_rates.empty()) load += pads * static_cast<double>(problem.pad_rates[lane]);
      total += problem.layer_weights[l] * load / problem.capacity;
    }
  }
  return total;
}

}  // namespace

Problem::Problem(const Instance& given, const Placement& where, const Items& all_items, const UnitLoads& unit_loads,
                 std::int64_t row_count)
    : instance(given),
      placement(where),
      items(all_items),
      loads(unit_loads),
      rows(static_cast<std::size_t>(row_count)),
      slots(static_cast<std::size_t>(given.topology.slots())),
      shards(static_cast<std::size_t>(given.topology.shards())),
      room(room_of_a_cell(given)),
      max_samples(given.constraints.max_samples_per_cell > 0 ? given.constraints.max_samples_per_cell
                                                             : std::numeric_limits<std::int64_t>::max()),
      rank_limit(given.constraints.max_rank_tokens),
      equal_count(given.constraints.equal_count),
      capacity(static_cast<double>(given.capacity)),
      capacity_squared(capacity * capacity) {
  column_of.resize(slots);
  for (const ShardId g : given.topology.shard_ids()) {
    for (const SlotId d : given.topology.slots_of(g)) {
      column_of[d] = static_cast<Index>(slot_of.size());
      slot_of.push_back(static_cast<Index>(d.value()));
      shard_of.push_back(static_cast<Index>(g.value()));
    }
    column_end.push_back(static_cast<Index>(slot_of.size()));
  }
  for (std::size_t cell = 0; cell < cells(); ++cell) {
    row_shard_of.push_back(static_cast<Index>(cell / slots * shards + shard_of[cell % slots]));
  }

  const bool some_routed = std::ranges::any_of(items.items, [](const Item& item) { return !item.without_routes; });
  is_movable.resize(items.items.size());
  for (std::size_t i = 0; i < items.items.size(); ++i) {
    const Item& item = items.items[i];
    facts.push_back({item.totals.tokens, item.totals.squares, static_cast<std::int32_t>(item.totals.aligned),
                     static_cast<std::int32_t>(item.count)});
    if (item.oversized || (item.without_routes && some_routed)) continue;
    is_movable[i] = true;
    movable.push_back(static_cast<Index>(i));
  }

  const LaneShape& shape = loads.shape();
  if (const auto rates = pad_rank_rates(given.window, placement); !rates.empty()) {
    pad_rates.assign(shape.lanes(), 0);
    for (std::size_t l = 0; l < shape.layers(); ++l) {
      for (std::size_t p = 0; p < shape.ranks(); ++p) pad_rates[shape.lane(l, p)] = rates[l * shape.ranks() + p];
    }
  }
  for (const LayerId l : given.window.layer_ids()) layer_weights.push_back(given.cost.expert_weight(l));
  plain_weights = std::ranges::all_of(
      layer_weights, [&](double weight) { return weight == layer_weights.front() && power_of_two(weight); });

  for (const Stage& stage : given.cost.stages()) {
    token_costs.push_back(stage.alpha / capacity);
    pair_costs.push_back(stage.beta / capacity_squared);
  }
  peak_cost = layer_weights.front() / capacity;

  const auto demand = demand_in_lanes(loads);
  if (const std::int64_t most = std::ranges::max(demand); most > kernels::kLoadLimit) {
    throw InvalidInput("counts: the window sends " + std::to_string(most) +
                       " routed tokens to one rank at one layer, wanted at most " +
                       std::to_string(kernels::kLoadLimit) + ": split it");
  }
  if (const double total = largest_total(*this, demand); total > 0.0) {
    int exponent = 0;
    std::frexp(total, &exponent);  // total < 2^exponent
    fixed_scale = std::ldexp(1.0, 61 - exponent);
  }
}

Arrangement Problem::arrangement(std::span<const Index> cell_of_items) const {
  Arrangement result{.rows = static_cast<std::int64_t>(rows), .cells = std::vector<Cell>(cells())};
  for (std::size_t item = 0; item < cell_of_items.size(); ++item) {
    const Index place = cell_of_items[item];
    Cell& cell = result.cells[place / slots * slots + slot_of[place % slots]];
    cell.add(item, items.items[item]);
    cell.closed = cell.closed || items.items[item].oversized;
  }
  if (equal_count) {
    for (std::size_t at = 0; at < result.cells.size(); ++at) result.cells[at].slot = SlotId(at % slots);
  }
  return result;
}

}  // namespace routepack::search
