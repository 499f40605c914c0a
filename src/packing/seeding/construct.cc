// SPDX-License-Identifier: Apache-2.0
#include "packing/seeding/construct.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

#include "core/assert.h"
#include "packing/free_space_tree.h"

namespace routepack {
namespace {

std::vector<Cell> empty_cells(const Compartment& compartment) {
  std::vector<Cell> cells(static_cast<std::size_t>(compartment.cells));
  for (Cell& cell : cells) cell.slot = compartment.slot;
  return cells;
}

/// Open cells, fullest first, in blocks: a change moves a few keys, however many cells there are.
class ByOccupancy {
 public:
  struct Key {
    std::int64_t aligned = 0;
    std::int64_t samples = 0;
    std::size_t cell = 0;
    friend bool operator<(const Key& a, const Key& b) {
      if (a.aligned != b.aligned) return a.aligned > b.aligned;
      return a.samples != b.samples ? a.samples < b.samples : a.cell < b.cell;
    }
  };
  struct Position {
    std::size_t block = 0;
    std::size_t index = 0;
    friend bool operator==(const Position&, const Position&) = default;
  };

  ByOccupancy() { blocks_.emplace_back(); }

  void insert(const Key& key) {
    // The last block that begins with a lesser key, or the first.
    const auto after = std::ranges::partition_point(
        blocks_, [&](const Block& block) { return !block.empty() && block.front() < key; });
    const auto block = after == blocks_.begin() ? after : after - 1;
    block->insert(std::lower_bound(block->begin(), block->end(), key), key);
    if (std::ssize(*block) <= kMost) return;
    const auto middle = block->begin() + kMost / 2;
    Block rest(middle, block->end());
    block->erase(middle, block->end());
    blocks_.insert(block + 1, std::move(rest));
  }
  void erase(Position at) {
    Block& block = blocks_[at.block];
    block.erase(block.begin() + static_cast<std::ptrdiff_t>(at.index));
    if (block.empty() && blocks_.size() > 1) blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(at.block));
  }
  /// The first cell with at most `aligned` tokens, or end().
  [[nodiscard]] Position first_with_at_most(std::int64_t aligned) const {
    const auto fuller = [&](const Key& key) { return key.aligned > aligned; };
    const auto block = std::ranges::partition_point(
        blocks_, [&](const Block& candidate) { return !candidate.empty() && fuller(candidate.back()); });
    if (block == blocks_.end()) return end();
    const auto key = std::ranges::partition_point(*block, fuller);
    return key == block->end() ? end()
                               : Position{static_cast<std::size_t>(block - blocks_.begin()),
                                          static_cast<std::size_t>(key - block->begin())};
  }
  [[nodiscard]] Position end() const { return {blocks_.size(), 0}; }
  [[nodiscard]] Position next(Position at) const {
    return at.index + 1 < blocks_[at.block].size() ? Position{at.block, at.index + 1} : Position{at.block + 1, 0};
  }
  [[nodiscard]] Position before(Position at) const {
    return at.index > 0 ? Position{at.block, at.index - 1} : Position{at.block - 1, blocks_[at.block - 1].size() - 1};
  }
  [[nodiscard]] const Key& operator[](Position at) const { return blocks_[at.block][at.index]; }

 private:
  using Block = std::vector<Key>;
  static constexpr std::ptrdiff_t kMost = 128;
  std::vector<Block> blocks_;  // in order; only the first may be empty, when it is the only one
};

}  // namespace

