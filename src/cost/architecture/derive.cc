// SPDX-License-Identifier: Apache-2.0
// From floating point operations to the α, β of the objective.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "routepack/error.h"
#include "routepack/model_cost.h"

namespace routepack {
namespace {

/// Time of an amount of work, in seconds with a device; without one a FLOP takes one unit whatever it is for.
double time_of(const Flops& work, const Device* device) {
  if (device == nullptr) return work.total();
  return work.dense / device->dense_flops + work.attention / device->attention_flops +
         work.linear / device->linear_flops;
}

std::string in_billions(double count) {
  return fmt::format("{:.{}f}B", count / 1e9, count < 10e9 ? 2 : 1);
}

}  // namespace

DerivedCost derive_cost(const ModelShape& shape, const CostScale& scale, const Passes& passes, const Device* device) {
  for (const auto& [name, value] : {std::pair{"capacity", scale.capacity}, std::pair{"tp", scale.tp},
                                    std::pair{"cp", scale.cp}, std::pair{"etp", scale.etp}}) {
    if (value < 1) throw InvalidInput(fmt::format("{}: found {}, wanted at least 1", name, value));
  }
  const double cell_ranks = static_cast<double>(scale.tp) * static_cast<double>(scale.cp);
  const double unit_flops = routed_token_flops(shape, passes) / static_cast<double>(scale.etp);
  const double unit = device == nullptr ? unit_flops : unit_flops / device->grouped_flops;
  std::vector<Stage> stages;
  for (const StageWork& work : stage_work(shape, scale.capacity, passes)) {
    stages.push_back({.name = work.name,
                      .alpha = time_of(work.token, device) / cell_ranks / unit,
                      .beta = static_cast<double>(scale.capacity) * time_of(work.pair, device) / cell_ranks / unit});
  }
  return {.cost = CostModel(std::move(stages), 1.0, shape.family),
          .unit_flops = unit_flops,
          .unit_seconds = device == nullptr ? 0.0 : unit,
          .unit_bytes = all_to_all_bytes(shape, passes)};
}

std::string describe(const ModelShape& shape) {
  const ParameterCount parameters = count_parameters(shape);
  std::string text = fmt::format("{}: ", shape.family);
  for (const StageWork& stage : stage_work(shape, 1)) text += fmt::format("{} {} + ", stage.layers, stage.name);
  text.resize(text.size() - 3);
  text += fmt::format(" layers, {} of them MoE, {} parameters, {} activated", shape.moe_layers(),
                      in_billions(parameters.total), in_billions(parameters.activated));
  for (std::size_t k = 0; k < shape.left_out.size(); ++k) {
    text += fmt::format("{}{}", k == 0 ? "; left out: " : ", ", shape.left_out[k]);
  }
  return text;
}

}  // namespace routepack
