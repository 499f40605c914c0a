// SPDX-License-Identifier: Apache-2.0
// Between a plan in memory and the record that its file holds.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "routepack/error.h"
#include "routepack/plan_file.h"
#include "routepack/window.h"

namespace routepack {
namespace {

template <class IdType>
std::vector<std::int32_t> numbers_of(std::span<const IdType> ids) {
  std::vector<std::int32_t> numbers;
  numbers.reserve(ids.size());
  for (const IdType id : ids) numbers.push_back(id.value());
  return numbers;
}

template <class IdType>
std::vector<IdType> ids_of(const std::vector<std::int32_t>& numbers) {
  return std::vector<IdType>(numbers.begin(), numbers.end());
}

/// Bytes that move, unless nobody knows or no integer holds it.
std::optional<std::int64_t> moved_bytes(std::int64_t experts, std::int64_t expert_bytes) {
  if (expert_bytes == 0 || experts > std::numeric_limits<std::int64_t>::max() / expert_bytes) return std::nullopt;
  return experts * expert_bytes;
}

void record_figures(PlanRecord& record, const Plan& plan) {
  const Evaluation& evaluation = plan.evaluation;
  record.score = evaluation.score;
  record.bound = plan.bounds.any_placement;
  record.bound_fixed_placement = plan.bounds.fixed_placement;
  record.metrics = {{"cv_global", plan.cv_global},
                    {"cv_global_before", plan.cv_global_before},
                    {"expert_peak_sum", static_cast<double>(evaluation.expert_peak_sum)},
                    {"tail_peak", static_cast<double>(evaluation.tail_peak)},
                    {"ep_efficiency", evaluation.ep_efficiency},
                    {"attention", evaluation.attention},
                    {"joint", evaluation.score.max_shard}};
  // Above a bound of zero the gap is infinite, which JSON cannot say.
  if (const double gap = gap_to(evaluation.score.max_shard, plan.bounds.any_placement); std::isfinite(gap)) {
    record.gap = gap;
    record.metrics.emplace_back("gap", gap);
  }
}

[[noreturn]] void refuse_foreign(const PlanRecord& record, std::string_view what, const std::string& found,
                                 const std::string& wanted) {
  throw InvalidInput(fmt::format("{}: {}: found {}, wanted {}, as in the window: the plan is for another window",
                                 record.source, what, found, wanted));
}

void check_size(const PlanRecord& record, std::string_view what, std::int64_t found, std::int64_t wanted) {
  if (found != wanted) refuse_foreign(record, what, std::to_string(found), std::to_string(wanted));
}

/// Runs a constructor whose messages do not know the file.
template <class F>
auto with_source(const std::string& source, F&& build) {
  try {
    return build();
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("{}: {}", source, error.what()));
  }
}

Topology topology_of(const PlanRecord& record) {
  const std::int64_t pipeline_stages = record.pipeline_stages.value_or(1);
  if (pipeline_stages < 1 || pipeline_stages > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidInput(fmt::format("{}: topology.pp: found {}, wanted at least 1", record.source, pipeline_stages));
  }
  std::vector<std::vector<SlotId>> shards;
  for (const auto& shard : record.shards) shards.push_back(ids_of<SlotId>(shard));
  return with_source(record.source, [&] {
    return Topology::from_shards(record.ep, std::move(shards), static_cast<std::int32_t>(pipeline_stages));
  });
}

CostModel cost_of(const PlanRecord& record) {
  const std::string where = record.source + ": cost";
  if (!record.expert_uniform) return CostModel(record.stages, record.expert, where);
  if (record.expert.size() != 1) {
    throw InvalidInput(fmt::format("{}: expert: found {} weights, wanted one", where, record.expert.size()));
  }
  return CostModel(record.stages, record.expert[0], where);
}

Placement placement_of(const PlanRecord& record, const Window& window) {
  check_size(record, "layers in physical_to_logical", static_cast<std::int64_t>(record.physical_to_logical.size()),
             window.layers());
  std::vector<std::vector<ExpertId>> maps;
  for (const auto& map : record.physical_to_logical) maps.push_back(ids_of<ExpertId>(map));
  check_size(record, "experts in physical_to_logical[0]", static_cast<std::int64_t>(maps[0].size()), window.experts());
  return Placement::from_maps(record.ep, std::move(maps), record.source);
}

Layout layout_of(const PlanRecord& record, const Window& window, std::int32_t slots) {
  if (record.rows != static_cast<std::int64_t>(record.layout.size())) {
    throw InvalidInput(fmt::format("{}: rows: found {}, wanted {}, the length of layout", record.source, record.rows,
                                   record.layout.size()));
  }
  const std::int64_t most = std::numeric_limits<std::int32_t>::max() - window.samples();
  if (record.dummies < 0 || record.dummies > most) {
    throw InvalidInput(fmt::format("{}: dummies: found {}, wanted 0 to {}", record.source, record.dummies, most));
  }
  std::vector<std::vector<std::vector<SampleId>>> cells;
  for (const auto& row : record.layout) {
    auto& cells_of_row = cells.emplace_back();
    for (const auto& cell : row) cells_of_row.push_back(ids_of<SampleId>(cell));
  }
  return Layout(std::move(cells), slots, window.samples() + static_cast<std::int32_t>(record.dummies),
                record.source + ": layout");
}

void check_stamp(const PlanRecord& record, const Window& window) {
  if (!record.window) return;
  check_size(record, "window.samples", record.window->samples, window.samples());
  check_size(record, "window.layers", record.window->layers, window.layers());
  check_size(record, "window.experts", record.window->experts, window.experts());
  if (const std::string fingerprint = window.fingerprint(); record.window->fingerprint != fingerprint) {
    refuse_foreign(record, "window.fingerprint", record.window->fingerprint, fingerprint);
  }
}

}  // namespace

