// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "packing/peers/karmarkar_karp.h"
#include "packing/peers/packers.h"

namespace routepack::peers {

Packed ffd_sorted_rows(const Lengths& lengths) {
  if (Infeasible why; !all_fit(lengths, why)) return why;
  std::vector<std::int64_t> squares;
  if (!work_of(lengths.of, 0, squares)) return Infeasible{"the squares of all lengths pass 2^63", "a smaller window"};
  Bins bins = first_fit(by_falling(lengths.of), lengths.of, lengths.capacity);
  const std::size_t rows = allowed_rows(lengths, (bins.size() + lengths.slots - 1) / lengths.slots);
  const std::size_t cells = rows * lengths.slots;
  if (!split_heaviest(bins, cells, squares, Equals::First)) return too_few(lengths.size(), cells);
  std::vector<std::pair<std::int64_t, Bin>> weighed;
  for (Bin& bin : bins) {
    const std::int64_t weight = sum_over(bin, squares);
    weighed.emplace_back(weight, std::move(bin));
  }
  std::ranges::stable_sort(weighed, [](const auto& a, const auto& b) { return a.first > b.first; });
  for (std::size_t b = 0; b < bins.size(); ++b) bins[b] = std::move(weighed[b].second);
  return deal(std::move(bins), lengths.slots);
}

}  // namespace routepack::peers
