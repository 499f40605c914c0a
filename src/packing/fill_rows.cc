// SPDX-License-Identifier: Apache-2.0
#include "packing/fill_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "core/assert.h"
#include "cost/row_cost.h"
#include "routepack/score.h"

namespace routepack {
namespace {

/// Rows that compete for the cells of one band: wide enough for choice, narrow enough for 10⁴ cells.
constexpr std::int64_t kBandRows = 32;

/// One row on one shard while it is being filled. Loads are exact, so its J is what the scorer will find.
class RowShard {
 public:
  RowShard(const Instance& instance, std::size_t loads) : loads_(loads), stage_peak_(instance.cost.stages().size()) {}

  struct Price {
    double joint = std::numeric_limits<double>::infinity();
    std::int64_t peak = 0;  ///< busiest rank of any layer
  };

  /// J and the busiest rank if `cell` joined.
  [[nodiscard]] Price price_with(const Instance& instance, std::span<const std::int64_t> pad_rates, const Cell& cell,
                                 std::span<const std::int64_t> cell_loads) const {
    Price price;
    const std::int64_t pads = pads_ + pads_of(instance, cell);
    double attention = 0.0;
    for (std::size_t s = 0; s < stage_peak_.size(); ++s) {
      attention += std::max(stage_peak_[s], stage_work(instance.cost.stages()[s], cell.totals, instance.capacity));
    }
    const auto ranks = static_cast<std::size_t>(instance.topology.ranks());
    double expert = 0.0;
    for (std::size_t l = 0; l * ranks < loads_.size(); ++l) {
      std::int64_t busiest = 0;
      for (std::size_t lp = l * ranks; lp < (l + 1) * ranks; ++lp) {
        std::int64_t load = loads_[lp] + cell_loads[lp];
        if (!pad_rates.empty()) load += (pads * pad_rates[lp] + 32768) >> 16;
        busiest = std::max(busiest, load);
      }
      expert += instance.cost.expert_weight(LayerId(l)) * static_cast<double>(busiest);
      price.peak = std::max(price.peak, busiest);
    }
    price.joint = attention + expert / static_cast<double>(instance.capacity);
    return price;
  }

  void join(const Instance& instance, std::size_t index, const Cell& cell, std::span<const std::int64_t> cell_loads,
            double joint) {
    cells_.push_back(index);
    pads_ += pads_of(instance, cell);
    for (std::size_t lp = 0; lp < loads_.size(); ++lp) loads_[lp] += cell_loads[lp];
    for (std::size_t s = 0; s < stage_peak_.size(); ++s) {
      stage_peak_[s] = std::max(stage_peak_[s], stage_work(instance.cost.stages()[s], cell.totals, instance.capacity));
    }
    joint_ = joint;
  }

  [[nodiscard]] double joint() const { return joint_; }
  [[nodiscard]] std::span<const std::size_t> cells() const { return cells_; }
  [[nodiscard]] std::size_t size() const { return cells_.size(); }

 private:
  static std::int64_t pads_of(const Instance& instance, const Cell& cell) {
    return instance.aligned_cell(cell.totals.aligned) - cell.totals.tokens;
  }

  std::vector<std::size_t> cells_;
  std::vector<std::int64_t> loads_;  // [L, P] without pads
  std::vector<double> stage_peak_;   // [stages]
  std::int64_t pads_ = 0;
  double joint_ = 0.0;
};

/// A table of R × G row-shards.
class Rows {
 public:
  Rows(const Instance& instance, const Placement& placement, const Items& items, const FittedCells& fitted)
      : instance_(instance),
        fitted_(fitted),
        pad_rates_(pad_rank_rates(instance.window, placement)),
        width_(static_cast<std::size_t>(instance.window.layers()) * static_cast<std::size_t>(placement.ranks())),
        shards_(static_cast<std::size_t>(instance.topology.shards())) {
    table_.assign(static_cast<std::size_t>(fitted.rows) * shards_, RowShard(instance, width_));
    cell_loads_.resize(fitted.cells.size() * width_);
    for (std::size_t c = 0; c < fitted.cells.size(); ++c) {
      for (const std::size_t index : fitted.cells[c].items) {
        for (const SampleId i : items.samples_of(items.items[index])) {
          add_rank_loads(instance.window, placement, i, std::span(cell_loads_).subspan(c * width_, width_));
        }
      }
    }
  }

