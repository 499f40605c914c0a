// SPDX-License-Identifier: Apache-2.0
#include "packing/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "core/assert.h"

namespace routepack {
namespace {

using ItemIndices = std::vector<std::size_t>;

/// Cells under construction, ordered by what they hold: emptiest first.
class OpenCells {
 public:
  OpenCells(std::vector<Cell>& cells, const Instance& instance, const Items& items)
      : cells_(cells), instance_(instance), items_(items) {
    for (std::size_t c = 0; c < cells_.size(); ++c) order_.insert(key(c));
  }

  /// Adds to the emptiest cell that takes the item.
  bool add_to_emptiest(std::size_t index) { return add_to_first(order_.begin(), order_.end(), index); }
  /// Adds to the fullest cell that takes the item.
  bool add_to_fullest(std::size_t index) { return add_to_first(order_.rbegin(), order_.rend(), index); }

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::size_t>;  // tokens, samples, cell
  [[nodiscard]] Key key(std::size_t c) const { return {cells_[c].totals.aligned, cells_[c].samples, c}; }

  template <class Iterator>
  bool add_to_first(Iterator begin, Iterator end, std::size_t index) {
    const Item& item = items_.items[index];
    const auto found =
        std::find_if(begin, end, [&](const Key& k) { return cells_[std::get<2>(k)].accepts(item, instance_); });
    if (found == end) return false;
    const std::size_t c = std::get<2>(*found);
    order_.erase(key(c));
    cells_[c].add(index, item);
    order_.insert(key(c));
    return true;
  }

  std::vector<Cell>& cells_;
  const Instance& instance_;
  const Items& items_;
  std::set<Key> order_;
};

/// Free tokens of many cells; finds the first with enough in O(log cells).
class FreeSpaceTree {
 public:
  FreeSpaceTree(std::size_t cells, std::int64_t free) : cells_(cells) {
    while (leaves_ < cells) leaves_ *= 2;
    largest_.assign(2 * leaves_, -1);
    for (std::size_t c = 0; c < cells; ++c) set(c, free);
  }

  void set(std::size_t c, std::int64_t free) {
    std::size_t node = leaves_ + c;
    largest_[node] = free;
    for (node /= 2; node >= 1; node /= 2) largest_[node] = std::max(largest_[2 * node], largest_[2 * node + 1]);
  }

  /// The first cell at or after `from` with at least `needed` free tokens; the number of cells when there is none.
  [[nodiscard]] std::size_t first_with(std::int64_t needed, std::size_t from) const {
    if (from >= cells_) return cells_;
    std::size_t node = leaves_ + from;
    // Up to the first subtree right of `from` that has room, then down along its left edge.
    while (largest_[node] < needed) {
      while (node % 2 == 1) node /= 2;
      if (node == 0) return cells_;
      ++node;
    }
    while (node < leaves_) node = 2 * node + (largest_[2 * node] < needed ? 1 : 0);
    return node - leaves_;
  }

