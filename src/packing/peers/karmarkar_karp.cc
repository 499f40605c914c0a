// SPDX-License-Identifier: Apache-2.0
#include "packing/peers/karmarkar_karp.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/assert.h"

namespace routepack::peers {
namespace {

struct Set {
  std::int64_t sum = 0;
  Bin items;

  void merge(const Set& other) {
    sum += other.sum;
    items.insert(items.end(), other.items.begin(), other.items.end());
  }
};

bool heavier(const Set& a, const Set& b) {
  if (a.sum != b.sum) return a.sum > b.sum;
  if (a.items.size() != b.items.size()) return a.items.size() > b.items.size();
  return b.items < a.items;
}

/// A partial solution: k sets by falling weight. The empty ones at the end are left out.
struct Partial {
  std::vector<Set> sets;
  std::int64_t spread = 0;

  /// Sets from `changed` on may be anywhere in the order.
  void settle(std::size_t k, std::size_t changed) {
    const auto middle = sets.begin() + static_cast<std::ptrdiff_t>(changed);
    std::sort(middle, sets.end(), heavier);
    std::inplace_merge(sets.begin(), middle, sets.end(), heavier);
    spread = sets.front().sum - (sets.size() == k ? sets.back().sum : 0);
  }
  void merge(Partial&& other, std::size_t k) {
    const std::size_t before = sets.size();
    const std::size_t changed = std::min(before, k - other.sets.size());
    for (std::size_t j = 0; j < other.sets.size(); ++j) {
      const std::size_t i = k - 1 - j;
      if (i < before) {
        sets[i].merge(other.sets[j]);
      } else {
        sets.push_back(std::move(other.sets[j]));
      }
    }
    settle(k, changed);
  }
};

/// Order of a max-heap: the widest spread on top. No two are equal, for their sets hold different items.
bool below(const Partial& a, const Partial& b) {
  if (a.spread != b.spread) return a.spread < b.spread;
  return heavier(b.sets.front(), a.sets.front());
}

Partial pop(std::vector<Partial>& heap) {
  std::ranges::pop_heap(heap, below);
  Partial top = std::move(heap.back());
  heap.pop_back();
  return top;
}

}  // namespace

Bins karmarkar_karp(std::span<const std::int64_t> values, std::size_t k, bool equal_counts) {
  ROUTEPACK_ASSERT(k >= 1 && !values.empty(), "nothing to partition");
  ROUTEPACK_ASSERT(!equal_counts || values.size() % k == 0, "counts that cannot be equal");
  Bin rising(values.size());
  std::iota(rising.begin(), rising.end(), std::size_t{0});
  std::ranges::sort(rising,
                    [&](std::size_t a, std::size_t b) { return std::pair(values[a], a) < std::pair(values[b], b); });
  const std::size_t together = equal_counts ? k : 1;
  std::vector<Partial> heap(values.size() / together);
  for (std::size_t n = 0; n < rising.size(); ++n) {
    heap[n / together].sets.push_back({values[rising[n]], {rising[n]}});
  }
  for (Partial& partial : heap) partial.settle(k, 0);
  std::ranges::make_heap(heap, below);
  while (heap.size() > 1) {
    Partial first = pop(heap);
    first.merge(pop(heap), k);
    heap.push_back(std::move(first));
    std::ranges::push_heap(heap, below);
  }
  Bins bins;
  for (Set& set : heap.front().sets) bins.push_back(std::move(set.items));
  bins.resize(k);
  return bins;
}

bool work_of(std::span<const std::int64_t> lengths, std::int64_t linear, std::vector<std::int64_t>& work) {
  constexpr double kMost = 9e18;
  work.clear();
  double total = 0.0;
  for (const std::int64_t t : lengths) {
    total += static_cast<double>(t) * static_cast<double>(linear + t);
    if (total > kMost) return false;
    work.push_back(t * (linear + t));
  }
  return true;
}

}  // namespace routepack::peers
