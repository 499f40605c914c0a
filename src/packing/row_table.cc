// SPDX-License-Identifier: Apache-2.0
#include "packing/row_table.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/assert.h"
#include "cost/row_cost.h"

namespace routepack {
namespace {

constexpr std::size_t kBandRows = 32;
constexpr std::size_t kBandShards = 8;

/// The busiest rank of `Width` layers side by side. Loads are never negative.
template <std::size_t Width, class Load>
void busiest_of_block(const Load* a, const Load* b, std::size_t ranks, Load* peaks) {
  std::array<Load, Width> best{};
  for (std::size_t p = 0; p < ranks; ++p) {
    for (std::size_t n = 0; n < Width; ++n) {
      const Load load = a[p * Width + n] + b[p * Width + n];
      best[n] = best[n] < load ? load : best[n];
    }
  }
  std::ranges::copy(best, peaks);
}

template <class Load>
void busiest_ranks(const LaneShape& shape, const Load* a, const Load* b, Load* peaks) {
  constexpr std::size_t kWide = LaneShape::kWide;
  for (std::size_t block = 0; block < shape.wide_blocks(); ++block) {
    busiest_of_block<kWide>(a, b, shape.ranks(), peaks);
    a += kWide * shape.ranks();
    b += kWide * shape.ranks();
    peaks += kWide;
  }
  if (shape.has_narrow_block()) busiest_of_block<LaneShape::kNarrow>(a, b, shape.ranks(), peaks);
}

/// Whether no W of `rows` can leave 32 bits: a sample puts at most top_k routes per token on a rank.
bool fits_32_bits(const Instance& instance, std::span<const Cell> cells) {
  std::int64_t tokens = 0;
  for (const Cell& cell : cells) tokens = std::max(tokens, cell.totals.tokens);
  std::size_t widest = 0;
  for (const ShardId g : instance.topology.shard_ids()) widest = std::max(widest, instance.topology.slots_of(g).size());
  std::int64_t most = 0;
  return !__builtin_mul_overflow(tokens, instance.window.top_k(), &most) &&
         !__builtin_mul_overflow(most, static_cast<std::int64_t>(widest), &most) &&
         most <= std::numeric_limits<std::int32_t>::max();
}

double dense_work(const Instance& instance, const Cell& cell) {
  double work = 0.0;
  for (const Stage& stage : instance.cost.stages()) work += stage_work(stage, cell.totals, instance.capacity);
  return work;
}

}  // namespace

RowTable::RowTable(const Instance& instance, const UnitLoads& loads, std::span<const std::int64_t> pad_rates,
                   std::int64_t rows, std::span<const Cell> cells)
    : instance_(instance),
      loads_(loads),
      cells_(cells),
      rows_(rows),
      shards_(static_cast<std::size_t>(instance.topology.shards())),
      slots_(static_cast<std::size_t>(instance.topology.slots())) {
  const LaneShape& shape = loads.shape();
  if (!pad_rates.empty()) {
    pad_lanes_.resize(shape.lanes());
    for (std::size_t lp = 0; lp < pad_rates.size(); ++lp) {
      pad_lanes_[shape.lane(lp / shape.ranks(), lp % shape.ranks())] = pad_rates[lp];
    }
  }
  if (!pad_rates.empty() || !fits_32_bits(instance, cells)) lanes_.emplace<Lanes<std::int64_t>>();
  std::visit([&](auto& lanes) { add_cells(lanes); }, lanes_);

  const auto& stages = instance.cost.stages();
  work_.reserve(cells.size() * stages.size());
  for (const Cell& cell : cells) {
    for (const Stage& stage : stages) work_.push_back(stage_work(stage, cell.totals, instance.capacity));
  }
  const std::size_t table = static_cast<std::size_t>(rows) * shards_;
  stage_peak_.resize(table * stages.size());
  pads_.resize(table);
  prices_.resize(table);
  taken_.resize(table);
  alone_.resize(cells.size());
  places_.assign(static_cast<std::size_t>(rows) * slots_, kNone);
}

template <class Load>
void RowTable::add_cells(Lanes<Load>& lanes) {
  const std::size_t width = loads_.shape().lanes();
  lanes.cells.resize(cells_.size() * width);
  lanes.table.resize(static_cast<std::size_t>(rows_) * shards_ * width);
  lanes.zeros.resize(width);
  lanes.peaks.resize(loads_.shape().layer_lanes());
  if (!pad_lanes_.empty()) lanes.padded.resize(width);
  for (std::size_t c = 0; c < cells_.size(); ++c) {
    Load* sum = lanes.cells.data() + c * width;
    const auto add = [&](const auto* more) {
      for (std::size_t n = 0; n < width; ++n) sum[n] += static_cast<Load>(more[n]);
    };
    for (const std::size_t item : cells_[c].items) {
      if (loads_.narrow()) {
        add(loads_.narrow(item));
      } else {
        add(loads_.wide(item));
      }
    }
  }
}

template <class Load>
void RowTable::find_peaks(Lanes<Load>& lanes, std::size_t at, const Load* cell_loads, std::int64_t pads) const {
  const LaneShape& shape = loads_.shape();
  if (!pad_lanes_.empty()) {
    for (std::size_t n = 0; n < shape.lanes(); ++n) {
      lanes.padded[n] = static_cast<Load>(cell_loads[n] + ((pads * pad_lanes_[n] + 32768) >> 16));
    }
    cell_loads = lanes.padded.data();
  }
  busiest_ranks(shape, lanes.table.data() + at * shape.lanes(), cell_loads, lanes.peaks.data());
}

std::int64_t RowTable::pads_of(std::size_t cell) const {
  return instance_.aligned_cell(cells_[cell].totals.aligned) - cells_[cell].totals.tokens;
}

bool RowTable::has_room(std::size_t at, std::size_t cell) const {
  const ShardId g(at % shards_);
  const std::size_t* row = places_.data() + at / shards_ * slots_;
  if (const auto& slot = cells_[cell].slot) return instance_.topology.shard_of(*slot) == g && row[*slot] == kNone;
  // Cells join the slots of a shard in order.
  return row[instance_.topology.slots_of(g).back()] == kNone;
}

RowTable::Price RowTable::price_with(std::size_t at, std::size_t cell) {
  if (taken_[at] > 0) return computed_price(at, cell);
  if (!alone_[cell]) alone_[cell] = computed_price(at, cell);
  return *alone_[cell];
}

RowTable::Price RowTable::computed_price(std::size_t at, std::size_t cell) {
  Price price;
  const std::size_t stages = instance_.cost.stages().size();
  double attention = 0.0;
  for (std::size_t s = 0; s < stages; ++s) {
    attention += std::max(stage_peak_[at * stages + s], work_[cell * stages + s]);
  }
  std::visit(
      [&](auto& lanes) {
        find_peaks(lanes, at, lanes.cells.data() + cell * loads_.shape().lanes(), pads_[at] + pads_of(cell));
        for (std::size_t l = 0; l < loads_.shape().layers(); ++l) {
          const std::int64_t busiest = lanes.peaks[l];
          price.peaks += instance_.cost.expert_weight(LayerId(l)) * static_cast<double>(busiest);
          price.peak = std::max(price.peak, busiest);
        }
      },
      lanes_);
  price.joint = attention + price.peaks / static_cast<double>(instance_.capacity);
  return price;
}

void RowTable::join(std::size_t at, std::size_t cell, const Price& price) {
  const std::size_t row = at / shards_ * slots_;
  if (const auto& slot = cells_[cell].slot) {
    places_[row + *slot] = cell;
  } else {
    const auto slots = instance_.topology.slots_of(ShardId(at % shards_));
    places_[row + *std::ranges::find_if(slots, [&](SlotId d) { return places_[row + d] == kNone; })] = cell;
  }
  const std::size_t stages = instance_.cost.stages().size();
  for (std::size_t s = 0; s < stages; ++s) {
    stage_peak_[at * stages + s] = std::max(stage_peak_[at * stages + s], work_[cell * stages + s]);
  }
  std::visit(
      [&](auto& lanes) {
        const std::size_t width = loads_.shape().lanes();
        for (std::size_t n = 0; n < width; ++n) lanes.table[at * width + n] += lanes.cells[cell * width + n];
      },
      lanes_);
  pads_[at] += pads_of(cell);
  prices_[at] = price;
  ++taken_[at];
}

void RowTable::clear() {
  std::visit([](auto& lanes) { std::ranges::fill(lanes.table, 0); }, lanes_);
  std::ranges::fill(stage_peak_, 0.0);
  std::ranges::fill(pads_, 0);
  std::ranges::fill(prices_, Price{});
  std::ranges::fill(taken_, 0);
  std::ranges::fill(places_, kNone);
}

void RowTable::permute(std::span<const std::size_t> source) {
  const auto in_new_order = [&](auto& values) {
    const std::size_t width = values.size() / source.size();
    auto old = std::exchange(values, {});
    values.reserve(old.size());
    for (const std::size_t from : source) {
      const auto first = old.begin() + static_cast<std::ptrdiff_t>(from * width);
      values.insert(values.end(), first, first + static_cast<std::ptrdiff_t>(width));
    }
  };
  std::visit([&](auto& lanes) { in_new_order(lanes.table); }, lanes_);
  in_new_order(stage_peak_);
  in_new_order(pads_);
  in_new_order(prices_);
  in_new_order(taken_);
  const std::vector<std::size_t> old = places_;
  for (std::size_t at = 0; at < source.size(); ++at) {
    const auto to = instance_.topology.slots_of(ShardId(at % shards_));
    const auto from = instance_.topology.slots_of(ShardId(source[at] % shards_));
    for (std::size_t k = 0; k < to.size(); ++k) {
      places_[at / shards_ * slots_ + to[k]] = old[source[at] / shards_ * slots_ + from[k]];
    }
  }
}

std::int64_t RowTable::peak_of(std::size_t cell) const {
  return std::visit(
      [&](const auto& lanes) -> std::int64_t {
        const std::size_t width = loads_.shape().lanes();
        return std::ranges::max(std::span(lanes.cells).subspan(cell * width, width));
      },
      lanes_);
}

std::int64_t RowTable::peak() const {
  return std::ranges::max_element(prices_, {}, &Price::peak)->peak;
}

void RowTable::layer_peaks(std::size_t at, std::span<std::int64_t> peaks) {
  std::visit(
      [&](auto& lanes) {
        find_peaks(lanes, at, lanes.zeros.data(), pads_[at]);
        std::ranges::copy_n(lanes.peaks.begin(), static_cast<std::ptrdiff_t>(peaks.size()), peaks.begin());
      },
      lanes_);
}

std::vector<double> RowTable::joint() const {
  std::vector<double> joint;
  joint.reserve(prices_.size());
  for (const Price& price : prices_) joint.push_back(price.joint);
  return joint;
}

Score RowTable::score() const {
  return combine_rows(joint(), static_cast<std::int32_t>(rows_), static_cast<std::int32_t>(shards_), instance_.sync);
}

Arrangement RowTable::arrangement() const {
  Arrangement result{.rows = rows_, .cells = {}};
  result.cells.reserve(places_.size());
  for (const std::size_t cell : places_) {
    ROUTEPACK_ASSERT(cell != kNone, "a row has an empty cell");
    result.cells.push_back(cells_[cell]);
  }
  return result;
}

std::vector<Band> row_bands(const Instance& instance, std::int64_t rows, std::span<const Cell> cells) {
  const auto shards = static_cast<std::size_t>(instance.topology.shards());
  const std::size_t table = static_cast<std::size_t>(rows) * shards;
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
  order.reserve(cells.size());
  for (std::size_t c = 0; c < cells.size(); ++c) order.emplace_back(dense_work(instance, cells[c]), c);
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::size_t> row_of_slot(static_cast<std::size_t>(instance.topology.slots()), 0);
  std::size_t dealt = 0;
  std::size_t open = 0;
  for (const auto& [work, c] : order) {
    if (const auto& slot = cells[c].slot) {
      const std::size_t at = row_of_slot[*slot]++ * shards + instance.topology.shard_of(*slot);
      result[at / width].cells.push_back(c);
    } else {
      if (dealt++ == room[open]) ++open;
      result[open].cells.push_back(c);
    }
  }
  return result;
}

}  // namespace routepack
