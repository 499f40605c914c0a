// SPDX-License-Identifier: Apache-2.0
#include "packing/arrangement.h"

#include <algorithm>
#include <utility>

#include "core/assert.h"

namespace routepack {

Layout to_layout(const Instance& instance, const Items& items, const Arrangement& arrangement) {
  const auto slots = static_cast<std::size_t>(instance.topology.slots());
  ROUTEPACK_ASSERT(arrangement.cells.size() == static_cast<std::size_t>(arrangement.rows) * slots,
                   "an arrangement is not rectangular");
  std::vector<std::vector<std::vector<SampleId>>> layout(static_cast<std::size_t>(arrangement.rows));
  for (std::size_t c = 0; c < arrangement.cells.size(); ++c) {
    const Cell& cell = arrangement.cells[c];
    ROUTEPACK_ASSERT(!cell.slot || *cell.slot == c % slots, "a cell is not at its slot");
    auto& samples = layout[c / slots].emplace_back();
    samples.reserve(static_cast<std::size_t>(cell.samples));
    for (const std::size_t index : cell.items) {
      const auto more = items.samples_of(items.items[index]);
      samples.insert(samples.end(), more.begin(), more.end());
    }
    std::ranges::sort(samples);
  }
  return Layout(std::move(layout), instance.topology.slots(), static_cast<std::int32_t>(items.samples.size()));
}

}  // namespace routepack
