// SPDX-License-Identifier: Apache-2.0
#include "cli/step_timing.h"

#include "cli/command.h"
#include "routepack/device.h"
#include "routepack/model_cost.h"

namespace routepack::cli {
namespace {

constexpr std::int32_t kUsualNode = 8;

}  // namespace

std::int32_t ranks_per_node_or_default(std::int64_t asked) {
  return asked > 0 ? static_cast<std::int32_t>(asked) : kUsualNode;
}

std::optional<StepTiming> step_timing_of(const PlanSetup& setup, const StepTimingOptions& options,
                                         const Topology& topology) {
  if (!options.timing.empty()) {
    if (options.recompute) throw UsageError("--recompute and --timing exclude each other: the file has measured times");
    return StepTiming::load(options.timing);
  }
  if (setup.device.empty()) {
    if (options.recompute) throw UsageError("--recompute: wanted with --device FILE");
    return std::nullopt;
  }
  const ModelShape shape =
      setup.model_config.empty() ? model_shape(setup.params.model) : load_model_shape(setup.model_config);
  return time_model(shape, Device::load(setup.device),
                    {.capacity = setup.cap,
                     .dp = topology.slots(),
                     .ep = topology.ranks(),
                     .tp = static_cast<std::int32_t>(setup.tp),
                     .cp = static_cast<std::int32_t>(setup.cp),
                     .etp = static_cast<std::int32_t>(setup.etp),
                     .pp = topology.pipeline_stages(),
                     .ranks_per_node = ranks_per_node_or_default(setup.params.ranks_per_node),
                     .tile = options.tile,
                     .recompute = options.recompute});
}

}  // namespace routepack::cli
