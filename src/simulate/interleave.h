// SPDX-License-Identifier: Apache-2.0
// Layers of several kinds in an even mixture, when only their numbers are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace routepack {

/// Σ counts kinds in a row, kind s `counts[s]` times, each as evenly as possible: 3 and 1 give 0, 0, 1, 0.
inline std::vector<std::size_t> interleave(std::span<const std::int64_t> counts) {
  std::int64_t all = 0;
  for (const std::int64_t count : counts) all += count;
  std::vector<std::int64_t> placed(counts.size(), 0);
  std::vector<std::size_t> order;
  for (std::int64_t position = 1; position <= all; ++position) {
    std::size_t next = 0;
    std::int64_t furthest = INT64_MIN;  // behind its share, times `all`
    for (std::size_t s = 0; s < counts.size(); ++s) {
      const std::int64_t behind = position * counts[s] - placed[s] * all;
      if (placed[s] < counts[s] && behind > furthest) {
        furthest = behind;
        next = s;
      }
    }
    ++placed[next];
    order.push_back(next);
  }
  return order;
}

}  // namespace routepack
