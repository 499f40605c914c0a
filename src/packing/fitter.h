// SPDX-License-Identifier: Apache-2.0
// Items on their way into cells, at one number of cells after another.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "packing/cell.h"
#include "packing/exact_rows.h"
#include "packing/items.h"
#include "packing/reduce.h"
#include "routepack/instance.h"

namespace routepack {

/// A set of items: the whole window, or one slot's share. Remembers the best packing found.
class Fitter {
 public:
  Fitter(const Instance& instance, const Items& items, std::vector<std::size_t> wanted);

  /// Cells that the best packing known takes.
  [[nodiscard]] std::int64_t fewest_cells() const { return alone() + static_cast<std::int64_t>(fewest_.size()); }

  /// A fit into exactly `count` cells without a search, the most useful first: spread evenly, samples without routes
  /// together; then fuller cells; then no longer together.
  [[nodiscard]] std::optional<std::vector<Cell>> quickly(std::int64_t count) const;

  /// Looks for a packing into `count` cells and, when there is work left, for a proof that there is none.
  Proof thoroughly(std::int64_t count, Work& work);

  /// The best packing known, in exactly `count` cells.
  [[nodiscard]] std::optional<std::vector<Cell>> fewest(std::int64_t count) const;

 private:
  [[nodiscard]] std::int64_t alone() const { return static_cast<std::int64_t>(apart_.alone.size()); }
  [[nodiscard]] std::optional<std::vector<Cell>> to_cells(const Reduced& reduced, const Packing& packing,
                                                          std::int64_t count) const;

  const Items& items_;
  std::vector<std::size_t> wanted_;
  Reduced apart_;
  Reduced merged_;  ///< samples without routes in as few units as possible
  Packing fewest_;  ///< of `apart_`
};

}  // namespace routepack
