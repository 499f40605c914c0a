// SPDX-License-Identifier: Apache-2.0
// Units into a fixed number of cells (paper Algorithm 2: FixedRowFFD, WindowShuffle, RandomizedBestFit).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "packing/cell.h"
#include "packing/fit.h"
#include "packing/items.h"
#include "packing/seeding/draws.h"
#include "packing/seeding/units.h"
#include "routepack/instance.h"

namespace routepack {

/// 0 … count − 1, each next one drawn from the first `choice` that are left. O(count · choice).
std::vector<std::size_t> window_shuffle(std::size_t count, std::size_t choice, Draws& draws);

/// New slots for the units: within each `choice` units of `order` with equally many samples, slots are dealt anew. So
/// every slot keeps its number of units and samples, and about its tokens.
std::vector<SlotId> exchange_slots(const Units& units, std::span<const std::size_t> order, std::size_t choice,
                                   Draws& draws);

/// The slots of the fit.
std::vector<SlotId> fitted_slots(const Units& units);

/// Every unit in turn to the first cell that takes it; once as many units are left as cells are empty, each gets one.
/// Empty when a unit finds no room. Never leaves a cell empty. O(units · log cells) without a limit on samples.
std::optional<std::vector<Cell>> first_fit(const Instance& instance, const Items& items, const Units& units,
                                           const Compartment& compartment);

/// Which of the cells that take a unit come first.
enum class FitRule {
  Fullest,   ///< the paper's best fit: most aligned tokens, then fewest samples, then lowest index
  Emptiest,  ///< the other way round: cells of like size, where the cap leaves room for that
};

/// The first units open one cell each. Every other one looks at the first `choice` cells that take it and draws among
/// them. Empty when a unit finds no room; there must be at least as many units as cells, so none stays empty.
/// O(units · (log cells + choice)) as long as few cells are passed over for their number of samples.
std::optional<std::vector<Cell>> randomized_fit(const Instance& instance, const Items& items, const Units& units,
                                                const Compartment& compartment, FitRule rule, std::size_t choice,
                                                Draws& draws);

/// The fit with units exchanged between its cells: each unit of `order` in turn and one of the `choice` after it swap
/// cells where the rules allow. Units close in the order should be of like size. Always succeeds. O(units).
std::vector<Cell> exchanged_cells(const Instance& instance, const Items& items, const Units& units,
                                  const FittedCells& fitted, std::span<const std::size_t> order, std::size_t choice,
                                  Draws& draws);

}  // namespace routepack
