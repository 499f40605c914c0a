// SPDX-License-Identifier: Apache-2.0
// Fits in which every slot has the same number of samples.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "packing/cell.h"
#include "packing/exact_rows.h"
#include "packing/fitter.h"
#include "packing/items.h"
#include "routepack/instance.h"

namespace routepack {

/// Shares the samples among the slots in several ways, then fits slot by slot; or fits all together, then shares the
/// cells among the slots and evens the counts out. Cells come with their slots.
class EqualFitter {
 public:
  /// `rows` is the least number of rows that will be asked for.
  EqualFitter(const Instance& instance, const Items& items, std::int64_t rows);

  /// A fit into `rows` cells per slot.
  std::optional<std::vector<Cell>> fit(std::int64_t rows, Work& work);

  /// Tries every assignment of items to cells, as far as some steps reach; fills `cells` when one fits.
  Proof try_everything(std::int64_t rows, std::optional<std::vector<Cell>>& cells) const;

 private:
  const Instance& instance_;
  const Items& items_;
  std::vector<std::vector<Fitter>> ways_;  ///< per way of sharing: one per slot
  Fitter together_;
};

}  // namespace routepack
