// SPDX-License-Identifier: Apache-2.0
// Evaluated proposals per second of one core: swaps that fit, between two rows, with the full change of the energy
// computed and none accepted. Beside them a kernel that only reads the same operands, and whole walks with all that
// they draw, reject and accept. 512 samples in 4 rows of 16 slots, two dense stages.
#include <benchmark/benchmark.h>
#include <hwy/targets.h>

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "cost/kernels/exchange.h"
#include "exec/executor.h"
#include "packing/fill_rows.h"
#include "packing/fit.h"
#include "packing/row_bound.h"
#include "packing/search/chain.h"
#include "packing/search/state.h"
#include "packing/search/temperature.h"
#include "routepack/routepack.h"

namespace routepack {
namespace {

constexpr std::int64_t kSamples = 512;
constexpr std::int32_t kSlots = 16;
constexpr std::int64_t kCapacity = 10'000;

/// The tensors of a synthetic window: lengths of 400 … 1600 tokens, four experts per rank.
struct Tensors {
  Tensors(std::int64_t layer_count, std::int64_t rank_count) : layers(layer_count), experts(4 * rank_count) {
    std::mt19937_64 random(1);
    for (std::int64_t i = 0; i < kSamples; ++i) {
      lengths.push_back(static_cast<std::int32_t>(400 + random() % 1200));
      const auto mean = static_cast<std::uint64_t>(8 * lengths.back() / experts);
      for (std::int64_t le = 0; le < layers * experts; ++le) {
        counts.push_back(static_cast<std::uint16_t>(random() % (mean + 1)));
      }
    }
  }
  [[nodiscard]] Window window() const {
    WindowArrays arrays;
    arrays.samples = kSamples;
    arrays.layers = layers;
    arrays.experts = experts;
    arrays.top_k = 8;
    arrays.lengths = lengths;
    arrays.counts = std::span<const std::uint16_t>(counts);
    return Window(arrays, nullptr);
  }
  std::int64_t layers;
  std::int64_t experts;
  std::vector<std::int32_t> lengths;
  std::vector<std::uint16_t> counts;
};

/// A filled layout of such a window, ready to be searched.
class Scene {
 public:
  Scene(std::int64_t layers, std::int32_t ranks)
      : tensors_(layers, ranks),
        window_(tensors_.window()),
        instance_(window_, Topology::from_shards(ranks, {slots()}), CostModel({{"kda", 150, 0}, {"mla", 60, 200}}),
                  kCapacity),
        placement_(Placement::identity(window_.layers(), window_.experts(), ranks)),
        items_(std::get<Items>(make_items(instance_))),
        loads_(instance_, placement_, items_, executor_),
        fitted_(std::get<FittedCells>(fewest_rows(instance_, items_, row_bound(instance_, items_, {})))),
        problem_(instance_, placement_, items_, loads_, fitted_.rows),
        state_(problem_, *fill_rows(instance_, loads_, {}, fitted_)) {
    std::mt19937_64 random(2);
    while (moves_.size() < 4096) {
      const auto any = [&] { return static_cast<search::Index>(random() % kSamples); };
      search::Move move{.item = any(), .partner = any()};
      move.to = state_.cell_of(move.partner);
      const search::Index from = state_.cell_of(move.item);
      if (problem_.row_shard_of[from] != problem_.row_shard_of[move.to] && state_.fits(move)) moves_.push_back(move);
    }
  }

  [[nodiscard]] const std::vector<search::Move>& moves() const { return moves_; }
  [[nodiscard]] search::State& state() { return state_; }
  [[nodiscard]] const search::Problem& problem() const { return problem_; }
  [[nodiscard]] const UnitLoads& loads() const { return loads_; }

 private:
  static std::vector<SlotId> slots() {
    std::vector<SlotId> all;
    for (std::int32_t d = 0; d < kSlots; ++d) all.emplace_back(d);
    return all;
  }

