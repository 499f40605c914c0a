// SPDX-License-Identifier: Apache-2.0
// One rank's schedule, and the whole forecast, for 94 layers of 512 experts on 64 EP ranks with 8 lanes, a tenth moved.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "routepack/grid_layout.h"
#include "routepack/move_schedule.h"
#include "routepack/placement.h"
#include "transfer/checksum.h"
#include "transfer/synthetic_state.h"

namespace routepack {
namespace {

constexpr std::int32_t kLayers = 94, kExperts = 512, kRanks = 64, kLanes = 8;

const GridLayout& layout() {
  static const GridLayout kLayout =
      GridLayout::adam({.ep = kRanks, .edp = kLanes}, kLayers, kExperts / kRanks, 4096, 1536);
  return kLayout;
}

/// `percent` of all experts on another rank, by swaps of two.
Placement after(std::int32_t percent) {
  std::mt19937_64 random(1);
  std::uniform_int_distribution<std::int32_t> any(0, kExperts - 1);
  auto maps = Placement::identity(kLayers, kExperts, kRanks).physical_to_logical();
  constexpr std::int32_t kSlots = kExperts / kRanks;
  for (auto& map : maps) {
    for (std::int32_t moved = 0; 100 * moved < percent * kExperts;) {
      const std::int32_t a = any(random);
      const std::int32_t b = any(random);
      const auto at_home = [&](std::int32_t slot) { return map[static_cast<std::size_t>(slot)].value() == slot; };
      if (a / kSlots == b / kSlots || !at_home(a) || !at_home(b)) continue;
      std::swap(map[static_cast<std::size_t>(a)], map[static_cast<std::size_t>(b)]);
      moved += 2;
    }
  }
  return Placement::from_maps(kRanks, std::move(maps));
}

/// Argument: percent of the experts that move.
void schedule_of_one_rank(benchmark::State& state, Route route) {
  const Placement from = Placement::identity(kLayers, kExperts, kRanks);
  const Placement to = after(static_cast<std::int32_t>(state.range(0)));
  std::size_t copies = 0;
  for (auto _ : state) {
    const auto schedule = schedule_moves(layout(), from, to, 0, route);
    copies = 0;
    for (const LayerSchedule& layer : schedule) copies += layer.copies.size();
    benchmark::DoNotOptimize(copies);
  }
  state.counters["copies"] = static_cast<double>(copies);
}
BENCHMARK_CAPTURE(schedule_of_one_rank, two_hop, Route::TwoHop)->Arg(10)->Arg(80)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(schedule_of_one_rank, direct, Route::Direct)->Arg(10)->Unit(benchmark::kMillisecond);

void forecast(benchmark::State& state) {
  const Placement from = Placement::identity(kLayers, kExperts, kRanks);
  const Placement to = after(static_cast<std::int32_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(forecast_traffic(layout(), from, to));
}
BENCHMARK(forecast)->Arg(10)->Unit(benchmark::kMillisecond);

void layout_by_megatrons_rules(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(GridLayout::adam({.ep = kRanks, .edp = kLanes}, kLayers, kExperts / kRanks, 4096, 1536));
  }
}
BENCHMARK(layout_by_megatrons_rules)->Unit(benchmark::kMillisecond);

/// State of one rank of a small grid, about 100 MB.
void synthetic_state(benchmark::State& state, bool checked) {
  const GridLayout small = GridLayout::adam({.ep = 2, .edp = 2}, 2, 2, 2048, 768);
  const Placement home = Placement::identity(2, 4, 2);
  SyntheticState made(small, 0, home, 1);
  for (auto _ : state) {
    if (checked) {
      benchmark::DoNotOptimize(made.mismatch(home));
    } else {
      made.fill(home);
    }
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * made.size());
}
BENCHMARK_CAPTURE(synthetic_state, fill, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(synthetic_state, check, true)->Unit(benchmark::kMillisecond);

/// Of chunks of 1 MiB, as messages are cut.
void piece_checksum(benchmark::State& state) {
  const std::vector<std::byte> chunk(std::size_t{1} << 20, std::byte{1});
  PieceChecksum checksum;
  checksum.begin({});
  for (auto _ : state) {
    checksum.add(chunk);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) << 20);
}
BENCHMARK(piece_checksum);

}  // namespace
}  // namespace routepack
