// SPDX-License-Identifier: Apache-2.0
// Placement from aggregates the size of a large model: 94 layers of 512 experts on 64 ranks, 16 rows of one shard.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "exec/thread_pool.h"
#include "placement/relabel.h"
#include "placement/row_aware.h"
#include "placement/slots.h"
#include "placement/sticky.h"

namespace routepack {
namespace {

constexpr std::int32_t kLayers = 94, kExperts = 512, kRanks = 64, kRows = 16;
constexpr double kTokensPerExpert = 2000.0;  // in a row, on average

/// Loads of one step: popularity of experts (lognormal, drifting by `drift` per step), then the noise of rows.
struct Aggregates {
  RowLoads rows;
  std::vector<std::int64_t> demand;
};

Aggregates draw(double drift) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  Aggregates made;
  made.rows.rows = kRows;
  made.rows.shards = 1;
  made.rows.layers = kLayers;
  made.rows.experts = kExperts;
  made.rows.ranks = kRanks;
  made.rows.weights.assign(kLayers, 1.0);
  made.rows.dense.assign(kRows, 100.0);
  made.rows.capacity = 32768;
  std::vector<std::int32_t> loads;
  for (std::int32_t n = 0; n < kLayers * kExperts; ++n) {
    // Cut as auxiliary losses cut it: no expert alone is more than a rank's mean.
    const double popularity = std::min(0.5 * normal(random), 1.2) + drift * normal(random);
    std::int64_t sum = 0;
    for (std::int32_t r = 0; r < kRows; ++r) {
      loads.push_back(static_cast<std::int32_t>(kTokensPerExpert * std::exp(popularity + 0.15 * normal(random))));
      sum += loads.back();
    }
    made.demand.push_back(sum);
  }
  made.rows.loads = std::move(loads);
  return made;
}

/// Where the step before left the experts: balanced for loads without this step's drift.
const Placement& before() {
  static const Placement kBefore = place_lpt(draw(0.0).demand, Placement::identity(kLayers, kExperts, kRanks));
  return kBefore;
}

const Aggregates& aggregates() {
  static const Aggregates kAggregates = draw(0.1);
  return kAggregates;
}

void sticky(benchmark::State& state) {
  for (auto _ : state) {
    MoveLedger ledger(before(), {});
    benchmark::DoNotOptimize(place_sticky(aggregates().demand, ledger));
    state.counters["moved_percent"] = 100.0 * static_cast<double>(ledger.moved()) / (kLayers * kExperts);
  }
}
BENCHMARK(sticky)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime()->UseRealTime();

/// Sticky and row-aware together, on two threads. Arguments: the share that may move in percent (100 is free), and the
/// steps in thousands (0: as many as it takes).
void sticky_and_row_aware(benchmark::State& state) {
  ThreadPool pool(2);
  for (auto _ : state) {
    MoveBudget budget;
    budget.share = static_cast<double>(state.range(0)) / 100.0;
    MoveLedger ledger(before(), budget);
    const StickyResult stayed = place_sticky(aggregates().demand, ledger);
    RowAwareParams params;
    if (state.range(1) > 0) params.most_steps = 1000 * state.range(1);
    const auto refined = refine_placement(aggregates().rows, stayed.placement, ledger, params, pool);
    state.counters["moved_percent"] = 100.0 * static_cast<double>(ledger.moved()) / (kLayers * kExperts);
    state.counters["swaps"] = static_cast<double>(refined.swaps);
    state.counters["rounds"] = static_cast<double>(refined.rounds);
    state.counters["steps"] = static_cast<double>(refined.steps);
    state.counters["gain_percent"] = 100.0 * (1.0 - refined.after.max_shard / refined.before.max_shard);
  }
}
BENCHMARK(sticky_and_row_aware)
    ->Args({2, 4000})
    ->Args({5, 4000})
    ->Args({10, 4000})
    ->Args({20, 4000})
    ->Args({100, 1000})
    ->Args({100, 4000})
    ->Args({20, 0})
    ->Args({100, 0})
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

void relabelled_lpt(benchmark::State& state) {
  const Placement fresh = place_lpt(aggregates().demand, Placement::identity(kLayers, kExperts, kRanks));
  for (auto _ : state) benchmark::DoNotOptimize(relabel(fresh, before()));
}
BENCHMARK(relabelled_lpt)->Unit(benchmark::kMillisecond)->MeasureProcessCPUTime()->UseRealTime();

}  // namespace
}  // namespace routepack