  SerialExecutor executor_;
  Tensors tensors_;
  Window window_;
  Instance instance_;
  Placement placement_;
  Items items_;
  UnitLoads loads_;
  FittedCells fitted_;
  search::Problem problem_;
  search::State state_;
  std::vector<search::Move> moves_;
};

/// Restricts Highway to one instruction set; 0 = the best. False when the machine lacks it.
bool use_target(benchmark::State& state, std::int64_t target) {
  if (target == 0) return true;
  if ((hwy::SupportedTargets() & target) == 0) {
    state.SkipWithError("this machine lacks the instruction set");
    return false;
  }
  hwy::SetSupportedTargetsForTest(target);
  return true;
}

void shapes(benchmark::internal::Benchmark* bench) {
  for (const auto& [layers, ranks] : {std::pair{24, 8}, {40, 16}, {58, 32}, {94, 64}}) {
    bench->Args({layers, ranks, 0});
    bench->Args({layers, ranks, HWY_AVX2});
  }
  bench->ArgNames({"L", "P", "target"})->Unit(benchmark::kNanosecond);
}

/// The estimate that rejects or admits a proposal, items_per_second = proposals.
void proposals(benchmark::State& state) {
  Scene scene(state.range(0), static_cast<std::int32_t>(state.range(1)));
  if (!use_target(state, state.range(2))) return;
  search::Totals totals = scene.state().totals();
  const search::EnergyWeights weights{1.0, 1e-6, 0.0};
  std::size_t at = 0;
  for (auto _ : state) {
    const search::Move& move = scene.moves()[at++ % scene.moves().size()];
    const auto estimate = scene.state().estimate(move, totals);
    benchmark::DoNotOptimize(scene.state().energy_change(weights, move, estimate, totals));
  }
  state.SetItemsProcessed(state.iterations());
  hwy::SetSupportedTargetsForTest(0);
}
BENCHMARK(proposals)->Apply(shapes);

/// Only reads what a proposal reads: two items and two row-shards, items at random.
void stream(benchmark::State& state) {
  Scene scene(state.range(0), static_cast<std::int32_t>(state.range(1)));
  if (!use_target(state, state.range(2))) return;
  const LaneShape& shape = scene.loads().shape();
  std::vector<std::int16_t> rows(scene.problem().row_shards() * shape.lanes(), 1);
  std::size_t at = 0;
  for (auto _ : state) {
    const search::Move& move = scene.moves()[at++ % scene.moves().size()];
    const std::size_t a = scene.problem().row_shard_of[scene.state().cell_of(move.item)];
    const std::size_t b = scene.problem().row_shard_of[move.to];
    benchmark::DoNotOptimize(
        kernels::stream_operands(shape, scene.loads().narrow(move.item), scene.loads().narrow(move.partner),
                                 rows.data() + a * shape.lanes(), rows.data() + b * shape.lanes()));
  }
  state.SetItemsProcessed(state.iterations());
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(8 * shape.lanes()));
  hwy::SetSupportedTargetsForTest(0);
}
BENCHMARK(stream)->Apply(shapes);

/// A walk at a cold temperature of the default effort: draws, cap checks, estimates, accepted moves and all.
void walk(benchmark::State& state) {
  Scene scene(state.range(0), static_cast<std::int32_t>(state.range(1)));
  if (!use_target(state, state.range(2))) return;
  const SearchParams params = search_of(Effort::Default);
  const auto levels = search::temperatures(scene.state(), params, 1);
  const search::Region all = search::whole(scene.problem());
  search::Totals totals = scene.state().totals();
  std::int64_t priced = 0;
  search::Index round = 0;
  // Settle first: a start that is far from good accepts too much.
  const auto task = [&](std::int64_t steps, double temperature) {
    return search::Task{.seed = 1,
                        .level = round++,
                        .temperature = temperature,
                        .steps = steps,
                        .weights = search::energy_weights(scene.problem(), params)};
  };
  for (const double temperature : levels) {
    (void)search::walk(scene.state(), all, task(20'000, temperature), params, totals, {});
  }
  for (auto _ : state) {
    priced +=
        search::walk(scene.state(), all, task(10'000, levels[levels.size() * 3 / 4]), params, totals, {}).proposals;
  }
  state.SetItemsProcessed(priced);
  hwy::SetSupportedTargetsForTest(0);
}
BENCHMARK(walk)->Apply(shapes)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace routepack
