// SPDX-License-Identifier: Apache-2.0
// The whole algorithm on one page.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "core/assert.h"
#include "packing/fill_rows.h"
#include "packing/fit.h"
#include "packing/items.h"
#include "packing/row_bound.h"
#include "plan/rank_limit.h"
#include "routepack/plan.h"

namespace routepack {
namespace {

Placement place_experts(std::span<const std::int64_t> demand, const Placement& current, PlacementMode mode) {
  switch (mode) {
    case PlacementMode::Keep:
      return current;
    case PlacementMode::Lpt:
      return place_lpt(demand, current);
    default:
      throw InvalidInput(fmt::format("placement: \"{}\" is not built yet, wanted keep or lpt", name_of(mode)));
  }
}

Placement current_or_identity(const Instance& instance, const Placement* current) {
  if (current == nullptr) {
    return Placement::identity(instance.window.layers(), instance.window.experts(), instance.topology.ranks());
  }
  require_fits(*current, instance, "current placement");
  return *current;
}

}  // namespace

void RunContext::enter(Phase phase) const {
  if (stop.stop_requested()) throw Cancelled("planning was cancelled");
  if (observer != nullptr) observer->phase_begins(phase);
}

void require_fits(const Placement& placement, const Instance& instance, const std::string& where) {
  const Window& window = instance.window;
  const std::int32_t ranks = instance.topology.ranks();
  if (placement.layers() != window.layers() || placement.experts() != window.experts() || placement.ranks() != ranks) {
    throw InvalidInput(fmt::format("{}: found {} layers of {} experts on {} ranks, wanted {} of {} on {}", where,
                                   placement.layers(), placement.experts(), placement.ranks(), window.layers(),
                                   window.experts(), ranks));
  }
}

std::variant<Plan, Infeasible> make_plan(const Instance& instance, const PlanParams& params, const Placement* current,
                                         const RunContext& run) {
  if (params.effort != Effort::Default) {
    throw InvalidInput(fmt::format("effort: \"{}\" is not built yet, wanted default", name_of(params.effort)));
  }
  const Placement before = current_or_identity(instance, current);
  auto made = make_items(instance);
  if (auto* why = std::get_if<Infeasible>(&made)) return std::move(*why);
  const Items& items = std::get<Items>(made);

  run.enter(Phase::Demand);
  const auto demand = aggregate_demand(instance.window);

  // Packing cannot change what a rank receives over the whole step (paper equation 4), so experts move first.
  run.enter(Phase::Place);
  Placement placement = place_experts(demand, before, params.placement);
  const auto placed = rank_demand(demand, placement);
  if (auto why = sample_over_rank_limit(instance, placement, items)) return *std::move(why);

  // Rows come before balance: every later step keeps this count.
  run.enter(Phase::Rows);
  auto found = fewest_rows(instance, items, row_bound(instance, items, placed));
  if (auto* why = std::get_if<Infeasible>(&found)) return std::move(*why);
  FittedCells& fitted = std::get<FittedCells>(found);
  const RowBound proven = fitted.bound;

  run.enter(Phase::Pack);
  auto filled = fill_with_as_few_rows_as_possible(instance, placement, items, fitted, params.row_order);
  if (auto* why = std::get_if<Infeasible>(&filled)) return std::move(*why);
  Layout& layout = std::get<Layout>(filled);

  run.enter(Phase::Check);
  Evaluation evaluation = evaluate(instance, placement, layout);
  Bounds bounds = lower_bounds(instance, placement, demand);
  ROUTEPACK_ASSERT(gap_to(evaluation.score.max_shard, bounds.fixed_placement) >= 0.0, "the score is below its bound");
  const Moves moves = count_moves(before, placement);
  const double cv = rank_demand_cv(placed, placement.ranks());
  const double cv_before = rank_demand_cv(rank_demand(demand, before), before.ranks());
  return Plan{.placement = std::move(placement),
              .layout = std::move(layout),
              .rows = {fitted.rows, proven.rows, proven.because},
              .dummies = items.dummies,
              .evaluation = std::move(evaluation),
              .bounds = std::move(bounds),
              .moves = moves,
              .cv_global = cv,
              .cv_global_before = cv_before};
}

std::variant<Layout, Infeasible> pack_first_fit_decreasing(const Instance& instance) {
  auto made = make_items(instance);
  if (auto* why = std::get_if<Infeasible>(&made)) return std::move(*why);
  const Items& items = std::get<Items>(made);
  const std::int64_t slots = instance.topology.slots();
  const std::int64_t step = instance.constraints.row_multiple;
  const auto most = static_cast<std::int64_t>(items.items.size()) / slots;
  for (std::int64_t rows = row_bound(instance, items, {}).rows; rows <= most; rows += step) {
    if (auto cells = first_fit_decreasing(instance, items, rows * slots)) {
      return rows_in_order(instance, items, {rows, *std::move(cells)});
    }
  }
  return Infeasible{"first fit by falling length found no layout", "a larger --cap"};
}

}  // namespace routepack