 private:
  std::size_t cells_;
  std::size_t leaves_ = 1;
  std::vector<std::int64_t> largest_;
};

/// Moves the smallest item of the cell with the most items into each empty cell. Cells only get lighter by it.
bool fill_empty_cells(std::vector<Cell>& cells, const Items& items) {
  std::set<std::pair<std::size_t, std::size_t>> by_items;
  for (std::size_t c = 0; c < cells.size(); ++c) by_items.emplace(cells[c].items.size(), c);
  while (!by_items.empty() && by_items.begin()->first == 0) {
    const std::size_t empty = by_items.begin()->second;
    const std::size_t donor = std::prev(by_items.end())->second;
    if (cells[donor].items.size() < 2) return false;
    by_items.erase(by_items.begin());
    by_items.erase(std::prev(by_items.end()));
    const std::size_t moved = cells[donor].items.back();
    const auto slot = cells[donor].slot;
    Cell rest;
    for (const std::size_t kept : cells[donor].items) {
      if (kept != moved) rest.add(kept, items.items[kept]);
    }
    rest.slot = slot;
    cells[donor] = std::move(rest);
    cells[empty].add(moved, items.items[moved]);
    by_items.emplace(1, empty);
    by_items.emplace(cells[donor].items.size(), donor);
  }
  return true;
}

/// Oversized samples get their own cells, samples without routes share as few cells as they can; `rest` remains.
bool place_special(const Instance& instance, const Items& items, const ItemIndices& wanted, std::vector<Cell>& cells,
                   ItemIndices& rest) {
  std::size_t used = 0;
  ItemIndices without_routes;
  for (const std::size_t index : wanted) {
    const Item& item = items.items[index];
    if (item.oversized) {
      if (used == cells.size()) return false;
      cells[used].closed = true;
      cells[used++].add(index, item);
    } else {
      (item.without_routes ? without_routes : rest).push_back(index);
    }
  }
  // Only when some samples do have routes is there anything to protect them from.
  if (rest.empty()) {
    rest = std::move(without_routes);
    return true;
  }
  for (const std::size_t index : without_routes) {
    std::size_t c = used;
    while (c < cells.size() && !cells[c].accepts(items.items[index], instance)) ++c;
    if (c == cells.size()) return false;
    cells[c].add(index, items.items[index]);
  }
  return true;
}

/// Items in order, each to the first cell that takes it; cells that stay empty get one from the fullest.
std::optional<std::vector<Cell>> first_fit(const Instance& instance, const Items& items, const ItemIndices& wanted,
                                           std::vector<Cell> cells) {
  const std::int64_t usable = instance.usable_capacity();
  FreeSpaceTree free_space(cells.size(), usable);
  const auto update = [&](std::size_t c) { free_space.set(c, cells[c].closed ? 0 : usable - cells[c].totals.aligned); };
  for (std::size_t c = 0; c < cells.size(); ++c) update(c);
  for (const std::size_t index : wanted) {
    const Item& item = items.items[index];
    // An oversized sample takes a whole cell; the other rules are asked of the cell itself.
    const std::int64_t needed = std::min(item.totals.aligned, usable);
    std::size_t c = free_space.first_with(needed, 0);
    while (c < cells.size() && !(item.oversized ? cells[c].items.empty() : cells[c].accepts(item, instance))) {
      c = free_space.first_with(needed, c + 1);
    }
    if (c == cells.size()) return std::nullopt;
    cells[c].closed = item.oversized;
    cells[c].add(index, item);
    update(c);
  }
  if (!fill_empty_cells(cells, items)) return std::nullopt;
  return cells;
}

ItemIndices all_indices(const Items& items) {
  ItemIndices indices(items.items.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  return indices;
}

/// The given items into exactly `count` cells, none empty.
std::optional<std::vector<Cell>> fit(const Instance& instance, const Items& items, const ItemIndices& wanted,
                                     std::int64_t count) {
  if (static_cast<std::int64_t>(wanted.size()) < count) return std::nullopt;
  std::vector<Cell> prepared(static_cast<std::size_t>(count));
  ItemIndices rest;
  if (!place_special(instance, items, wanted, prepared, rest)) return std::nullopt;

  const auto attempt = [&](auto add) -> std::optional<std::vector<Cell>> {
    std::vector<Cell> cells = prepared;
    OpenCells open(cells, instance, items);
    for (const std::size_t index : rest) {
      if (!add(open, index)) return std::nullopt;
    }
    if (!fill_empty_cells(cells, items)) return std::nullopt;
    return cells;
  };
  // Falling lengths into the emptiest cell: every length class ends up in every cell, which also mixes topics.
  auto cells = attempt([](OpenCells& open, std::size_t index) { return open.add_to_emptiest(index); });
  if (!cells) cells = attempt([](OpenCells& open, std::size_t index) { return open.add_to_fullest(index); });
  if (!cells) cells = first_fit(instance, items, rest, prepared);
  return cells;
}

/// Slots get equally many samples: groups first, then falling lengths to the slot with the fewest tokens.
std::optional<std::vector<ItemIndices>> share_equally(const Instance& instance, const Items& items) {
  const auto slots = static_cast<std::size_t>(instance.topology.slots());
  const auto share = static_cast<std::int64_t>(items.samples.size() / slots);
  ItemIndices order = all_indices(items);
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return items.items[a].count > items.items[b].count; });

