// SPDX-License-Identifier: Apache-2.0
#include "packing/fill_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "core/assert.h"
#include "cost/row_cost.h"
#include "routepack/score.h"

namespace routepack {
namespace {

/// Row-shards that compete for the cells of one band: 32 rows of up to 8 shards. Wide enough for choice, narrow enough
/// for 10⁵ cells.
constexpr std::size_t kBandRows = 32;
constexpr std::size_t kBandShards = 8;

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
  /// `limit` on the tokens of a rank, 0 = none.
  Rows(const Instance& instance, const Placement& placement, const Items& items, const FittedCells& fitted,
       std::int64_t limit)
      : instance_(instance),
        fitted_(fitted),
        pad_rates_(pad_rank_rates(instance.window, placement)),
        width_(static_cast<std::size_t>(instance.window.layers()) * static_cast<std::size_t>(placement.ranks())),
        shards_(static_cast<std::size_t>(instance.topology.shards())),
        limit_(limit) {
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

  /// Puts a cell where it costs least among the row-shards [first, last) of the table; false when none may take it.
  bool place_cheapest(std::size_t c, std::size_t first, std::size_t last) {
    return place(c, first, last,
                 [&](const RowShard::Price& price, const RowShard& shard) { return price.joint - shard.joint(); });
  }
  /// Puts a cell where the busiest rank stays least busy, anywhere.
  bool place_coolest(std::size_t c) {
    return place(c, 0, table_.size(), [](const RowShard::Price& price, const RowShard& /*shard*/) {
      return static_cast<double>(price.peak);
    });
  }
  /// Routed tokens of a cell on its busiest rank and layer.
  [[nodiscard]] std::int64_t peak_of(std::size_t c) const { return std::ranges::max(loads_of(c)); }
  /// Routed tokens on the busiest rank of any row-shard so far.
  [[nodiscard]] std::int64_t peak() const { return peak_; }
  void clear() {
    std::ranges::fill(table_, RowShard(instance_, width_));
    peak_ = 0;
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
  [[nodiscard]] std::span<const std::int64_t> loads_of(std::size_t c) const {
    return std::span(cell_loads_).subspan(c * width_, width_);
  }

  /// Among the row-shards that may take the cell, the one of least `cost`; ties to the first.
  template <class Cost>
  bool place(std::size_t c, std::size_t first, std::size_t last, Cost cost) {
    const Cell& cell = fitted_.cells[c];
    RowShard* best = nullptr;
    RowShard::Price best_price;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t at = first; at < last; ++at) {
      if (!has_room(table_[at], ShardId(at % shards_), cell)) continue;
      const auto price = table_[at].price_with(instance_, pad_rates_, cell, loads_of(c));
      if (limit_ > 0 && price.peak > limit_) continue;
      if (const double found = cost(price, table_[at]); found < least) {
        least = found;
        best_price = price;
        best = &table_[at];
      }
    }
    if (best == nullptr) return false;
    best->join(instance_, c, cell, loads_of(c), best_price.joint);
    peak_ = std::max(peak_, best_price.peak);
    return true;
  }

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
  std::int64_t limit_;
  std::int64_t peak_ = 0;
  std::vector<RowShard> table_;           // [R, G]
  std::vector<std::int64_t> cell_loads_;  // [cells, L·P]
};

double dense_work(const Instance& instance, const Cell& cell) {
  double work = 0.0;
  for (const Stage& stage : instance.cost.stages()) work += stage_work(stage, cell.totals, instance.capacity);
  return work;
}

/// Consecutive row-shards of the table and the cells that will fill them exactly.
struct Band {
  std::size_t first = 0, last = 0;
  std::vector<std::size_t> cells;
};

/// Cells in bands of similar dense work, heaviest band first. A cell with a fixed slot goes to the row of its turn
/// among the cells of that slot.
std::vector<Band> bands(const Instance& instance, const FittedCells& fitted) {
  const auto shards = static_cast<std::size_t>(instance.topology.shards());
  const std::size_t table = static_cast<std::size_t>(fitted.rows) * shards;
  const std::size_t width = kBandRows * std::min(shards, kBandShards);
  std::vector<Band> result;
  std::vector<std::size_t> room;  // cells that the bands so far take together
  for (std::size_t at = 0; at < table; ++at) {
    if (at % width == 0) {
      result.push_back({.first = at, .last = at, .cells = {}});
      room.push_back(room.empty() ? 0 : room.back());
    }
    result.back().last = at + 1;
    room.back() += instance.topology.slots_of(ShardId(at % shards)).size();
  }

  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t c = 0; c < fitted.cells.size(); ++c) order.emplace_back(dense_work(instance, fitted.cells[c]), c);
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::size_t> row_of_slot(static_cast<std::size_t>(instance.topology.slots()), 0);
  std::size_t dealt = 0;
  std::size_t open = 0;
  for (const auto& [work, c] : order) {
    if (const auto& slot = fitted.cells[c].slot) {
      const std::size_t at = row_of_slot[*slot]++ * shards + instance.topology.shard_of(*slot);
      result[at / width].cells.push_back(c);
    } else {
      if (dealt++ == room[open]) ++open;
      result[open].cells.push_back(c);
    }
  }
  return result;
}

/// Similar cells meet: band by band, each cell where it costs least.
bool fill_by_cost(const Instance& instance, const FittedCells& fitted, Rows& rows) {
  for (const Band& band : bands(instance, fitted)) {
    for (const std::size_t c : band.cells) {
      if (!rows.place_cheapest(c, band.first, band.last)) return false;
    }
  }
  return true;
}

/// Hot cells meet cool ones: by falling peak, each where the busiest rank stays least busy. Costs more and balances the
/// dense side less, so it serves only where the cap on rank tokens binds.
bool fill_by_peak(const FittedCells& fitted, Rows& rows) {
  std::vector<std::pair<std::int64_t, std::size_t>> order;
  for (std::size_t c = 0; c < fitted.cells.size(); ++c) order.emplace_back(rows.peak_of(c), c);
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) { return a.first > b.first; });
  return std::ranges::all_of(order, [&](const auto& cell) { return rows.place_coolest(cell.second); });
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
    std::set<std::pair<double, std::size_t>> lightest;  // total so far and member, of those with rows left
    for (std::size_t m = 0; m < members.size(); ++m) lightest.emplace(0.0, m);
    std::vector<std::int64_t> filled(members.size(), 0);
    for (std::size_t k = 0; k < pool.size(); ++k) {
      std::size_t to = k % members.size();
      if (instance.sync == Sync::Step) {
        const auto [total, member] = *lightest.begin();
        lightest.erase(lightest.begin());
        if (filled[member] + 1 < row_count) lightest.emplace(total + pool[k].joint(), member);
        to = member;
      }
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
  Rows rows(instance, placement, items, fitted, instance.constraints.max_rank_tokens);
  if (!fill_by_cost(instance, fitted, rows)) {
    rows.clear();
    if (!fill_by_peak(fitted, rows)) return std::nullopt;
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

std::int64_t coolest_peak(const Instance& instance, const Placement& placement, const Items& items,
                          const FittedCells& fitted) {
  Rows rows(instance, placement, items, fitted, 0);
  const bool filled = fill_by_peak(fitted, rows);
  ROUTEPACK_ASSERT(filled, "a cell found no room without a limit");
  return rows.peak();
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