  /// Puts a cell where it costs least among rows [first, last); false when no row-shard there may take it.
  bool place(std::size_t c, std::int64_t first, std::int64_t last) {
    const Cell& cell = fitted_.cells[c];
    const auto loads = std::span<const std::int64_t>(cell_loads_).subspan(c * width_, width_);
    RowShard* best = nullptr;
    RowShard::Price best_price;
    double best_rise = std::numeric_limits<double>::infinity();
    for (std::size_t at = static_cast<std::size_t>(first) * shards_; at < static_cast<std::size_t>(last) * shards_;
         ++at) {
      const ShardId g(at % shards_);
      if (!has_room(table_[at], g, cell)) continue;
      const auto price = table_[at].price_with(instance_, pad_rates_, cell, loads);
      const std::int64_t limit = instance_.constraints.max_rank_tokens;
      if (limit > 0 && price.peak > limit) continue;
      if (const double rise = price.joint - table_[at].joint(); rise < best_rise) {
        best_rise = rise;
        best_price = price;
        best = &table_[at];
      }
    }
    if (best == nullptr) return false;
    best->join(instance_, c, cell, loads, best_price.joint);
    return true;
  }

  [[nodiscard]] std::vector<RowShard>& table() { return table_; }
  /// Whether the prices kept while filling are those of the scorer, bit for bit. `sequence` is the final row order.
  [[nodiscard]] bool agree_with(const Evaluation& evaluation, std::span<const std::size_t> sequence) const {
    for (std::size_t at = 0; at < table_.size(); ++at) {
      if (table_[sequence[at / shards_] * shards_ + at % shards_].joint() != evaluation.joint[at]) return false;
    }
    return true;
  }
  [[nodiscard]] std::size_t shards() const { return shards_; }

 private:
  [[nodiscard]] bool has_room(const RowShard& shard, ShardId g, const Cell& cell) const {
    if (!cell.slot) return shard.size() < instance_.topology.slots_of(g).size();
    return instance_.topology.shard_of(*cell.slot) == g &&
           std::ranges::none_of(shard.cells(), [&](std::size_t c) { return fitted_.cells[c].slot == cell.slot; });
  }

  const Instance& instance_;
  const FittedCells& fitted_;
  std::vector<std::int64_t> pad_rates_;
  std::size_t width_;
  std::size_t shards_;
  std::vector<RowShard> table_;           // [R, G]
  std::vector<std::int64_t> cell_loads_;  // [cells, L·P]
};

double dense_work(const Instance& instance, const Cell& cell) {
  double work = 0.0;
  for (const Stage& stage : instance.cost.stages()) work += stage_work(stage, cell.totals, instance.capacity);
  return work;
}

/// Cells in bands of similar dense work, heaviest band first. A band holds as many cells as its rows take; cells with
/// a fixed slot are dealt slot by slot, so that each band gets one per slot and row.
std::vector<std::vector<std::size_t>> bands(const Instance& instance, const FittedCells& fitted) {
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t c = 0; c < fitted.cells.size(); ++c) order.emplace_back(dense_work(instance, fitted.cells[c]), c);
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) { return a.first > b.first; });

  const auto count = static_cast<std::size_t>(ceil_div(fitted.rows, kBandRows));
  std::vector<std::vector<std::size_t>> result(count);
  const auto slots = static_cast<std::size_t>(instance.topology.slots());
  std::vector<std::int64_t> dealt_to_slot(slots, 0);
  std::int64_t dealt = 0;
  for (const auto& [work, c] : order) {
    const auto& slot = fitted.cells[c].slot;
    const std::int64_t row = slot ? dealt_to_slot[*slot]++ : dealt++ / static_cast<std::int64_t>(slots);
    result[static_cast<std::size_t>(row / kBandRows)].push_back(c);
  }
  return result;
}

