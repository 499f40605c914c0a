// SPDX-License-Identifier: Apache-2.0
// What the packers of today's frameworks have in common: a list of lengths, and bins of indices into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "routepack/error.h"

namespace routepack::peers {

/// All that such a packer sees of a window.
struct Lengths {
  std::vector<std::int64_t> of;  ///< aligned tokens per sample, in arrival order
  std::int64_t capacity = 0;     ///< largest sum of a cell
  std::size_t slots = 1;         ///< D
  std::size_t min_rows = 1;      ///< at least this many rows
  std::size_t row_multiple = 1;  ///< a multiple of this many rows

  [[nodiscard]] std::size_t size() const { return of.size(); }
};

using Bin = std::vector<std::size_t>;  ///< samples of one cell
using Bins = std::vector<Bin>;         ///< the cells of one slot in the order of the rows, or all cells
using SlotCells = std::vector<Bins>;   ///< cells per slot, all slots equally many
using Packed = std::variant<SlotCells, Infeasible>;

std::int64_t sum_over(const Bin& bin, std::span<const std::int64_t> values);

/// Rows to use when `needed` are needed: at least min_rows, rounded up to row_multiple.
std::size_t allowed_rows(const Lengths& lengths, std::size_t needed);

/// Indices 0 … n − 1 by falling value; equal values in order of their index.
Bin by_falling(std::span<const std::int64_t> values);

/// Each item in turn to the first bin that still holds it, else to a new bin; one larger than a bin is alone in one.
Bins first_fit(std::span<const std::size_t> items, std::span<const std::int64_t> lengths, std::int64_t capacity);

/// Which of equally heavy bins is split. Clipped lengths make many of those.
enum class Equals { First, Last };

/// Splits the bin with the largest sum of `weights` in two, again and again, until there are `count`: its items by
/// falling weight go to the lighter half, the second half becomes the last bin. False when only single items are left.
bool split_heaviest(Bins& bins, std::size_t count, std::span<const std::int64_t> weights, Equals equals);

/// Bin b goes to slot b mod D, row b / D. The count must be a multiple of D.
SlotCells deal(Bins bins, std::size_t slots);

/// Why there is no layout.
Infeasible too_long(std::size_t sample, std::int64_t length, std::int64_t capacity);
Infeasible too_few(std::size_t samples, std::size_t cells);

/// False, with the reason, when a sample is longer than a cell: most packers refuse those.
bool all_fit(const Lengths& lengths, Infeasible& why);

}  // namespace routepack::peers
