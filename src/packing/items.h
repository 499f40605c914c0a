// SPDX-License-Identifier: Apache-2.0
// What packing moves as a unit: one sample, or all samples of an atomic group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "cost/row_cost.h"
#include "routepack/error.h"
#include "routepack/instance.h"

namespace routepack {

struct Item {
  std::size_t first = 0;  ///< into Items::samples
  std::int64_t count = 0;
  CellTotals totals;
  bool without_routes = false;  ///< none of its samples has a recorded route
  bool oversized = false;       ///< longer than any cell: gets its own
};

struct Items {
  std::vector<Item> items;        ///< by falling aligned length, ties by the first sample
  std::vector<SampleId> samples;  ///< the samples of each item, together
  std::int64_t dummies = 0;       ///< one-token samples N, N + 1, … that fill up to equal counts

  [[nodiscard]] std::span<const SampleId> samples_of(const Item& item) const {
    return std::span(samples).subspan(item.first, static_cast<std::size_t>(item.count));
  }
};

/// Tokens that the items of a cell may add up to, as the cap counts them. At least 1, since it divides: when it rounds
/// down to 0 every item is oversized, and none is ever added to another.
inline std::int64_t room_of_a_cell(const Instance& instance) {
  return std::max<std::int64_t>(1, instance.usable_capacity());
}

/// The items of a window, or why some of them can never be packed: a sample or group over the cap, an atomic group
/// larger than a cell may be, counts that no number of rows makes equal.
std::variant<Items, Infeasible> make_items(const Instance& instance);

}  // namespace routepack
