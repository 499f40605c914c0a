// SPDX-License-Identifier: Apache-2.0
// How different two arrangements are, without matching their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "packing/arrangement.h"
#include "packing/items.h"
#include "packing/row_table.h"

namespace routepack {

/// H(x): what each row looks like, [R, F], row by row. Token moments (Σ t, Σ over cells of (Σ t)², the largest cell,
/// Σ t²), then per layer the sum over shards of max_p W and, with several shards, the largest of them.
struct RowFeatures {
  std::size_t rows = 0;
  std::size_t width = 0;  ///< F
  std::vector<double> values;
};
RowFeatures row_features(const Instance& instance, RowTable& full_table);

/// Fixed projections u_k of features that are each divided by their mean in a reference arrangement, so that all count
/// alike: signs over √F. Sorting makes the sketch blind to the order of rows. No libm: sums, products and square roots
/// that IEEE rounds the same everywhere.
class SlicedWasserstein {
 public:
  /// `projections` = q of them.
  SlicedWasserstein(const RowFeatures& reference, std::size_t projections);

  /// φ_k(x) = sort(H(x) u_k), [q, R]. O(q · R · (F + log R)).
  [[nodiscard]] std::vector<double> sketch(const RowFeatures& features) const;
  /// Σ_k ‖φ_k(x) − φ_k(y)‖₁ / (q · R). O(q · R).
  [[nodiscard]] static double distance(std::span<const double> a, std::span<const double> b);

 private:
  std::size_t width_;
  std::vector<double> directions_;  // [q, F], scaled
};

/// Everything that comparisons need, computed once per arrangement.
struct Profile {
  std::size_t rows = 0;
  std::vector<std::uint32_t> items;    ///< cell after cell
  std::vector<std::uint32_t> ends;     ///< [R·D]: where each cell ends in `items`
  std::vector<std::uint32_t> cell_of;  ///< per item
  std::vector<std::uint32_t> row_of;   ///< per item
  std::vector<double> sketch;          ///< φ
};
Profile make_profile(const Items& items, const Arrangement& arrangement, std::vector<double> sketch);

/// Compares profiles; its counters are kept from call to call.
class Distance {
 public:
  /// The share of pairs of items that share a cell in one arrangement but not in both (Jaccard distance, 0 to 1), the
  /// same for rows, and the sliced-Wasserstein distance, added up. Symmetric. O(N + q · R).
  double operator()(const Profile& a, const Profile& b);

 private:
  /// The Jaccard distance for blocks of `cells` consecutive cells; `block_of` says which block of b an item is in.
  double pairs_apart(const Profile& a, const Profile& b, std::span<const std::uint32_t> block_of, std::size_t cells);

  std::vector<std::uint32_t> met_;  // items of the current block of a, by block of b
};

}  // namespace routepack