std::vector<std::size_t> window_shuffle(std::size_t count, std::size_t choice, Draws& draws) {
  std::vector<std::size_t> order;
  order.reserve(count);
  std::vector<std::size_t> prefix;
  std::size_t next = 0;
  while (order.size() < count) {
    while (next < count && prefix.size() < choice) prefix.push_back(next++);
    const std::size_t chosen = prefix.size() == 1 ? 0 : draws.below(prefix.size());
    order.push_back(prefix[chosen]);
    prefix.erase(prefix.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
  return order;
}

std::vector<SlotId> fitted_slots(const Units& units) {
  std::vector<SlotId> slots;
  slots.reserve(units.free.size());
  for (const Unit& unit : units.free) slots.push_back(unit.slot.value_or(SlotId(0)));
  return slots;
}

std::vector<SlotId> exchange_slots(const Units& units, std::span<const std::size_t> order, std::size_t choice,
                                   Draws& draws) {
  std::vector<SlotId> slots = fitted_slots(units);
  const auto deal_anew = [&](std::vector<std::size_t>& group) {
    for (std::size_t n = group.size(); n > 1; --n) std::swap(slots[group[n - 1]], slots[group[draws.below(n)]]);
    group.clear();
  };
  std::map<std::int64_t, std::vector<std::size_t>> groups;  // by samples of a unit
  for (const std::size_t u : order) {
    auto& group = groups[units.free[u].whole.count];
    group.push_back(u);
    if (group.size() == choice) deal_anew(group);
  }
  for (auto& [samples, group] : groups) deal_anew(group);
  return slots;
}

std::optional<std::vector<Cell>> first_fit(const Instance& instance, const Items& items, const Units& units,
                                           const Compartment& compartment) {
  const std::int64_t room = room_of_a_cell(instance);
  std::vector<Cell> cells = empty_cells(compartment);
  FreeSpaceTree free_space(cells.size(), room);
  std::size_t empty = cells.size();
  std::size_t first_empty = 0;
  for (std::size_t n = 0; n < compartment.units.size(); ++n) {
    const Unit& unit = units.free[compartment.units[n]];
    std::size_t c = first_empty;
    if (compartment.units.size() - n > empty) {
      c = free_space.first_with(unit.whole.totals.aligned, 0);
      while (c < cells.size() && !cells[c].accepts(unit.whole, instance)) {
        c = free_space.first_with(unit.whole.totals.aligned, c + 1);
      }
    }
    if (c >= cells.size()) return std::nullopt;
    // First fit opens cells in order.
    if (c == first_empty) {
      ++first_empty;
      --empty;
    }
    unit.add_to(cells[c], items);
    free_space.set(c, room - cells[c].totals.aligned);
  }
  if (empty > 0) return std::nullopt;
  return cells;
}

std::optional<std::vector<Cell>> randomized_fit(const Instance& instance, const Items& items, const Units& units,
                                                const Compartment& compartment, FitRule rule, std::size_t choice,
                                                Draws& draws) {
  const std::int64_t room = room_of_a_cell(instance);
  const std::int64_t limit = instance.constraints.max_samples_per_cell;
  std::vector<Cell> cells = empty_cells(compartment);
  ROUTEPACK_ASSERT(compartment.units.size() >= cells.size(), "fewer units than cells");
  ByOccupancy open;
  const auto key_of = [&](std::size_t c) { return ByOccupancy::Key{cells[c].totals.aligned, cells[c].samples, c}; };
  const auto full = [&](const Cell& cell) { return limit > 0 && cell.samples >= limit; };
  for (std::size_t c = 0; c < cells.size(); ++c) {
    units.free[compartment.units[c]].add_to(cells[c], items);
    if (!full(cells[c])) open.insert(key_of(c));
  }
  std::vector<ByOccupancy::Position> leading;
  for (std::size_t n = cells.size(); n < compartment.units.size(); ++n) {
    const Unit& unit = units.free[compartment.units[n]];
    const auto look_at = [&](ByOccupancy::Position at) {
      if (limit == 0 || open[at].samples + unit.whole.count <= limit) leading.push_back(at);
    };
    leading.clear();
    const auto first = open.first_with_at_most(room - unit.whole.totals.aligned);
    if (rule == FitRule::Fullest) {
      for (auto at = first; at != open.end() && leading.size() < choice; at = open.next(at)) look_at(at);
    } else {
      for (auto at = open.end(); at != first && leading.size() < choice;) look_at(at = open.before(at));
    }
    if (leading.empty()) return std::nullopt;
    const auto at = leading[leading.size() == 1 ? 0 : draws.below(leading.size())];
    const std::size_t c = open[at].cell;
    unit.add_to(cells[c], items);
    open.erase(at);
    if (!full(cells[c])) open.insert(key_of(c));
  }
  return cells;
}

std::vector<Cell> exchanged_cells(const Instance& instance, const Items& items, const Units& units,
                                  const FittedCells& fitted, std::span<const std::size_t> order, std::size_t choice,
                                  Draws& draws) {
  struct Load {
    std::int64_t aligned = 0;
    std::int64_t samples = 0;
  };
  const std::int64_t room = room_of_a_cell(instance);
  const std::int64_t limit = instance.constraints.max_samples_per_cell;
  std::vector<Load> load;
  load.reserve(fitted.cells.size());
  for (const Cell& cell : fitted.cells) load.push_back({cell.totals.aligned, cell.samples});
  std::vector<std::size_t> cell_of;
  cell_of.reserve(units.free.size());
  for (const Unit& unit : units.free) cell_of.push_back(unit.cell);

  for (std::size_t n = 0; n + 1 < order.size(); ++n) {
    const std::size_t ahead = std::min(choice, order.size() - 1 - n);
    const std::size_t u = order[n];
    const std::size_t v = order[n + 1 + (ahead == 1 ? 0 : draws.below(ahead))];
    Load& a = load[cell_of[u]];
    Load& b = load[cell_of[v]];
    const std::int64_t longer = units.free[u].whole.totals.aligned - units.free[v].whole.totals.aligned;
    const std::int64_t more = units.free[u].whole.count - units.free[v].whole.count;
    if (cell_of[u] == cell_of[v] || a.aligned - longer > room || b.aligned + longer > room) continue;
    if (limit > 0 && (a.samples - more > limit || b.samples + more > limit)) continue;
    if (instance.constraints.equal_count && more != 0) continue;
    a = {a.aligned - longer, a.samples - more};
    b = {b.aligned + longer, b.samples + more};
    std::swap(cell_of[u], cell_of[v]);
  }

  std::vector<Cell> cells(fitted.cells.size());
  for (std::size_t c = 0; c < cells.size(); ++c) {
    if (fitted.cells[c].closed) cells[c] = fitted.cells[c];
    cells[c].slot = fitted.cells[c].slot;
  }
  for (std::size_t u = 0; u < units.free.size(); ++u) units.free[u].add_to(cells[cell_of[u]], items);
  return cells;
}

}  // namespace routepack
