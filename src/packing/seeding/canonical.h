// SPDX-License-Identifier: Apache-2.0
// One form for all arrangements that differ only by irrelevant permutations (paper Algorithm 2: Canonicalize,
// CanonicalMap).
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "packing/arrangement.h"
#include "packing/items.h"
#include "routepack/instance.h"
#include "routepack/score.h"

namespace routepack {

/// Items sorted inside every cell; cells sorted inside every row and D_g, unless they are bound to their slots; rows
/// sorted; all by their least sample. Doubles added in another order of rows may differ, so scores belong to this form
/// and to no other: equal forms, equal scores.
struct Canonical {
  Arrangement arrangement;
  std::vector<std::size_t> row_order;  ///< row n was row row_order[n]
  std::uint64_t signature = 0;         ///< hash of the arrangement; equal for equal forms
};

/// O(samples · log(samples of a cell)).
Canonical canonicalize(const Instance& instance, const Items& items, Arrangement arrangement);

/// The best entry of every signature, in the order the signatures came.
class CanonicalMap {
 public:
  /// Remembers `entry` unless its signature has one of at most this score. False when the signature was known.
  bool add(std::uint64_t signature, const Score& score, std::size_t entry);
  [[nodiscard]] const std::vector<std::size_t>& entries() const { return entries_; }

 private:
  struct Known {
    std::size_t position = 0;
    Score score;
  };
  std::unordered_map<std::uint64_t, Known> known_;
  std::vector<std::size_t> entries_;
};

}  // namespace routepack
