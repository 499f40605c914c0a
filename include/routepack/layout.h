// SPDX-License-Identifier: Apache-2.0
// Which whole samples train together, and when: R rows of D cells.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "routepack/ids.h"

namespace routepack {

/// A rectangular assignment of samples to cells B[r, d]. Samples are stored row by row, slot by slot. Immutable.
class Layout {
 public:
  /// `cells[r][d]` lists the samples of a cell.
  /// @throws InvalidInput unless every row has `slots` cells, no cell is empty and each sample 0 … samples − 1 occurs
  ///         exactly once; `where` goes in front of the message.
  Layout(std::vector<std::vector<std::vector<SampleId>>> cells, std::int32_t slots, std::int32_t samples,
         const std::string& where = "layout");

  [[nodiscard]] std::int32_t rows() const { return static_cast<std::int32_t>(cells_.size()); }  ///< R
  [[nodiscard]] std::int32_t slots() const { return slots_; }                                   ///< D
  [[nodiscard]] IdRange<RowId> row_ids() const { return IdRange<RowId>(rows()); }
  [[nodiscard]] std::span<const SampleId> cell(RowId r, SlotId d) const { return cells_[r][d]; }
  [[nodiscard]] const std::vector<std::vector<std::vector<SampleId>>>& cells() const { return cells_; }
  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  std::int32_t slots_ = 0;
  std::vector<std::vector<std::vector<SampleId>>> cells_;
};

}  // namespace routepack
