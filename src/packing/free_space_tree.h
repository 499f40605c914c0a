// SPDX-License-Identifier: Apache-2.0
// Free tokens of many cells.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace routepack {

/// Finds the first of many cells with enough free tokens in O(log cells).
class FreeSpaceTree {
 public:
  FreeSpaceTree(std::size_t cells, std::int64_t free) : cells_(cells) {
    while (leaves_ < cells) leaves_ *= 2;
    largest_.assign(2 * leaves_, -1);
    for (std::size_t c = 0; c < cells; ++c) largest_[leaves_ + c] = free;
    for (std::size_t node = leaves_ - 1; node >= 1; --node) {
      largest_[node] = std::max(largest_[2 * node], largest_[2 * node + 1]);
    }
  }

  void set(std::size_t c, std::int64_t free) {
    std::size_t node = leaves_ + c;
    largest_[node] = free;
    for (node /= 2; node >= 1; node /= 2) largest_[node] = std::max(largest_[2 * node], largest_[2 * node + 1]);
  }

  /// The first cell at or after `from` with at least `needed` free tokens; the number of cells when there is none.
  [[nodiscard]] std::size_t first_with(std::int64_t needed, std::size_t from) const {
    if (from >= cells_) return cells_;
    std::size_t node = leaves_ + from;
    // Up to the first subtree right of `from` that has room, then down along its left edge.
    while (largest_[node] < needed) {
      while (node % 2 == 1) node /= 2;
      if (node == 0) return cells_;
      ++node;
    }
    while (node < leaves_) node = 2 * node + (largest_[2 * node] < needed ? 1 : 0);
    return node - leaves_;
  }

 private:
  std::size_t cells_;
  std::size_t leaves_ = 1;
  std::vector<std::int64_t> largest_;
};

}  // namespace routepack
