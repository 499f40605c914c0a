// SPDX-License-Identifier: Apache-2.0
#include "plan/step.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "cost/evaluate.h"
#include "cost/row_cost.h"
#include "packing/fill_rows.h"
#include "packing/row_bound.h"
#include "packing/search/search.h"
#include "packing/seeding/seeds.h"
#include "packing/unit_loads.h"
#include "plan/rank_limit.h"
#include "routepack/bounds.h"

namespace routepack {
namespace {

/// Of the time left after the search, what refining the placement may take of it.
constexpr double kShareOfRefinement = 0.3;

/// The deadline less what is still to be done then: the check takes about as long as the loads, rows and seeds did.
std::optional<Deadline::Clock::time_point> end_of_search(const Planning& planning, Deadline::Clock::duration prepared) {
  const auto end = planning.deadline.end();
  if (!end) return std::nullopt;
  const auto left = std::max(*end - prepared - Deadline::Clock::now(), Deadline::Clock::duration::zero());
  const double share = planning.params.placement == PlacementMode::Joint ? 1.0 - kShareOfRefinement : 1.0;
  return Deadline::Clock::now() + std::chrono::duration_cast<Deadline::Clock::duration>(left * share);
}

}  // namespace

std::variant<Step, Infeasible> Step::make(const Instance& instance) {
  auto items = make_items(instance);
  if (auto* why = std::get_if<Infeasible>(&items)) return std::move(*why);
  return Step(instance, std::get<Items>(std::move(items)));
}

std::optional<Infeasible> Step::pack(const Placement& placement, std::span<const std::int64_t> demand,
                                     const Planning& planning) {
  const Instance& instance = *instance_;
  const auto begin = Deadline::Clock::now();
  planning.run.enter(Phase::Loads);
  const UnitLoads loads(instance, placement, items_, planning.executor);
  const auto pad_rates = pad_rank_rates(instance.window, placement);
  if (auto why = sample_over_rank_limit(instance, loads, items_)) return why;

  // Rows come before balance: every later step keeps this count.
  planning.run.enter(Phase::Rows);
  const auto placed = rank_demand(demand, placement);
  auto fit = fewest_rows(instance, items_, row_bound(instance, items_, placed));
  if (auto* why = std::get_if<Infeasible>(&fit)) return std::move(*why);
  FittedCells& fitted = std::get<FittedCells>(fit);
  const RowBound proven = fitted.bound;
  auto filled = fill_with_as_few_rows_as_possible(instance, loads, pad_rates, items_, fitted);
  if (auto* why = std::get_if<Infeasible>(&filled)) return std::move(*why);
  rows_ = {fitted.rows, proven.rows, proven.because};

  planning.run.begin(Phase::Seed);
  const auto seed = static_cast<std::uint64_t>(planning.params.seed);
  const Seeds seeds = diverse_seeds(instance, loads, pad_rates, items_, fitted, search::seed_budget(planning.search),
                                    seed, planning.local, planning.stop_alone());

  planning.run.begin(Phase::Search);
  const search::Problem problem(instance, placement, items_, loads, fitted.rows);
  const double bound = lower_bounds(instance, placement, demand).fixed_placement;
  const Deadline ends(planning.deadline.token(), end_of_search(planning, Deadline::Clock::now() - begin));
  search::Found found = search::find_layout(problem, seeds, planning.search, planning.params.seed, bound,
                                            planning.executor, ends, planning.run.observer);
  report_ = search::report(seeds, found);
  complete_ = !found.cut && seeds.not_tried == 0;
  arrangement_ = std::move(found.arrangement);
  return std::nullopt;
}

void Step::repack(const Placement& placement, std::span<const std::int64_t> demand, const Planning& planning) {
  const double bound = lower_bounds(*instance_, placement, demand).fixed_placement;
  const UnitLoads loads(*instance_, placement, items_, planning.executor);
  const search::Problem problem(*instance_, placement, items_, loads, arrangement_.rows);
  search::Found found = search::improve_layout(problem, arrangement_, planning.search, planning.params.seed, bound,
                                               planning.executor, planning.deadline, planning.run.observer);
  report_.proposals += found.proposals;
  report_.accepted += found.accepted;
  complete_ = complete_ && !found.cut;
  arrangement_ = std::move(found.arrangement);
}

Layout Step::layout() const {
  return to_layout(*instance_, items_, arrangement_);
}

Layout Step::ordered_layout(const Placement& placement, RowOrder order, Executor& executor) const {
  if (order == RowOrder::Keep) return layout();
  const Evaluation evaluation = evaluate(*instance_, placement, layout(), executor);
  const auto sequence = pipeline_order(evaluation.joint, arrangement_.rows);
  return to_layout(*instance_, items_, with_rows_in(arrangement_, sequence));
}

}  // namespace routepack
