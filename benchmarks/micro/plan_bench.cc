// SPDX-License-Identifier: Apache-2.0
// What the phases of planning cost on the example window of gpt-oss-20b.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <variant>

#include "routepack/routepack.h"

namespace routepack {
namespace {

const std::filesystem::path kExamples = std::filesystem::path(ROUTEPACK_SOURCE_DIR) / "examples";

const Window& window() {
  static const Window kWindow = Window::load(kExamples / "windows" / "gptoss20b-mmlu-354.safetensors");
  return kWindow;
}

const Instance& instance() {
  static const Instance kInstance(window(), Topology::megatron({.dp = 8, .ep = 8}),
                                  CostModel::load(kExamples / "gptoss20b.toml"), 2048);
  return kInstance;
}

const Plan& plan() {
  static const Plan kPlan = std::get<Plan>(make_plan(instance(), PlanParams{}));
  return kPlan;
}

void load(benchmark::State& state) {
  const auto path = kExamples / "windows" / "gptoss20b-mmlu-354.safetensors";
  for (auto _ : state) benchmark::DoNotOptimize(Window::load(path));
}
BENCHMARK(load)->Unit(benchmark::kMicrosecond);

void fingerprint(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(window().fingerprint());
}
BENCHMARK(fingerprint)->Unit(benchmark::kMicrosecond);

void demand(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(aggregate_demand(window()));
}
BENCHMARK(demand)->Unit(benchmark::kMicrosecond);

void lpt(benchmark::State& state) {
  const auto total = aggregate_demand(window());
  const auto current = Placement::identity(window().layers(), window().experts(), 8);
  for (auto _ : state) benchmark::DoNotOptimize(place_lpt(total, current));
}
BENCHMARK(lpt)->Unit(benchmark::kMicrosecond);

void score_from_scratch(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(evaluate(instance(), plan().placement, plan().layout));
}
BENCHMARK(score_from_scratch)->Unit(benchmark::kMicrosecond);

void whole_plan(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(make_plan(instance(), PlanParams{}));
}
BENCHMARK(whole_plan)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace routepack