  std::vector<ItemIndices> slot_items(slots);
  std::vector<std::int64_t> samples(slots, 0);
  std::vector<std::int64_t> tokens(slots, 0);
  for (const std::size_t index : order) {
    const Item& item = items.items[index];
    std::size_t best = slots;
    for (std::size_t d = 0; d < slots; ++d) {
      if (samples[d] + item.count <= share && (best == slots || tokens[d] < tokens[best])) best = d;
    }
    if (best == slots) return std::nullopt;
    slot_items[best].push_back(index);
    samples[best] += item.count;
    tokens[best] += item.totals.aligned;
  }
  for (auto& indices : slot_items) std::ranges::sort(indices);  // back to falling lengths
  return slot_items;
}

std::optional<std::vector<Cell>> fit_equal_counts(const Instance& instance, const Items& items,
                                                  const std::vector<ItemIndices>& slot_items, std::int64_t rows) {
  std::vector<Cell> all;
  for (const SlotId d : instance.topology.slot_ids()) {
    auto cells = fit(instance, items, slot_items[d], rows);
    if (!cells) return std::nullopt;
    for (Cell& cell : *cells) {
      cell.slot = d;
      all.push_back(std::move(cell));
    }
  }
  return all;
}

Infeasible too_few_items(const Instance& instance, const Items& items, const RowBound& bound) {
  const std::int64_t slots = instance.topology.slots();
  const auto units = static_cast<std::int64_t>(items.items.size());
  const auto samples = static_cast<std::int64_t>(items.samples.size());
  const std::string what = units == samples ? fmt::format("{} samples", samples)
                                            : fmt::format("{} samples in {} units that stay together", samples, units);
  return {fmt::format("{} row{} of {} cells ({}) need at least {} samples, found {}", bound.rows,
                      bound.rows == 1 ? "" : "s", slots, bound.because, bound.rows * slots, what),
          bound.rows == 1 || units < slots ? fmt::format("--dp {} or fewer", std::max<std::int64_t>(units, 1))
                                           : fmt::format("at most {} rows, or fewer slots", units / slots)};
}

Infeasible nothing_found(const Instance& instance, const RowBound& bound, std::int64_t last_rows) {
  std::string side;
  const Constraints& rules = instance.constraints;
  if (rules.equal_count) side += " equal_count,";
  if (rules.max_samples_per_cell > 0) side += fmt::format(" max_samples_per_cell {},", rules.max_samples_per_cell);
  if (rules.row_multiple > 1) side += fmt::format(" row_multiple {},", rules.row_multiple);
  if (!instance.window.arrays().atomic.empty()) side += " atomic groups,";
  return {fmt::format(
              "no fit found from {} rows ({}) to {} rows, where every cell would hold one unit; at work:{} capacity "
              "{}",
              bound.rows, bound.because, last_rows, side, instance.capacity),
          "a larger --cap, or without one of these rules"};
}

}  // namespace

void Cell::add(std::size_t index, const Item& item) {
  items.push_back(index);
  totals.tokens += item.totals.tokens;
  totals.squares += item.totals.squares;
  totals.aligned += item.totals.aligned;
  samples += item.count;
}

bool Cell::accepts(const Item& item, const Instance& instance) const {
  const std::int64_t limit = instance.constraints.max_samples_per_cell;
  return !closed && totals.aligned + item.totals.aligned <= instance.usable_capacity() &&
         (limit == 0 || samples + item.count <= limit);
}

std::variant<FittedCells, Infeasible> fewest_rows(const Instance& instance, const Items& items,
                                                  const RowBound& at_least) {
  const std::int64_t slots = instance.topology.slots();
  const std::int64_t step = instance.constraints.row_multiple;
  const std::int64_t most = round_down(static_cast<std::int64_t>(items.items.size()) / slots, step);
  if (at_least.rows > most) return too_few_items(instance, items, at_least);

  std::vector<ItemIndices> shares;
  if (instance.constraints.equal_count) {
    auto equal = share_equally(instance, items);
    if (!equal) {
      return Infeasible{"atomic groups and equal_count: found no way to give every slot the same number of samples",
                        "smaller atomic groups, or without --equal-count"};
    }
    shares = *std::move(equal);
  }
  const ItemIndices everything = all_indices(items);
  const auto try_rows = [&](std::int64_t rows) {
    return instance.constraints.equal_count ? fit_equal_counts(instance, items, shares, rows)
                                            : fit(instance, items, everything, rows * slots);
  };

  // Wider steps once many row counts have failed: each is a whole fit, and far from the bound one row matters little.
  std::int64_t failed = at_least.rows - step;
  std::int64_t rows = at_least.rows;
  std::optional<std::vector<Cell>> cells = try_rows(rows);
  for (std::int64_t tries = 1; !cells && rows < most; ++tries) {
    failed = rows;
    rows = std::min(most, rows + step * std::max<std::int64_t>(1, tries / 8));
    cells = try_rows(rows);
  }
  if (!cells) return nothing_found(instance, at_least, most);
  while (rows - failed > step) {
    const std::int64_t middle = failed + round_down((rows - failed) / 2, step);
    if (middle <= failed) break;
    if (auto fewer = try_rows(middle)) {
      rows = middle;
      cells = std::move(fewer);
    } else {
      failed = middle;
    }
  }
  return FittedCells{rows, *std::move(cells)};
}

std::optional<std::vector<Cell>> first_fit_decreasing(const Instance& instance, const Items& items,
                                                      std::int64_t cells) {
  return first_fit(instance, items, all_indices(items), std::vector<Cell>(static_cast<std::size_t>(cells)));
}

}  // namespace routepack
