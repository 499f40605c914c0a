// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/assert.h"
#include "window/replay/counter.h"

namespace routepack::replay {

void spread(std::span<std::uint32_t> counts, std::uint64_t extra) {
  struct Rest {
    std::uint64_t remainder;
    std::size_t expert;
  };
  std::uint64_t total = 0;
  for (const std::uint32_t count : counts) total += count;
  ROUTEPACK_ASSERT(total > 0, "nothing to spread by");
  std::uint64_t given = 0;
  std::vector<Rest> rests;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    const std::uint64_t share = counts[e] * extra;  // below 2^64
    rests.push_back({share % total, e});
    counts[e] += static_cast<std::uint32_t>(share / total);
    given += share / total;
  }
  const auto left = static_cast<std::ptrdiff_t>(extra - given);  // fewer than experts with a remainder
  std::ranges::partial_sort(rests, rests.begin() + left, [](const Rest& a, const Rest& b) {
    return a.remainder != b.remainder ? a.remainder > b.remainder : a.expert < b.expert;
  });
  for (std::ptrdiff_t i = 0; i < left; ++i) ++counts[rests[static_cast<std::size_t>(i)].expert];
}

}  // namespace routepack::replay
