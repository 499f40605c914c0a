// SPDX-License-Identifier: Apache-2.0
// The whole algorithm on one page.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "core/assert.h"
#include "cost/evaluate.h"
#include "exec/deadline.h"
#include "exec/team.h"
#include "exec/thread_pool.h"
#include "packing/fill_rows.h"
#include "packing/fit.h"
#include "packing/items.h"
#include "packing/row_bound.h"
#include "plan/draft.h"
#include "plan/placing.h"
#include "plan/step.h"
#include "routepack/plan.h"

namespace routepack {
namespace {

Placement current_or_identity(const Instance& instance, const Placement* current) {
  if (current == nullptr) {
    return Placement::identity(instance.window.layers(), instance.window.experts(), instance.topology.ranks());
  }
  require_fits(*current, instance, "current placement");
  return *current;
}

std::optional<Deadline::Clock::time_point> end_of(const PlanParams& params) {
  if (params.deadline_ms == 0) return std::nullopt;
  return Deadline::Clock::now() + std::chrono::milliseconds(params.deadline_ms);
}

/// Members of a team that plan different things would wait for each other, or worse.
void require_same_work(std::span<const Instance* const> instances, const PlanParams& params, Communicator& team) {
  std::string work =
      fmt::format("seed {} effort {} placement {}", params.seed, name_of(params.effort), name_of(params.placement));
  for (const Instance* instance : instances) {
    work +=
        fmt::format(" window {}{} D {} P {} G {} C {} sync {}\n{}", instance->window.fingerprint(),
                    instance->window.whole() ? "" : " in parts", instance->topology.slots(), instance->topology.ranks(),
                    instance->topology.shards(), instance->capacity, name_of(instance->sync), instance->cost.to_toml());
  }
  const auto all = team.all_gather(std::as_bytes(std::span(work)));
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (std::ranges::equal(all[r], all.front())) continue;
    throw InvalidInput(fmt::format("rank {}: found another window, cost or set of options than that of rank 0", r));
  }
}

Plan checked_plan(const Step& step, const Placement& before, const Placing& placing,
                  std::span<const std::int64_t> demand, const PlanParams& params, bool complete, Executor& executor) {
  const Instance& instance = step.instance();
  const Placement& placement = placing.placement();
  Layout layout = step.ordered_layout(placement, params.row_order, executor);
  Evaluation evaluation = evaluate(instance, placement, layout, executor);
  Bounds bounds = lower_bounds(instance, placement, demand);
  ROUTEPACK_ASSERT(gap_to(evaluation.score.max_shard, bounds.fixed_placement) >= 0.0, "the score is below its bound");
  return Plan{.placement = placement,
              .layout = std::move(layout),
              .rows = step.rows(),
              .dummies = step.dummies(),
              .evaluation = std::move(evaluation),
              .bounds = std::move(bounds),
              .moves = count_moves(before, placement),
              .cv_global = rank_demand_cv(rank_demand(demand, placement), placement.ranks()),
              .cv_global_before = rank_demand_cv(rank_demand(demand, before), before.ranks()),
              .search = step.report(),
              .placing = placing.report(),
              .complete = complete && step.complete() && placing.complete()};
}

}  // namespace

void RunContext::begin(Phase phase) const {
  if (observer != nullptr) observer->phase_begins(phase);
}

void RunContext::enter(Phase phase) const {
  begin(phase);
  if (stop.stop_requested()) throw Cancelled("planning was cancelled");
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

std::variant<std::vector<Plan>, Infeasible> make_plans(std::span<const Instance* const> instances,
                                                       const PlanParams& asked, const Placement* current,
                                                       const RunContext& run) {
  const PlanParams params = with_model_of(asked, instances.front()->window);
  const Deadline deadline(run.stop, end_of(params));
  ThreadPool pool(thread_count(static_cast<std::size_t>(params.threads)));
  std::optional<Team> team;
  if (run.team != nullptr && run.team->ranks() > 1) require_same_work(instances, params, *run.team);
  if (run.team != nullptr) team.emplace(pool, *run.team);
  Executor& executor = team ? static_cast<Executor&>(*team) : pool;
  for (const Instance* instance : instances) require_all_counts(instance->window, executor);
  // In a team only the search listens to a stop: there all hear of it at once.
  const RunContext within{.observer = run.observer, .stop = executor.alone() ? run.stop : std::stop_token()};
  const Planning planning{params, params.effective_search(), executor, pool, deadline, within};
  const Placement before = current_or_identity(*instances.front(), current);
  std::vector<Step> steps;
  for (const Instance* instance : instances) {
    require_fits(before, *instance, "current placement");
    if (!std::ranges::equal(instance->window.arrays().pad_counts, instances.front()->window.arrays().pad_counts)) {
      throw InvalidInput("pad_counts: found other ones in another window, wanted the same where a placement is shared");
    }
    auto made = Step::make(*instance);
    if (auto* why = std::get_if<Infeasible>(&made)) return std::move(*why);
    steps.push_back(std::get<Step>(std::move(made)));
  }

  within.enter(Phase::Demand);
  const Demands demands(instances, before, executor);
  const Placing placing(*instances.front(), before, demands.total, demands.bound, params);
  const bool joint = params.placement == PlacementMode::Joint;
  const bool afresh = joint && placing.free() && !params.two_batches;

  // Packing cannot change what a rank receives over the whole step (paper equation 4), so experts move first. Once it
  // is known who trains with whom, a few more swaps suit the rows, and the rows can suit the swaps again.
  Draft draft(steps, placing, demands, planning);
  const auto why = draft.place_and_pack(afresh ? PlacingStart::FromFresh : PlacingStart::AsAsked);
  if (why && !afresh) return *why;
  if (joint && !why) draft.refine();

  // Where moves cost nothing, fresh LPT is the better start almost always; where it is not, the few swaps win.
  // There is a plan by then unless `why` says otherwise: a stop cuts the second try short, no more.
  const RunContext calm{.observer = run.observer, .stop = why ? within.stop : std::stop_token()};
  const Planning again{params, planning.search, executor, pool, deadline, calm};
  bool complete = true;
  if (afresh && (why || !executor.over(deadline))) {
    Draft second(std::move(steps), placing, demands, again);
    const auto also = second.place_and_pack(PlacingStart::AsAsked);
    if (why && also) return *why;
    for (const Step& step : second.steps()) complete = complete && step.complete();
    if (!also && (why || second.better_than(draft))) {
      second.refine();
      draft = std::move(second);
    }
  } else if (afresh) {
    complete = false;
  }

  complete = complete && draft.complete();
  run.begin(Phase::Check);
  std::vector<Plan> plans;
  for (std::size_t k = 0; k < instances.size(); ++k) {
    plans.push_back(
        checked_plan(draft.steps()[k], before, draft.placing(), demands.of_step[k], params, complete, executor));
  }
  return plans;
}

std::variant<Plan, Infeasible> make_plan(const Instance& instance, const PlanParams& params, const Placement* current,
                                         const RunContext& run) {
  const Instance* const only = &instance;
  auto plans = make_plans(std::span(&only, 1), params, current, run);
  if (auto* why = std::get_if<Infeasible>(&plans)) return std::move(*why);
  return std::move(std::get<std::vector<Plan>>(plans).front());
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
