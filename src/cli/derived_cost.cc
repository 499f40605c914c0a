// SPDX-License-Identifier: Apache-2.0
#include "cli/derived_cost.h"

#include <fmt/format.h>

#include <optional>

#include "cli/command.h"
#include "routepack/device.h"
#include "routepack/model_cost.h"

namespace routepack::cli {
namespace {

/// The model that gives the cost; nothing when a cost file does.
std::optional<ModelShape> costed_model(const PlanSetup& setup) {
  if (!setup.cost.empty()) {
    const char* other = !setup.model_config.empty() ? "--model-config" : !setup.device.empty() ? "--device" : nullptr;
    if (other != nullptr) throw UsageError(fmt::format("--cost and {} exclude each other", other));
    return std::nullopt;
  }
  if (!setup.model_config.empty()) return load_model_shape(setup.model_config);
  if (!setup.params.model.empty()) return model_shape(setup.params.model);
  throw UsageError(
      "--cost is missing: what a token costs, in a TOML file such as  expert = 1.0  [[stage]]  name = "
      "\"full\"  alpha = 60.0  beta = 200.0  (routepack plan --cost-template prints one to start from), or the model: "
      "--model-config config.json, --model NAME");
}

DerivedCost derive(const PlanSetup& setup, const ModelShape& shape) {
  std::optional<Device> device;
  if (!setup.device.empty()) device = Device::load(setup.device);
  return derive_cost(shape, {.capacity = setup.cap, .tp = setup.tp, .cp = setup.cp, .etp = setup.etp}, {},
                     device ? &*device : nullptr);
}

}  // namespace

CostModel cost_of(const PlanSetup& setup) {
  const auto shape = costed_model(setup);
  return shape ? derive(setup, *shape).cost : CostModel::load(setup.cost);
}

std::string describe_derived_cost(const PlanSetup& setup) {
  const auto shape = costed_model(setup);
  if (!shape) return "";
  const DerivedCost derived = derive(setup, *shape);
  std::string text = "cost: ";
  for (const Stage& stage : derived.cost.stages()) {
    text += fmt::format("{} alpha {:.1f} beta {:.1f}, ", stage.name, stage.alpha, stage.beta);
  }
  text += "expert 1 (";
  if (derived.unit_seconds > 0.0) text += fmt::format("{:.2f} ns, ", 1e9 * derived.unit_seconds);
  return text + fmt::format("{:.1f} MFLOP), from {}", derived.unit_flops / 1e6, describe(*shape));
}

void require_fits_model(const PlanSetup& setup, const Window& window, const std::string& where) {
  if (const auto shape = costed_model(setup)) {
    require_fits(*shape, window.layers(), window.experts(), window.top_k(), where);
  }
}

}  // namespace routepack::cli
