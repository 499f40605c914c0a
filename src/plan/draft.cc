// SPDX-License-Identifier: Apache-2.0
#include "plan/draft.h"

#include "cost/evaluate.h"
#include "routepack/bounds.h"

namespace routepack {

Demands::Demands(std::span<const Instance* const> instances, const Placement& placement, Executor& executor) {
  for (const Instance* instance : instances) {
    of_step.push_back(aggregate_demand(instance->window));
    if (!instance->window.whole()) executor.sum(std::span(of_step.back()));
    total.resize(of_step.back().size());
    for (std::size_t le = 0; le < total.size(); ++le) total[le] += of_step.back()[le];
    bound += lower_bounds(*instance, placement, of_step.back()).any_placement;
  }
}

std::optional<Infeasible> Draft::place_and_pack(PlacingStart start) {
  planning_->run.enter(Phase::Place);
  placing_.place(start, planning_->executor);
  if (planning_->params.two_batches) placing_.commit();
  if (planning_->run.observer != nullptr) planning_->run.observer->placed(placing_.placement());
  for (std::size_t k = 0; k < steps_.size(); ++k) {
    if (auto why = steps_[k].pack(placing_.placement(), demands_->of_step[k], *planning_)) return why;
  }
  return std::nullopt;
}

void Draft::refine() {
  planning_->run.begin(Phase::Refine);
  for (std::int64_t k = 0; k < planning_->search.refinements; ++k) {
    if (planning_->executor.over(planning_->deadline)) {
      complete_ = false;
      return;
    }
    if (!placing_.refine(steps_, *planning_)) return;
    if (planning_->search.repack_share == 0.0) continue;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      steps_[i].repack(placing_.placement(), demands_->of_step[i], *planning_);
    }
  }
}

bool Draft::better_than(const Draft& other) const {
  const auto judge = [&](const Draft& draft) {
    std::pair<std::int64_t, double> sum{0, 0.0};
    for (const Step& step : draft.steps_) {
      sum.first += step.rows().rows;
      sum.second +=
          evaluate(step.instance(), draft.placing_.placement(), step.layout(), planning_->executor).score.max_shard;
    }
    return sum;
  };
  return judge(*this) < judge(other);
}

}  // namespace routepack
