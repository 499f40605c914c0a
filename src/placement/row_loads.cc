// SPDX-License-Identifier: Apache-2.0
#include "placement/row_loads.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "cost/row_cost.h"

namespace routepack {
namespace {

struct RowShardSums {
  double dense = 0.0;
  std::int64_t pads = 0;
};

/// A[r, g] and the padding tokens of a row-shard, in the order of docs/mathematics.md.
RowShardSums sum_cells(const Instance& instance, const Layout& layout, RowId r, ShardId g) {
  RowShardSums sums;
  std::vector<CellTotals> cells;
  for (const SlotId d : instance.topology.slots_of(g)) {
    CellTotals cell;
    for (const SampleId i : layout.cell(r, d)) {
      const std::int64_t length = instance.window.length(i);
      cell.tokens += length;
      cell.squares += length * length;
      cell.aligned += instance.aligned_length(i);
    }
    sums.pads += instance.aligned_cell(cell.aligned) - cell.tokens;
    cells.push_back(cell);
  }
  for (const Stage& stage : instance.cost.stages()) {
    double slowest = 0.0;
    for (const CellTotals& cell : cells) slowest = std::max(slowest, stage_work(stage, cell, instance.capacity));
    sums.dense += slowest;
  }
  return sums;
}

/// The most that all row-shards together can load one layer with.
std::int64_t most_load(const Instance& instance, const RowLoads& rows) {
  constexpr std::int64_t kTooMuch = std::numeric_limits<std::int64_t>::max() / 2;
  std::int64_t routed = 0;
  for (const SampleId i : instance.window.sample_ids()) routed += instance.window.length(i);
  if (__builtin_mul_overflow(routed, std::int64_t{instance.window.top_k()}, &routed)) return kTooMuch;
  if (rows.pads.empty()) return routed;
  const std::int64_t pads = std::accumulate(rows.pads.begin(), rows.pads.end(), std::int64_t{0});
  std::int64_t most = 0;
  const auto experts = static_cast<std::size_t>(rows.experts);
  for (std::size_t at = 0; at < rows.pad_counts.size(); at += experts) {
    std::int64_t rate = 0;
    for (std::size_t e = 0; e < experts; ++e) rate += rows.pad_counts[at + e];
    if (__builtin_mul_overflow(rate, pads, &rate) || rate > kTooMuch) return kTooMuch;
    most = std::max(most, (rate >> 16) + std::int64_t{rows.ranks} * static_cast<std::int64_t>(rows.row_shards()));
  }
  return std::min(routed, kTooMuch) + most;
}

template <class Load>
std::vector<Load> sum_samples(const Instance& instance, const Layout& layout, const RowLoads& rows,
                              Executor& executor) {
  const std::size_t cells = static_cast<std::size_t>(rows.layers) * static_cast<std::size_t>(rows.experts);
  const std::size_t stride = rows.row_shards();
  std::vector<Load> loads(cells * stride);
  executor.for_each(stride, [&](std::size_t rg) {
    // Summed in one place and spread once: the samples' counts then stream.
    std::vector<std::int64_t> sums(cells, 0);
    const RowId r(rg / static_cast<std::size_t>(rows.shards));
    const ShardId g(rg % static_cast<std::size_t>(rows.shards));
    for (const SlotId d : instance.topology.slots_of(g)) {
      for (const SampleId i : layout.cell(r, d)) {
        if (i.value() >= instance.window.samples() || !instance.window.holds(i)) continue;
        instance.window.visit_counts(i, [&](auto counts) {
          for (std::size_t le = 0; le < cells; ++le) sums[le] += static_cast<std::int64_t>(counts[le]);
        });
      }
    }
    for (std::size_t le = 0; le < cells; ++le) loads[le * stride + rg] = static_cast<Load>(sums[le]);
  });
  if (!instance.window.whole()) executor.sum(std::span(loads));
  return loads;
}

}  // namespace

RowLoads aggregate_rows(const Instance& instance, const Layout& layout, Executor& executor) {
  const Window& window = instance.window;
  RowLoads rows;
  rows.rows = layout.rows();
  rows.shards = instance.topology.shards();
  rows.layers = window.layers();
  rows.experts = window.experts();
  rows.ranks = instance.topology.ranks();
  rows.capacity = instance.capacity;
  rows.max_rank_tokens = instance.constraints.max_rank_tokens;
  rows.sync = instance.sync;
  for (const LayerId l : window.layer_ids()) rows.weights.push_back(instance.cost.expert_weight(l));

  bool any_pads = false;
  for (const RowId r : layout.row_ids()) {
    for (const ShardId g : instance.topology.shard_ids()) {
      const RowShardSums sums = sum_cells(instance, layout, r, g);
      rows.dense.push_back(sums.dense);
      rows.pads.push_back(sums.pads);
      any_pads = any_pads || sums.pads > 0;
    }
  }
  const auto pad_counts = window.arrays().pad_counts;
  if (any_pads && !pad_counts.empty()) {
    rows.pad_counts.assign(pad_counts.begin(), pad_counts.end());
  } else {
    rows.pads.clear();
  }

  if (most_load(instance, rows) < (std::int64_t{1} << 31) / RowLoads::kMostShare) {
    rows.loads = sum_samples<std::int32_t>(instance, layout, rows, executor);
  } else {
    rows.loads = sum_samples<std::int64_t>(instance, layout, rows, executor);
  }
  return rows;
}

}  // namespace routepack
