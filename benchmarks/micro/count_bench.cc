// SPDX-License-Identifier: Apache-2.0
// Counting recorded ids, beside a loop that only reads the same bytes. «items» are ids. The ids are far larger than the
// caches, as recorded routes are. One thread is measured by its processor time, so that others on the machine matter
// little; two threads by the clock.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "exec/thread_pool.h"
#include "routepack/replay.h"
#include "window/replay/kernels.h"

namespace routepack {
namespace {

constexpr std::int64_t kSamples = 64;
constexpr std::int64_t kTokens = 2048;
constexpr std::int64_t kLayers = 48;
constexpr std::int64_t kTopK = 8;
constexpr std::size_t kIds = kSamples * kTokens * kLayers * kTopK;

/// Skewed draws of distinct experts, [kSamples, kTokens, kLayers, kTopK].
template <class T>
const std::vector<T>& ids(std::int64_t experts) {
  static std::map<std::int64_t, std::vector<T>> cache;
  auto& values = cache[experts];
  if (!values.empty()) return values;
  cache.clear();  // one at a time: they are large
  auto& drawn = cache[experts];
  drawn.reserve(kIds);
  std::minstd_rand random(7);
  std::vector<std::int64_t> last(static_cast<std::size_t>(experts), -1);
  for (std::int64_t row = 0; row < kSamples * kTokens * kLayers; ++row) {
    for (std::int64_t k = 0; k < kTopK;) {
      const auto u = static_cast<std::int64_t>(random()) % experts;
      const std::int64_t e = u * (static_cast<std::int64_t>(random()) % experts) / experts;
      if (std::exchange(last[static_cast<std::size_t>(e)], row) == row) continue;
      drawn.push_back(static_cast<T>(e));
      ++k;
    }
  }
  return drawn;
}

template <class T>
void report(benchmark::State& state) {
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kIds));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kIds * sizeof(T)));
}

/// Arguments: experts, threads.
template <class T, IdType kType>
void count(benchmark::State& state) {
  const std::int64_t experts = state.range(0);
  const auto bytes = std::as_bytes(std::span(ids<T>(experts)));
  const std::size_t size = bytes.size() / kSamples;
  std::vector<SampleRoutes> samples;
  for (std::size_t i = 0; i < kSamples; ++i) {
    samples.push_back({.ids = RouteIds::from_bytes(bytes.subspan(i * size, size), kType, kLayers, kTopK)});
  }
  ThreadPool pool(static_cast<std::size_t>(state.range(1)));
  ParallelFor parallel;
  if (state.range(1) > 1) parallel = [&](std::size_t n, const auto& body) { pool.for_each(n, body); };
  std::vector<std::uint32_t> counts(static_cast<std::size_t>(kSamples * kLayers * experts));
  for (auto _ : state) benchmark::DoNotOptimize(count_routes_batch(samples, {.experts = experts}, counts, parallel));
  report<T>(state);
}
BENCHMARK(count<std::uint8_t, IdType::U8>)->ArgsProduct({{64, 128, 256}, {1}});
BENCHMARK(count<std::uint16_t, IdType::U16>)->ArgsProduct({{256, 512}, {1}});
BENCHMARK(count<std::int32_t, IdType::I32>)->ArgsProduct({{64, 128, 256, 512}, {1}});
BENCHMARK(count<std::uint8_t, IdType::U8>)->ArgsProduct({{64, 128, 256}, {2}})->UseRealTime();
BENCHMARK(count<std::int32_t, IdType::I32>)->ArgsProduct({{64, 128, 256, 512}, {2}})->UseRealTime();

template <class T>
void stream(benchmark::State& state) {
  const auto bytes = std::as_bytes(std::span(ids<T>(64)));
  for (auto _ : state) benchmark::DoNotOptimize(replay::stream_bytes(bytes.data(), bytes.size()));
  report<T>(state);
}
BENCHMARK(stream<std::uint8_t>);
BENCHMARK(stream<std::int32_t>);

/// What bounds counting by increments: one per id in a table in the first-level cache, ids there too.
void increments_alone(benchmark::State& state) {
  const auto& all = ids<std::uint8_t>(128);
  std::vector<std::uint32_t> table(256);
  for (auto _ : state) {
    for (int n = 0; n < 1000; ++n) replay::count_ids(all.data(), 1024, table.data());
    benchmark::DoNotOptimize(table.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * 1024 * 1000);
}
BENCHMARK(increments_alone);

}  // namespace
}  // namespace routepack
