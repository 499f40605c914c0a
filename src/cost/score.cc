// SPDX-License-Identifier: Apache-2.0
#include "routepack/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "cost/evaluate.h"
#include "cost/row_cost.h"
#include "exec/team.h"
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

/// A stretch of rows whose rank loads fit into memory at once, [row, G, L, P], whoever holds the counts.
class Stretch {
 public:
  Stretch(const Instance& instance, const Placement& placement, const Layout& layout)
      : instance_(instance),
        placement_(placement),
        layout_(layout),
        shards_(static_cast<std::size_t>(instance.topology.shards())),
        width_(static_cast<std::size_t>(instance.window.layers()) * static_cast<std::size_t>(placement.ranks())) {}

  [[nodiscard]] std::int32_t rows_at_once() const {
    constexpr std::size_t kBytes = std::size_t{16} << 20;
    return static_cast<std::int32_t>(std::max<std::size_t>(1, kBytes / (sizeof(std::int64_t) * shards_ * width_)));
  }

  void sum(std::int32_t first, std::int32_t rows, Executor& executor) {
    first_ = first;
    loads_.assign(static_cast<std::size_t>(rows) * shards_ * width_, 0);
    executor.for_each(static_cast<std::size_t>(rows) * shards_, [&](std::size_t rg) {
      const RowId r(static_cast<std::size_t>(first) + rg / shards_);
      const auto loads = std::span(loads_).subspan(rg * width_, width_);
      for (const SlotId d : instance_.topology.slots_of(ShardId(rg % shards_))) {
        for (const SampleId i : layout_.cell(r, d)) {
          if (instance_.window.holds(i)) add_rank_loads(instance_.window, placement_, i, loads);
        }
      }
    });
    if (!instance_.window.whole()) executor.sum(std::span(loads_));
  }

  [[nodiscard]] std::span<std::int64_t> loads(RowId r, ShardId g) {
    const std::size_t rg = (r - static_cast<std::size_t>(first_)) * shards_ + g;
    return std::span(loads_).subspan(rg * width_, width_);
  }

 private:
  const Instance& instance_;
  const Placement& placement_;
  const Layout& layout_;
  std::size_t shards_, width_;
  std::int32_t first_ = 0;
  std::vector<std::int64_t> loads_;
};

/// The cells of a row on one shard, in the shard's slot order, and their padding tokens.
struct RowShardCells {
  std::vector<CellTotals> cells;
  std::int64_t pads = 0;
};

RowShardCells cells_of(const Instance& instance, const Layout& layout, RowId r, ShardId g) {
  RowShardCells row;
  for (const SlotId d : instance.topology.slots_of(g)) {
    row.cells.push_back(cell_totals(instance, layout.cell(r, d)));
    row.pads += instance.aligned_cell(row.cells.back().aligned) - row.cells.back().tokens;
  }
  return row;
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
  SerialExecutor alone;
  require_all_counts(instance.window, alone);
  return evaluate(instance, placement, layout, alone);
}

Evaluation evaluate(const Instance& instance, const Placement& placement, const Layout& layout, Communicator& team) {
  SerialExecutor alone;
  Team executor(alone, team);
  require_all_counts(instance.window, executor);
  return evaluate(instance, placement, layout, executor);
}

void require_all_counts(const Window& window, Executor& executor) {
  if (window.whole()) return;
  std::int64_t held = 0;
  for (const Window& part : window.parts()) held += part.counts_here() ? part.samples() : 0;
  executor.sum(std::span(&held, 1));
  if (held == window.samples()) return;
  throw InvalidInput(
      fmt::format("window: found the counts of {} of its {} samples in the team, wanted each once: all "
                  "members of the team that loaded it",
                  held, window.samples()));
}

Evaluation evaluate(const Instance& instance, const Placement& placement, const Layout& layout, Executor& executor) {
  check_shapes(instance, placement, layout);
  const auto layers = static_cast<std::size_t>(instance.window.layers());
  const auto ranks = static_cast<std::size_t>(instance.topology.ranks());
  const auto pad_rates = pad_rank_rates(instance.window, placement);

  Evaluation result;
  Stretch stretch(instance, placement, layout);
  std::int64_t mean_sum = 0;  // Σ_{r,l} max_g Σ_p W
  std::vector<std::int64_t> row_peak(layers);
  std::vector<std::int64_t> row_total(layers);

  for (const RowId r : layout.row_ids()) {
    if (const std::int32_t at_once = stretch.rows_at_once(); r.value() % at_once == 0) {
      stretch.sum(r.value(), std::min(at_once, layout.rows() - r.value()), executor);
    }
    std::ranges::fill(row_peak, 0);
    std::ranges::fill(row_total, 0);
    for (const ShardId g : instance.topology.shard_ids()) {
      const RowShardCells row = cells_of(instance, layout, r, g);
      const auto loads = stretch.loads(r, g);
      if (!pad_rates.empty()) add_pad_loads(pad_rates, row.pads, loads);
      const double attention = attention_work(instance, row.cells);
      const double expert = expert_work(instance.cost, loads, instance.topology.ranks(), instance.capacity);
      result.attention += attention;
      result.joint.push_back(attention + expert);
      for (std::size_t l = 0; l < layers; ++l) {
        const auto layer = loads.subspan(l * ranks, ranks);
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
