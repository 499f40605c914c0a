// SPDX-License-Identifier: Apache-2.0
#include "packing/peers/bins.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "core/assert.h"

namespace routepack::peers {

std::int64_t sum_over(const Bin& bin, std::span<const std::int64_t> values) {
  std::int64_t sum = 0;
  for (const std::size_t i : bin) sum += values[i];
  return sum;
}

std::size_t allowed_rows(const Lengths& lengths, std::size_t needed) {
  const std::size_t step = lengths.row_multiple;
  return (std::max(needed, lengths.min_rows) + step - 1) / step * step;
}

Bin by_falling(std::span<const std::int64_t> values) {
  Bin order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  return order;
}

Bins first_fit(std::span<const std::size_t> items, std::span<const std::int64_t> lengths, std::int64_t capacity) {
  Bins bins;
  std::vector<std::int64_t> sums;
  for (const std::size_t i : items) {
    std::size_t b = 0;
    while (b < bins.size() && sums[b] + lengths[i] > capacity) ++b;
    if (b == bins.size()) {
      bins.emplace_back();
      sums.push_back(0);
    }
    bins[b].push_back(i);
    sums[b] += lengths[i];
  }
  return bins;
}

bool split_heaviest(Bins& bins, std::size_t count, std::span<const std::int64_t> weights, Equals equals) {
  std::vector<std::int64_t> sums;
  for (const Bin& bin : bins) sums.push_back(sum_over(bin, weights));
  while (bins.size() < count) {
    std::size_t heaviest = bins.size();
    for (std::size_t b = 0; b < bins.size(); ++b) {
      if (bins[b].size() < 2) continue;
      const bool first = heaviest == bins.size();
      if (first || sums[b] > sums[heaviest] || (equals == Equals::Last && sums[b] == sums[heaviest])) heaviest = b;
    }
    if (heaviest == bins.size()) return false;
    Bin whole = std::exchange(bins[heaviest], {});
    std::ranges::stable_sort(whole, [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
    std::array<Bin, 2> halves;
    std::array<std::int64_t, 2> half_sums = {0, 0};
    for (const std::size_t i : whole) {
      const std::size_t lighter = half_sums[0] <= half_sums[1] ? 0 : 1;
      halves[lighter].push_back(i);
      half_sums[lighter] += weights[i];
    }
    bins[heaviest] = std::move(halves[0]);
    sums[heaviest] = half_sums[0];
    bins.push_back(std::move(halves[1]));
    sums.push_back(half_sums[1]);
  }
  return true;
}

SlotCells deal(Bins bins, std::size_t slots) {
  ROUTEPACK_ASSERT(bins.size() % slots == 0, "a number of cells that the slots do not divide");
  SlotCells dealt(slots);
  for (std::size_t b = 0; b < bins.size(); ++b) dealt[b % slots].push_back(std::move(bins[b]));
  return dealt;
}

Infeasible too_long(std::size_t sample, std::int64_t length, std::int64_t capacity) {
  return {fmt::format("sample {} has {} aligned tokens, a cell holds {}", sample, length, capacity), "a larger --cap"};
}

Infeasible too_few(std::size_t samples, std::size_t cells) {
  return {fmt::format("{} samples cannot fill {} cells", samples, cells), "more samples, or fewer slots or rows"};
}

bool all_fit(const Lengths& lengths, Infeasible& why) {
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths.of[i] <= lengths.capacity) continue;
    why = too_long(i, lengths.of[i], lengths.capacity);
    return false;
  }
  return true;
}

}  // namespace routepack::peers
