// SPDX-License-Identifier: Apache-2.0
// What things take: as the objective charges, or from a model's shape and a device (docs/model.md).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "routepack/error.h"
#include "routepack/simulate.h"
#include "simulate/interleave.h"

namespace routepack {
namespace {

constexpr double kValueBytes = 2.0;     // activations and weights in 16 bits
constexpr double kGradientBytes = 4.0;  // fp32, reduced and accumulated
constexpr double kOptimizerStateBytes =
    30.0;  // gradient, master and two moments read, the last three and a weight written

PerPass split(double both, double forward_share) {
  const double forward = both * forward_share;
  return {forward, both - forward};
}

double seconds_of(const Flops& work, const Device& device) {
  return work.dense / device.dense_flops + work.attention / device.attention_flops + work.linear / device.linear_flops;
}

/// The dense side of one layer alone: stage_work of a model that has no other, and no head.
LayerTiming time_layer(const ModelShape& shape, const LayerShape& layer, const Device& device, std::int64_t longest,
                       double share) {
  ModelShape alone = shape;
  alone.layers = {layer};
  alone.vocab = 0;
  const StageWork forward = stage_work(alone, longest, {.backward = false}).front();
  const StageWork both = stage_work(alone, longest, {.backward = true}).front();
  LayerTiming timing{.stage = forward.name, .routed = layer.dense_width == 0};
  timing.token.forward = share * seconds_of(forward.token, device);
  timing.pair.forward = share * seconds_of(forward.pair, device);
  timing.token.backward = share * seconds_of(both.token, device) - timing.token.forward;
  timing.pair.backward = share * seconds_of(both.pair, device) - timing.pair.forward;
  return timing;
}

/// Bytes that one of `members` sends when all of them reduce and then gather `parameters`, in a ring.
double ring_bytes(double parameters, double members) {
  return parameters * (kGradientBytes + kValueBytes) * (members - 1.0) / members;
}

}  // namespace

StepTiming StepTiming::of_cost(const CostModel& cost, std::int64_t capacity, std::int32_t layers, double unit_seconds,
                               double forward_share) {
  if (layers < 1) throw InvalidInput(fmt::format("layers: found {}, wanted at least 1", layers));
  if (capacity < 1) throw InvalidInput(fmt::format("capacity: found {}, wanted at least 1", capacity));
  if (!(unit_seconds >= 0.0) || !std::isfinite(unit_seconds)) {
    throw InvalidInput(fmt::format("seconds of a unit: found {}, wanted a number of at least 0", unit_seconds));
  }
  if (!(forward_share >= 0.0 && forward_share <= 1.0)) {
    throw InvalidInput(fmt::format("forward share: found {}, wanted 0 to 1", forward_share));
  }
  const auto stages = cost.stages();
  if (std::cmp_greater(stages.size(), layers)) {
    throw InvalidInput(
        fmt::format("cost: found {} stages, wanted at most as many as layers ({})", stages.size(), layers));
  }
  std::vector<std::int64_t> counts(std::max<std::size_t>(1, stages.size()));
  for (std::int32_t l = 0; l < layers; ++l) ++counts[static_cast<std::size_t>(l) % counts.size()];
  StepTiming timing{.expert = split(unit_seconds, forward_share)};
  for (const std::size_t s : interleave(counts)) {
    LayerTiming layer{.expert_weight = cost.expert_weight(LayerId(timing.layers.size()))};
    if (!stages.empty()) {
      const double each = unit_seconds / static_cast<double>(counts[s]);
      layer.stage = stages[s].name;
      layer.token = split(stages[s].alpha * each, forward_share);
      layer.pair = split(stages[s].beta * each / static_cast<double>(capacity), forward_share);
    }
    timing.layers.push_back(std::move(layer));
  }
  return timing;
}

StepTiming time_model(const ModelShape& shape, const Device& device, const ModelSpread& spread) {
  for (const auto& [name, value] :
       {std::pair{"capacity", spread.capacity}, std::pair{"dp", std::int64_t{spread.dp}},
        std::pair{"ep", std::int64_t{spread.ep}}, std::pair{"tp", std::int64_t{spread.tp}},
        std::pair{"cp", std::int64_t{spread.cp}}, std::pair{"etp", std::int64_t{spread.etp}},
        std::pair{"pp", std::int64_t{spread.pp}}, std::pair{"ranks per node", std::int64_t{spread.ranks_per_node}},
        std::pair{"tile", spread.tile}}) {
    if (value < 1) throw InvalidInput(fmt::format("{}: found {}, wanted at least 1", name, value));
  }
  const double tp = spread.tp, cp = spread.cp, etp = spread.etp, pp = spread.pp, ep = spread.ep;
  const double cell_share = 1.0 / (tp * cp);
  const double node = spread.ranks_per_node;
  StepTiming timing{.tile = spread.tile, .recompute = spread.recompute};
  for (const LayerShape& layer : shape.layers) {
    timing.layers.push_back(time_layer(shape, layer, device, spread.capacity, cell_share));
  }
  LayerTiming head{.stage = std::string(kHeadStage), .routed = false};
  const double head_forward =
      cell_share * 2.0 * static_cast<double>(shape.hidden) * static_cast<double>(shape.vocab) / device.dense_flops;
  head.token = {head_forward, 2.0 * head_forward};
  timing.layers.push_back(std::move(head));

  const double forward = routed_token_flops(shape, {.backward = false}) / etp / device.grouped_flops;
  timing.expert = {forward, 2.0 * forward};
  const ParameterCount parameters = count_parameters(shape);
  const double weights = parameters.expert / etp;
  timing.floor = {kValueBytes * weights / device.memory_rate,
                  (kValueBytes + 2.0 * kGradientBytes) * weights / device.memory_rate};

  // A routed token's hidden state goes to each of the P ranks with equal chance.
  const double inside = (std::min(node, ep) - 1.0) / ep;
  const double outside = (ep - std::min(node, ep)) / ep;
  const double way =
      static_cast<double>(shape.hidden) * kValueBytes * std::max(inside / device.near_rate, outside / device.far_rate);
  timing.exchange = {way, way};

  const double stage_devices = static_cast<double>(spread.dp) * tp * cp;
  const double rate = [&](double devices_apart) {
    return devices_apart > node ? device.far_rate : device.near_rate;
  }(stage_devices);
  if (spread.pp > 1) {
    const double apart = stage_devices >= node ? device.far_rate : device.near_rate;
    timing.hand_over = cell_share * static_cast<double>(shape.hidden) * kValueBytes / apart;
  }
  const double routed =
      static_cast<double>(shape.moe_layers()) * static_cast<double>(shape.experts) * parameters.expert;
  const double dense_here = (parameters.total - routed) / (tp * pp);
  const double experts_here = routed / (ep * etp * pp);
  const double dense_replicas = static_cast<double>(spread.dp) * cp;
  const double expert_replicas = std::max(1.0, stage_devices / (ep * etp));
  timing.reduce = (ring_bytes(dense_here, dense_replicas) + ring_bytes(experts_here, expert_replicas)) / rate;
  timing.optimizer =
      kOptimizerStateBytes * (dense_here / dense_replicas + experts_here / expert_replicas) / device.memory_rate;
  return timing;
}

}  // namespace routepack