PlanRecord make_record(const Instance& instance, const PlanParams& params, const Plan& plan) {
  const Window& window = instance.window;
  const Topology& topology = instance.topology;
  PlanRecord record;
  record.ep = topology.ranks();
  for (const ShardId g : topology.shard_ids()) record.shards.push_back(numbers_of(topology.slots_of(g)));
  if (topology.pipeline_stages() > 1) record.pipeline_stages = topology.pipeline_stages();
  record.capacity = instance.capacity;
  record.constraints = instance.constraints;
  record.sync = instance.sync;
  record.stages.assign(instance.cost.stages().begin(), instance.cost.stages().end());
  record.expert.assign(instance.cost.expert_weights().begin(), instance.cost.expert_weights().end());
  record.expert_uniform = instance.cost.uniform();
  record.window = PlanRecord::WindowStamp{.samples = window.samples(),
                                          .layers = window.layers(),
                                          .experts = window.experts(),
                                          .fingerprint = window.fingerprint()};
  for (const auto& map : plan.placement.physical_to_logical()) {
    record.physical_to_logical.push_back(numbers_of(std::span(map)));
  }
  for (const auto& row : plan.layout.cells()) {
    auto& cells = record.layout.emplace_back();
    for (const auto& cell : row) cells.push_back(numbers_of(std::span(cell)));
  }
  record.rows = plan.rows.rows;
  record.rows_lower_bound = plan.rows.lower_bound;
  record.rows_certified = plan.rows.certified();
  record.dummies = plan.dummies;
  record.complete = plan.complete;
  record.params = params;
  record.params->model = plan.placing.model;
  record.moves = PlanRecord::MovesRecord{.experts = plan.moves.experts,
                                         .local = plan.moves.local,
                                         .fraction = plan.moves.fraction,
                                         .bytes = moved_bytes(plan.moves.experts, bytes_of_expert(*record.params))};
  record.params->search = params.effective_search();
  record.search = plan.search;
  record.placing = plan.placing;
  record_figures(record, plan);
  return record;
}

CheckedPlan check_record(const PlanRecord& record, const Window& window) {
  check_stamp(record, window);
  Topology topology = topology_of(record);
  const std::int32_t slots = topology.slots();
  Placement placement = placement_of(record, window);
  Layout layout = layout_of(record, window, slots);
  CostModel cost = cost_of(record);
  Instance instance = with_source(record.source, [&] {
    return Instance(window, std::move(topology), std::move(cost), record.capacity, record.constraints, record.sync);
  });
  return CheckedPlan{.instance = std::move(instance), .placement = std::move(placement), .layout = std::move(layout)};
}

}  // namespace routepack
