// SPDX-License-Identifier: Apache-2.0
// What a seed may move: the items of a fit, where those that must stay together count as one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "packing/cell.h"
#include "packing/fit.h"
#include "packing/items.h"
#include "routepack/instance.h"

namespace routepack {

/// Items that share their cell in every seed.
struct Unit {
  std::vector<std::size_t> items;  ///< indices into Items::items, rising
  Item whole;                      ///< count and totals of all of them together
  std::size_t cell = 0;            ///< where the fit has it, an index into FittedCells::cells
  std::optional<SlotId> slot;      ///< the slot of that cell, when counts per slot must be equal

  void add_to(Cell& taker, const Items& of) const {
    for (const std::size_t index : items) taker.add(index, of.items[index]);
  }
};

struct Units {
  std::vector<Unit> free;    ///< by falling aligned length, ties by the first item
  std::vector<Cell> closed;  ///< cells of oversized samples, as the fit has them
};

/// Every item is a unit of its own, except samples without routes: the ones that share a cell of the fit stay together,
/// so that no seed spreads them over more cells (when nothing has routes there is nothing to protect from them).
Units make_units(const Items& items, const FittedCells& fitted);

/// Cells that are still to be filled: all of them, or one slot's.
struct Compartment {
  std::optional<SlotId> slot;
  std::int64_t cells = 0;
  std::vector<std::size_t> units;  ///< indices into Units::free, in the order they will be packed
};

/// The open cells of a fit of `rows` rows with the units in `order`: one compartment, or one per slot when counts must
/// be equal; `slots` says then where each unit goes.
std::vector<Compartment> compartments(const Instance& instance, const Units& units, std::int64_t rows,
                                      std::span<const std::size_t> order, std::span<const SlotId> slots);

}  // namespace routepack
