// SPDX-License-Identifier: Apache-2.0
// q[i, l, p] of everything that is packed as one: an item of Items, that is a sample or an atomic group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cost/kernels/lanes.h"
#include "exec/executor.h"
#include "exec/node_memory.h"
#include "packing/items.h"
#include "routepack/instance.h"
#include "routepack/placement.h"

namespace routepack {

/// Rank loads of every item under one placement, in the lane order of the kernels: 16-bit where every load allows it.
class UnitLoads {
 public:
  /// O(N·L·E) operations, in parallel over items. Processes of one host share the work
  /// and the memory; where they hold parts of the counts, each does its own and they tell each other.
  UnitLoads(const Instance& instance, const Placement& placement, const Items& items, Executor& executor);

  [[nodiscard]] const LaneShape& shape() const { return shape_; }
  [[nodiscard]] std::size_t items() const { return items_; }
  /// Whether loads are kept in 16 bits: none is above kernels::kNarrowLimit.
  [[nodiscard]] bool narrow() const { return narrow_; }
  /// The loads of one item, shape().lanes() of them. With `item` = items(): zeros.
  [[nodiscard]] const std::int16_t* narrow(std::size_t item) const { return lanes<std::int16_t>(item); }
  [[nodiscard]] const std::int32_t* wide(std::size_t item) const { return lanes<std::int32_t>(item); }

  /// Adds the loads of one item to `loads` [L, P], layer by layer.
  void add_to(std::size_t item, std::span<std::int64_t> loads) const;

 private:
  template <class Lane>
  [[nodiscard]] const Lane* lanes(std::size_t item) const {
    return reinterpret_cast<const Lane*>(memory_.data()) + item * shape_.lanes();
  }

  LaneShape shape_;
  std::size_t items_;
  bool narrow_ = true;
  NodeMemory memory_;  // [items + 1, lanes], once per host
};

}  // namespace routepack