/// Row-shards of equally large shards may change places when no cell is bound to a slot. With one meeting per step the
/// slowest shard gets the lightest; with a meeting in every row, equals meet.
void settle_shards(const Instance& instance, Rows& rows, std::int64_t row_count) {
  const std::size_t shards = rows.shards();
  auto& table = rows.table();
  std::vector<std::vector<std::size_t>> classes(static_cast<std::size_t>(instance.topology.slots()) + 1);
  for (const ShardId g : instance.topology.shard_ids()) classes[instance.topology.slots_of(g).size()].push_back(g);

  for (const auto& members : classes) {
    if (members.size() < 2) continue;
    std::vector<RowShard> pool;
    for (std::int64_t r = 0; r < row_count; ++r) {
      for (const std::size_t g : members) pool.push_back(std::move(table[static_cast<std::size_t>(r) * shards + g]));
    }
    std::ranges::stable_sort(pool, [](const RowShard& a, const RowShard& b) { return a.joint() > b.joint(); });
    std::vector<double> total(members.size(), 0.0);
    std::vector<std::int64_t> filled(members.size(), 0);
    for (std::size_t k = 0; k < pool.size(); ++k) {
      std::size_t to = k % members.size();
      if (instance.sync == Sync::Step) {
        to = members.size();
        for (std::size_t m = 0; m < members.size(); ++m) {
          if (filled[m] < row_count && (to == members.size() || total[m] < total[to])) to = m;
        }
      }
      total[to] += pool[k].joint();
      table[static_cast<std::size_t>(filled[to]++) * shards + members[to]] = std::move(pool[k]);
    }
  }
}

/// Light rows at both ends, heavy ones in the middle: a pipeline fills and drains through the ends.
std::vector<std::size_t> order_rows(const std::vector<double>& weight, RowOrder order) {
  std::vector<std::size_t> rows(weight.size());
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  if (order == RowOrder::Keep) return rows;
  std::ranges::stable_sort(rows, [&](std::size_t a, std::size_t b) { return weight[a] < weight[b]; });
  std::vector<std::size_t> result(rows.size());
  for (std::size_t k = 0; k < rows.size(); ++k) result[k % 2 == 0 ? k / 2 : rows.size() - 1 - k / 2] = rows[k];
  return result;
}

std::vector<SampleId> samples_of_cell(const Items& items, const Cell& cell) {
  std::vector<SampleId> samples;
  for (const std::size_t index : cell.items) {
    const auto more = items.samples_of(items.items[index]);
    samples.insert(samples.end(), more.begin(), more.end());
  }
  std::ranges::sort(samples);
  return samples;
}

}  // namespace

std::optional<Layout> fill_rows(const Instance& instance, const Placement& placement, const Items& items,
                                const FittedCells& fitted, RowOrder order) {
  Rows rows(instance, placement, items, fitted);
  std::int64_t first = 0;
  for (const auto& band : bands(instance, fitted)) {
    const std::int64_t last = std::min(first + kBandRows, fitted.rows);
    for (const std::size_t c : band) {
      if (!rows.place(c, first, last)) return std::nullopt;
    }
    first = last;
  }
  if (!instance.constraints.equal_count) settle_shards(instance, rows, fitted.rows);

  const std::size_t shards = rows.shards();
  std::vector<double> weight(static_cast<std::size_t>(fitted.rows), 0.0);
  for (std::size_t at = 0; at < rows.table().size(); ++at) {
    weight[at / shards] = std::max(weight[at / shards], rows.table()[at].joint());
  }
  std::vector<std::vector<std::vector<SampleId>>> layout;
  const auto sequence = order_rows(weight, order);
  for (const std::size_t r : sequence) {
    auto& row = layout.emplace_back(static_cast<std::size_t>(instance.topology.slots()));
    for (const ShardId g : instance.topology.shard_ids()) {
      const auto cells = rows.table()[r * shards + g].cells();
      for (std::size_t k = 0; k < cells.size(); ++k) {
        const Cell& cell = fitted.cells[cells[k]];
        row[cell.slot.value_or(instance.topology.slots_of(g)[k])] = samples_of_cell(items, cell);
      }
    }
  }
  Layout result(std::move(layout), instance.topology.slots(), static_cast<std::int32_t>(items.samples.size()));
  ROUTEPACK_HEAVY_ASSERT(rows.agree_with(evaluate(instance, placement, result), sequence),
                         "a row-shard's price differs from the scorer's");
  return result;
}

Layout rows_in_order(const Instance& instance, const Items& items, const FittedCells& fitted) {
  const auto slots = static_cast<std::size_t>(instance.topology.slots());
  std::vector<std::vector<std::vector<SampleId>>> layout(static_cast<std::size_t>(fitted.rows));
  for (std::size_t c = 0; c < fitted.cells.size(); ++c) {
    layout[c / slots].push_back(samples_of_cell(items, fitted.cells[c]));
  }
  return Layout(std::move(layout), instance.topology.slots(), static_cast<std::int32_t>(items.samples.size()));
}

}  // namespace routepack
