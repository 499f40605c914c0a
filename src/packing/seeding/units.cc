// SPDX-License-Identifier: Apache-2.0
#include "packing/seeding/units.h"

#include <algorithm>
#include <utility>

namespace routepack {
namespace {

void add(Unit& unit, std::size_t index, const Item& item) {
  unit.items.push_back(index);
  unit.whole.count += item.count;
  unit.whole.totals.tokens += item.totals.tokens;
  unit.whole.totals.squares += item.totals.squares;
  unit.whole.totals.aligned += item.totals.aligned;
}

}  // namespace

Units make_units(const Items& items, const FittedCells& fitted) {
  const bool some_have_routes = !std::ranges::all_of(items.items, &Item::without_routes);
  Units units;
  for (std::size_t c = 0; c < fitted.cells.size(); ++c) {
    const Cell& cell = fitted.cells[c];
    if (cell.closed) {
      units.closed.push_back(cell);
      continue;
    }
    Unit together;
    together.cell = c;
    together.slot = cell.slot;
    for (const std::size_t index : cell.items) {
      const Item& item = items.items[index];
      if (some_have_routes && item.without_routes) {
        add(together, index, item);
        continue;
      }
      Unit& unit = units.free.emplace_back();
      unit.cell = c;
      unit.slot = cell.slot;
      add(unit, index, item);
    }
    if (!together.items.empty()) {
      std::ranges::sort(together.items);
      units.free.push_back(std::move(together));
    }
  }
  std::ranges::sort(units.free, [](const Unit& a, const Unit& b) {
    if (a.whole.totals.aligned != b.whole.totals.aligned) return a.whole.totals.aligned > b.whole.totals.aligned;
    return a.items.front() < b.items.front();
  });
  return units;
}

std::vector<Compartment> compartments(const Instance& instance, const Units& units, std::int64_t rows,
                                      std::span<const std::size_t> order, std::span<const SlotId> slots) {
  const auto count = static_cast<std::size_t>(instance.topology.slots());
  std::vector<Compartment> result(instance.constraints.equal_count ? count : 1);
  if (result.size() == 1 && !instance.constraints.equal_count) {
    result[0].cells = rows * instance.topology.slots() - static_cast<std::int64_t>(units.closed.size());
    result[0].units.assign(order.begin(), order.end());
    return result;
  }
  for (std::size_t d = 0; d < count; ++d) {
    result[d].slot = SlotId(d);
    result[d].cells = rows;
  }
  for (const Cell& cell : units.closed) --result[*cell.slot].cells;
  for (const std::size_t u : order) result[slots[u]].units.push_back(u);
  return result;
}

}  // namespace routepack
