// SPDX-License-Identifier: Apache-2.0
#include "routepack/bounds.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/integer.h"
#include "routepack/score.h"

namespace routepack {
namespace {

/// The least peak that some placement of these experts on `ranks` ranks of `per_rank` slots might reach. For every j,
/// among the P·j + 1 hottest experts some rank holds j + 1; at best the coolest of those, beside the coldest of all.
std::int64_t least_peak(std::vector<std::int64_t> expert_loads, std::int64_t ranks, std::int64_t per_rank) {
  std::ranges::sort(expert_loads, std::greater<>());
  std::int64_t peak = ceil_div(std::accumulate(expert_loads.begin(), expert_loads.end(), std::int64_t{0}), ranks);
  for (std::int64_t j = 0; j < per_rank; ++j) {
    const auto hot = expert_loads.begin() + ranks * j - j;
    const auto cold = expert_loads.end() - (per_rank - j - 1);
    peak =
        std::max(peak, std::accumulate(hot, hot + j + 1, std::accumulate(cold, expert_loads.end(), std::int64_t{0})));
  }
  return peak;
}

/// Sets what hot experts cost a layer: the hottest beside the H − 1 coldest exceeds the mean, and how many copies end
/// that for every expert that does.
void judge_hot_experts(LayerBound& layer, std::span<const std::int64_t> loads, std::int64_t per_rank) {
  std::vector<std::int64_t> sorted(loads.begin(), loads.end());
  std::ranges::sort(sorted);
  const std::int64_t coldest = std::accumulate(sorted.begin(), sorted.begin() + (per_rank - 1), std::int64_t{0});
  const std::int64_t room = layer.rank_mean - coldest;  // above 0 unless nothing is routed
  for (auto load = sorted.rbegin(); load != sorted.rend() && *load > room && room > 0; ++load) {
    layer.replication_needed = true;
    layer.copies_needed += ceil_div(*load, room) - 1;
  }
}

/// Σ_s (α_s ΣT̄ + β_s ΣQ̄) over all samples: the dense work of every packing, summed over its cells.
double dense_total(const Instance& instance) {
  const auto c = static_cast<double>(instance.capacity);
  double tokens = 0.0;
  double squares = 0.0;
  for (const SampleId i : instance.window.sample_ids()) {
    const auto length = static_cast<double>(instance.window.length(i));
    tokens += length;
    squares += length * length;
  }
  double total = 0.0;
  for (const Stage& stage : instance.cost.stages())
    total += stage.alpha * (tokens / c) + stage.beta * (squares / (c * c));
  return total;
}

/// max_g U_g ≥ Σ_g λ_g U_g for weights λ that sum to 1. With λ_g proportional to max(|D_g|, s), the dense part is at
/// least dense / Σ max and the expert part at least s · expert / Σ max; the best s is one of the shard sizes.
double combine(const Topology& topology, double dense, double expert) {
  double best = 0.0;
  for (const ShardId chosen : topology.shard_ids()) {
    const std::size_t size = topology.slots_of(chosen).size();
    std::size_t norm = 0;
    for (const ShardId g : topology.shard_ids()) norm += std::max(topology.slots_of(g).size(), size);
    best = std::max(best, (dense + static_cast<double>(size) * expert) / static_cast<double>(norm));
  }
  return best;
}

}  // namespace

std::int32_t Bounds::layers_that_need_replication() const {
  return static_cast<std::int32_t>(std::ranges::count_if(layers, &LayerBound::replication_needed));
}

std::int64_t Bounds::copies_needed() const {
  std::int64_t copies = 0;
  for (const LayerBound& layer : layers) copies += layer.copies_needed;
  return copies;
}

std::vector<LayerBound> layer_bounds(std::span<const std::int64_t> demand, const Placement& placement) {
  const auto experts = static_cast<std::size_t>(placement.experts());
  const auto ranks = static_cast<std::size_t>(placement.ranks());
  const std::int64_t per_rank = placement.slots_per_rank();
  const auto placed = rank_demand(demand, placement);

  std::vector<LayerBound> bounds;
  for (const LayerId l : IdRange<LayerId>(placement.layers())) {
    const auto loads = demand.subspan(l * experts, experts);
    LayerBound layer;
    layer.placed_peak = *std::ranges::max_element(std::span(placed).subspan(l * ranks, ranks));
    layer.rank_mean = ceil_div(std::accumulate(loads.begin(), loads.end(), std::int64_t{0}), placement.ranks());
    layer.any_placement = least_peak({loads.begin(), loads.end()}, placement.ranks(), per_rank);
    judge_hot_experts(layer, loads, per_rank);
    bounds.push_back(layer);
  }
  return bounds;
}

Bounds lower_bounds(const Instance& instance, const Placement& placement, std::span<const std::int64_t> demand) {
  Bounds bounds;
  bounds.layers = layer_bounds(demand, placement);
  double fixed = 0.0;
  double any = 0.0;
  double mean = 0.0;
  for (const LayerId l : instance.window.layer_ids()) {
    fixed += instance.cost.expert_weight(l) * static_cast<double>(bounds.layers[l].placed_peak);
    any += instance.cost.expert_weight(l) * static_cast<double>(bounds.layers[l].any_placement);
    mean += instance.cost.expert_weight(l) * static_cast<double>(bounds.layers[l].rank_mean);
  }
  const double dense = dense_total(instance);
  const auto capacity = static_cast<double>(instance.capacity);
  bounds.fixed_placement = combine(instance.topology, dense, fixed / capacity);
  bounds.any_placement = combine(instance.topology, dense, any / capacity);
  bounds.balanced = combine(instance.topology, dense, mean / capacity);
  return bounds;
}

double gap_to(double score, double bound) {
  // Both are sums of rounded terms: a score that reaches its bound may come out an ulp or two below.
  if (std::abs(score - bound) <= 1e-12 * bound) return 0.0;
  return score / bound - 1.0;
}

}  // namespace routepack
