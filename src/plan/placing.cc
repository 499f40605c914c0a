// SPDX-License-Identifier: Apache-2.0
#include "plan/placing.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

#include "placement/relabel.h"
#include "placement/row_aware.h"
#include "placement/row_loads.h"
#include "routepack/error.h"

namespace routepack {
namespace {

/// With nothing said about moves, moving every expert has to bring this share of the objective.
constexpr double kFrugality = 0.04;

/// The price that rates give: seconds of transfer as routed tokens, and those in units of J.
std::optional<double> price_by_rates(const PlanParams& params, double token_value) {
  if (params.link_gbytes == 0.0 && params.tflops == 0.0) return std::nullopt;
  if (params.link_gbytes == 0.0 || params.tflops == 0.0 || params.model.empty()) {
    throw InvalidInput("link_gbytes and tflops: a price needs both of them and model");
  }
  return move_price(bytes_of_expert(params),
                    {.link_bytes_per_second = 1e9 * params.link_gbytes,
                     .flops_per_second = 1e12 * params.tflops,
                     .flops_per_routed_token = expert_flops(params.model)},
                    token_value);
}

MoveBudget budget_of(const PlanParams& params, double bound, std::int64_t experts, double token_value) {
  MoveBudget budget;
  if (const auto price = price_by_rates(params, token_value)) {
    budget.price = budget.price_between_nodes = *price;
    std::istringstream values(params.moves);
    for (std::string value; values >> value;) budget.add(value);
    return budget;
  }
  if (params.moves.empty()) {
    budget.price = budget.price_between_nodes = kFrugality * bound / static_cast<double>(experts);
    return budget;
  }
  std::istringstream values(params.moves);
  for (std::string value; values >> value;) budget.add(value);
  return budget;
}

/// A routed token less on the busiest rank of a layer of mean weight, in units of J.
double token_value_of(const Instance& instance) {
  double weight = 0.0;
  for (const LayerId l : instance.window.layer_ids()) weight += instance.cost.expert_weight(l);
  return weight / static_cast<double>(instance.window.layers()) / static_cast<double>(instance.capacity);
}

bool obeys_budget(PlacementMode mode) {
  return mode == PlacementMode::Sticky || mode == PlacementMode::Joint;
}

/// A communicator covers whole nodes, or a node holds whole communicators.
std::int32_t ranks_per_node(const PlanParams& params, std::int32_t ranks) {
  const std::int64_t node = params.ranks_per_node;
  if (node < 0 || (node > 0 && ranks % node != 0 && node % ranks != 0)) {
    throw InvalidInput(fmt::format(
        "ranks_per_node: found {}, wanted a divisor or a multiple of the {} expert-parallel ranks, or 0", node, ranks));
  }
  return static_cast<std::int32_t>(node);
}

std::int64_t experts_of(const Placement& placement) {
  return std::int64_t{placement.layers()} * placement.experts();
}

/// Rows of several windows one below the other.
RowLoads joined(std::vector<RowLoads> parts) {
  // A part without padding left out what the others say about it.
  const auto padded = std::ranges::find_if(parts, [](const RowLoads& part) { return !part.pads.empty(); });
  if (padded != parts.end()) {
    for (RowLoads& part : parts) {
      part.pads.resize(part.row_shards(), 0);
      part.pad_counts = padded->pad_counts;
    }
  }
  RowLoads all = std::move(parts.front());
  if (parts.size() == 1) return all;
  const auto vectors = static_cast<std::size_t>(all.layers) * static_cast<std::size_t>(all.experts);
  std::vector<std::vector<std::int64_t>> wide(vectors);
  const auto append = [&](const RowLoads& part) {
    std::visit(
        [&](const auto& loads) {
          const std::size_t width = part.row_shards();
          for (std::size_t at = 0; at < loads.size(); ++at) wide[at / width].push_back(loads[at]);
        },
        part.loads);
  };
  append(all);
  for (std::size_t k = 1; k < parts.size(); ++k) {
    append(parts[k]);
    all.rows += parts[k].rows;
    all.pads.insert(all.pads.end(), parts[k].pads.begin(), parts[k].pads.end());
    all.dense.insert(all.dense.end(), parts[k].dense.begin(), parts[k].dense.end());
  }
  std::vector<std::int64_t> loads;
  for (const auto& vector : wide) loads.insert(loads.end(), vector.begin(), vector.end());
  all.loads = std::move(loads);
  return all;
}

}  // namespace

PlanParams with_model_of(PlanParams params, const Window& window) {
  if (params.model.empty() && params.expert_bytes == 0) params.model = preset_of(window.arrays().model);
  return params;
}

std::int64_t bytes_of_expert(const PlanParams& params) {
  if (params.model.empty()) return params.expert_bytes;
  if (params.expert_bytes > 0) {
    throw InvalidInput("expert_bytes and model: both say what an expert weighs, wanted one of them");
  }
  const StateLayout layout{.weight_bytes = params.weight_bytes,
                           .master_bytes = params.optimizer_bytes,
                           .moment_bytes = 0,
                           .optimizer_shards = params.optimizer_shards};
  return expert_state_bytes(params.model, layout);
}

Placing::Placing(const Instance& instance, const Placement& home, std::span<const std::int64_t> demand, double bound,
                 const PlanParams& params)
    : instance_(&instance),
      home_(home),
      demand_(demand),
      params_(&params),
      expert_bytes_(bytes_of_expert(params)),
      budget_(budget_of(params, bound, experts_of(home), token_value_of(instance))),
      ledger_(home, budget_, expert_bytes_, ranks_per_node(params, home.ranks())),
      placement_(home) {
  free_ = ledger_.unlimited() && budget_.price == 0.0 && budget_.price_between_nodes == 0.0;
}

void Placing::place(PlacingStart start, Executor& executor) {
  if (start == PlacingStart::FromFresh) {
    placement_ = relabel(place_lpt(demand_, home_), home_, static_cast<std::int32_t>(params_->ranks_per_node));
    ledger_.recount(placement_);
    return;
  }
  if (params_->placement == PlacementMode::Keep) return;
  if (params_->placement == PlacementMode::Lpt) {
    placement_ = place_lpt(demand_, home_);
    return;
  }
  std::vector<double> values;
  const double tokens = static_cast<double>(instance_->capacity) * instance_->topology.shards();
  for (const LayerId l : instance_->window.layer_ids()) values.push_back(instance_->cost.expert_weight(l) / tokens);
  auto sticky = place_sticky(
      demand_, ledger_, {.epsilon = params_->sticky_eps, .start_above = params_->sticky_eps, .token_value = values},
      executor);
  placement_ = std::move(sticky.placement);
  layers_ = std::move(sticky.layers);
}

void Placing::commit() {
  first_batch_ = placement_;
  MoveBudget left = budget_;
  left.share = static_cast<double>(ledger_.most_moved() - ledger_.moved()) / static_cast<double>(experts_of(home_));
  if (left.rank_bytes) {
    std::int64_t used = 0;
    for (const RankId p : IdRange<RankId>(home_.ranks())) {
      used = std::max({used, ledger_.bytes_in(p), ledger_.bytes_out(p)});
    }
    *left.rank_bytes -= used;
  }
  ledger_ = MoveLedger(placement_, left, expert_bytes_, static_cast<std::int32_t>(params_->ranks_per_node));
}

bool Placing::refine(std::span<const Step> steps, const Planning& planning) {
  std::vector<RowLoads> parts;
  for (const Step& step : steps) parts.push_back(aggregate_rows(step.instance(), step.layout(), planning.executor));
  auto refined = refine_placement(
      joined(std::move(parts)), placement_, ledger_,
      {.most_steps = planning.search.refine_steps, .kicks = planning.search.kicks, .seed = planning.params.seed},
      planning.executor, planning.deadline);
  complete_ = complete_ && refined.complete;
  const bool better = refined.after < refined.before;
  row_aware_swaps_ += refined.swaps;
  placement_ = std::move(refined.placement);
  return better;
}

PlacementReport Placing::report() const {
  PlacementReport report;
  for (const StickyLayer& layer : layers_) {
    report.layers.push_back(layer.end);
    report.sticky_swaps += layer.swaps;
    report.swaps_needed += layer.swaps_needed.value_or(0);
  }
  report.row_aware_swaps = row_aware_swaps_;
  report.moves = list_moves(home_, placement_, expert_bytes_, static_cast<std::int32_t>(params_->ranks_per_node));
  report.first_batch = first_batch_;
  if (obeys_budget(params_->placement)) report.budget = budget_;
  report.model = params_->model;
  return report;
}

}  // namespace routepack
