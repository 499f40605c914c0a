// SPDX-License-Identifier: Apache-2.0
// What simulating a step costs, on generated windows of the paper's two sizes: 512 samples, 8 slots, 8 EP ranks.
#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <variant>

#include "routepack/routepack.h"
#include "simulate/chrome_trace.h"
#include "simulate/step_loads.h"

namespace routepack {
namespace {

constexpr std::int64_t kCapacity = 8192;

/// A generated window with a plan, and the timing of its own model.
struct Step {
  explicit Step(const char* model)
      : window(generate_window({.model = model, .lengths = LengthProfile::Math, .threads = 2})),
        device(Device::load(std::filesystem::path(ROUTEPACK_SOURCE_DIR) / "examples" / "devices" / "h20.toml")),
        instance(window, Topology::megatron({.dp = 8, .ep = 8}),
                 derive_cost(model_shape(model), {.capacity = kCapacity}, {}, &device).cost, kCapacity),
        plan(std::get<Plan>(make_plan(instance, fast()))),
        timing(time_model(model_shape(model), device, {.capacity = kCapacity, .dp = 8, .ep = 8})) {}
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  static PlanParams fast() {
    PlanParams params;
    params.effort = Effort::Fast;
    params.search = search_of(params.effort);
    return params;
  }

  Window window;
  Device device;
  Instance instance;
  Plan plan;
  StepTiming timing;
};

/// 0: 23 layers of 128 experts; 1: 40 of 512.
const Step& step_of(benchmark::State& state) {
  static std::array<std::unique_ptr<Step>, 2> steps;
  auto& step = steps.at(static_cast<std::size_t>(state.range(0)));
  if (!step) step = std::make_unique<Step>(state.range(0) == 0 ? "ling-3.0-tiny" : "ling-3.0-flash");
  state.SetLabel(std::to_string(step->window.samples()) + " samples x " + std::to_string(step->window.layers()) +
                 " x " + std::to_string(step->window.experts()) + ", " + std::to_string(step->plan.layout.rows()) +
                 " rows");
  return *step;
}

void count_steps(benchmark::State& state) {
  state.counters["steps_per_minute"] =
      benchmark::Counter(60.0 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void simulated_step(benchmark::State& state) {
  const Step& step = step_of(state);
  for (auto _ : state) {
    benchmark::DoNotOptimize(simulate_step(step.instance, step.plan.placement, step.plan.layout, step.timing));
  }
  count_steps(state);
}
BENCHMARK(simulated_step)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

/// The part of it that reads the window.
void loads_of_a_step(benchmark::State& state) {
  const Step& step = step_of(state);
  for (auto _ : state) {
    benchmark::DoNotOptimize(step_loads(step.instance, step.plan.placement, step.plan.layout, step.timing.tile));
  }
}
BENCHMARK(loads_of_a_step)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

/// With every interval written as text.
void traced_step(benchmark::State& state) {
  const Step& step = step_of(state);
  std::int64_t bytes = 0;
  for (auto _ : state) {
    ChromeTrace trace(step.timing,
                      [&](std::span<const std::byte> piece) { bytes += static_cast<std::int64_t>(piece.size()); });
    trace.finish(simulate_step(step.instance, step.plan.placement, step.plan.layout, step.timing, {}, &trace));
    state.counters["events"] = static_cast<double>(trace.events());
  }
  state.SetBytesProcessed(bytes);
}
BENCHMARK(traced_step)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace routepack
