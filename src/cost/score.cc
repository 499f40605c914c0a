// SPDX-License-Identifier: Apache-2.0
#include "routepack/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "cost/row_cost.h"
#include "routepack/error.h"

namespace routepack {
namespace {

constexpr std::int64_t kExactSquares = std::int64_t{1} << 53;

void check_shapes(const Instance& instance, const Placement& placement, const Layout& layout) {
  const auto require = [](const char* what, std::int64_t found, std::int64_t wanted) {
    if (found != wanted) throw InvalidInput(fmt::format("{}: found {}, wanted {}", what, found, wanted));
  };
  require("placement: layers", placement.layers(), instance.window.layers());
  require("placement: experts", placement.experts(), instance.window.experts());
  require("placement: EP ranks", placement.ranks(), instance.topology.ranks());
  require("layout: slots", layout.slots(), instance.topology.slots());
}

CellTotals cell_totals(const Instance& instance, std::span<const SampleId> cell) {
  CellTotals totals;
  for (const SampleId i : cell) {
    const std::int64_t length = instance.window.length(i);
    if (length <= kMaxCapacity) totals.squares += length * length;
    if (length > kMaxCapacity || totals.squares >= kExactSquares) {
      throw InvalidInput(
          fmt::format("lengths[{}]: the squared lengths of its cell reach 2^53, wanted less: such long "
                      "samples cannot be scored exactly",
                      i.value()));
    }
    totals.tokens += length;
    totals.aligned += instance.aligned_length(i);
  }
  return totals;
}

/// Rank loads of one row on one shard, with the dense cost of its cells.
struct RowShard {
  std::vector<CellTotals> cells;    // in the shard's slot order
  std::vector<std::int64_t> loads;  // [L, P]
};

void fill(RowShard& shard, const Instance& instance, const Placement& placement, const Layout& layout,
          std::span<const std::int64_t> pad_rates, RowId r, ShardId g) {
  shard.cells.clear();
  std::ranges::fill(shard.loads, 0);
  std::int64_t pads = 0;
  for (const SlotId d : instance.topology.slots_of(g)) {
    const auto cell = layout.cell(r, d);
    shard.cells.push_back(cell_totals(instance, cell));
    pads += instance.aligned_cell(shard.cells.back().aligned) - shard.cells.back().tokens;
    for (const SampleId i : cell) add_rank_loads(instance.window, placement, i, shard.loads);
  }
  if (!pad_rates.empty()) add_pad_loads(pad_rates, pads, shard.loads);
}

double attention_work(const Instance& instance, std::span<const CellTotals> cells) {
  double sum = 0.0;
  for (const Stage& stage : instance.cost.stages()) {
    double slowest = 0.0;
    for (const CellTotals& cell : cells) slowest = std::max(slowest, stage_work(stage, cell, instance.capacity));
    sum += slowest;
  }
  return sum;
}

}  // namespace

Score combine_rows(std::span<const double> joint, std::int32_t rows, std::int32_t shards, Sync sync) {
  const auto at = [&](std::int32_t r, std::int32_t g) {
    return joint[static_cast<std::size_t>(std::int64_t{r} * shards + g)];
  };
  Score score;
  for (std::int32_t g = 0; g < shards; ++g) {
    double shard = 0.0;
    for (std::int32_t r = 0; r < rows; ++r) {
      shard += at(r, g);
      score.worst_row = std::max(score.worst_row, at(r, g));
    }
    score.total += shard;
    if (sync == Sync::Step) score.max_shard = std::max(score.max_shard, shard);
  }
  if (sync == Sync::Row) {
    for (std::int32_t r = 0; r < rows; ++r) {
      double slowest = 0.0;
      for (std::int32_t g = 0; g < shards; ++g) slowest = std::max(slowest, at(r, g));
      score.max_shard += slowest;
    }
  }
  return score;
}

Evaluation evaluate(const Instance& instance, const Placement& placement, const Layout& layout) {
  check_shapes(instance, placement, layout);
  const auto layers = static_cast<std::size_t>(instance.window.layers());
  const auto ranks = static_cast<std::size_t>(instance.topology.ranks());
  const auto pad_rates = pad_rank_rates(instance.window, placement);

  Evaluation result;
  RowShard shard;
  shard.loads.resize(layers * ranks);
  std::int64_t mean_sum = 0;  // Σ_{r,l} max_g Σ_p W
  std::vector<std::int64_t> row_peak(layers);
  std::vector<std::int64_t> row_total(layers);

  for (const RowId r : layout.row_ids()) {
    std::ranges::fill(row_peak, 0);
    std::ranges::fill(row_total, 0);
    for (const ShardId g : instance.topology.shard_ids()) {
      fill(shard, instance, placement, layout, pad_rates, r, g);
      const double attention = attention_work(instance, shard.cells);
      const double expert = expert_work(instance.cost, shard.loads, instance.topology.ranks(), instance.capacity);
      result.attention += attention;
      result.joint.push_back(attention + expert);
      for (std::size_t l = 0; l < layers; ++l) {
        const auto layer = std::span(shard.loads).subspan(l * ranks, ranks);
        std::int64_t total = 0;
        for (const std::int64_t load : layer) total += load;
        row_total[l] = std::max(row_total[l], total);
        row_peak[l] = std::max(row_peak[l], *std::ranges::max_element(layer));
      }
    }
    for (std::size_t l = 0; l < layers; ++l) {
      result.expert_peak_sum += row_peak[l];
      result.tail_peak = std::max(result.tail_peak, row_peak[l]);
      mean_sum += row_total[l];
    }
  }
  if (result.expert_peak_sum > 0) {
    result.ep_efficiency =
        static_cast<double>(mean_sum) / static_cast<double>(ranks) / static_cast<double>(result.expert_peak_sum);
  }
  result.score = combine_rows(result.joint, layout.rows(), instance.topology.shards(), instance.sync);
  return result;
}

std::vector<std::int64_t> pad_rank_rates(const Window& window, const Placement& placement) {
  const auto pad_counts = window.arrays().pad_counts;
  if (pad_counts.empty()) return {};
  const auto ranks = static_cast<std::size_t>(placement.ranks());
  const auto experts = static_cast<std::size_t>(window.experts());
  std::vector<std::int64_t> rates(static_cast<std::size_t>(window.layers()) * ranks);
  for (const LayerId l : window.layer_ids()) {
    for (const ExpertId e : window.expert_ids()) {
      rates[l * ranks + placement.rank_of(l, e)] += pad_counts[l * experts + e];
    }
  }
  return rates;
}

std::vector<std::int64_t> rank_demand(std::span<const std::int64_t> demand, const Placement& placement) {
  const auto ranks = static_cast<std::size_t>(placement.ranks());
  const auto experts = static_cast<std::size_t>(placement.experts());
  std::vector<std::int64_t> loads(static_cast<std::size_t>(placement.layers()) * ranks);
  for (const LayerId l : IdRange<LayerId>(placement.layers())) {
    for (const ExpertId e : IdRange<ExpertId>(placement.experts())) {
      loads[l * ranks + placement.rank_of(l, e)] += demand[l * experts + e];
    }
  }
  return loads;
}

double rank_demand_cv(std::span<const std::int64_t> rank_demand, std::int32_t ranks) {
  const auto width = static_cast<std::size_t>(ranks);
  double sum = 0.0;
  std::int64_t layers_with_load = 0;
  for (std::size_t l = 0; l * width < rank_demand.size(); ++l) {
    const auto layer = rank_demand.subspan(l * width, width);
    std::int64_t total = 0;
    for (const std::int64_t load : layer) total += load;
    if (total == 0) continue;
    const double mean = static_cast<double>(total) / static_cast<double>(ranks);
    double squares = 0.0;
    for (const std::int64_t load : layer) {
      const double off = static_cast<double>(load) - mean;
      squares += off * off;
    }
    sum += std::sqrt(squares / static_cast<double>(ranks)) / mean;
    ++layers_with_load;
  }
  return layers_with_load == 0 ? 0.0 : sum / static_cast<double>(layers_with_load);
}

}  // namespace routepack
