// SPDX-License-Identifier: Apache-2.0
#include "packing/cell.h"

#include <iterator>
#include <set>
#include <utility>

namespace routepack {

void Cell::add(std::size_t index, const Item& item) {
  items.push_back(index);
  totals.tokens += item.totals.tokens;
  totals.squares += item.totals.squares;
  totals.aligned += item.totals.aligned;
  samples += item.count;
}

bool Cell::accepts(const Item& item, const Instance& instance) const {
  const std::int64_t limit = instance.constraints.max_samples_per_cell;
  return !closed && totals.aligned + item.totals.aligned <= room_of_a_cell(instance) &&
         (limit == 0 || samples + item.count <= limit);
}

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

}  // namespace routepack
