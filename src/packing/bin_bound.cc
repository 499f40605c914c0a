// SPDX-License-Identifier: Apache-2.0
#include "packing/bin_bound.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "core/integer.h"

namespace routepack {
namespace {

/// Values of a dual-feasible function that may be evaluated for one problem.
constexpr std::int64_t kEvaluations = 1'000'000;
constexpr std::int64_t kLargestParameter = 40;
constexpr std::int64_t kLargestCombined = 8;
constexpr std::int64_t kThresholds = 16;

/// Distinct sizes with their copies, sizes falling.
struct Sizes {
  std::vector<std::int64_t> size;
  std::vector<std::int64_t> copies;
  std::int64_t capacity = 0;

  [[nodiscard]] std::int64_t kinds() const { return static_cast<std::int64_t>(size.size()); }
};

/// Sizes raised by `delta` per sample, in bins raised by delta · max_count.
Sizes raised_sizes(const BinProblem& problem, std::int64_t delta) {
  std::vector<std::int64_t> all;
  all.reserve(problem.units.size());
  for (const auto& unit : problem.units) all.push_back(unit.size + delta * unit.count);
  if (delta > 0) std::ranges::sort(all, std::greater<>());
  Sizes sizes;
  sizes.capacity = problem.capacity + (delta > 0 ? delta * problem.max_count : 0);
  for (const std::int64_t size : all) {
    if (sizes.size.empty() || sizes.size.back() != size) {
      sizes.size.push_back(size);
      sizes.copies.push_back(0);
    }
    ++sizes.copies.back();
  }
  return sizes;
}

template <class Function>
std::int64_t bins_by(const Sizes& sizes, const Function& f, std::int64_t whole) {
  std::int64_t sum = 0;
  for (std::size_t k = 0; k < sizes.size.size(); ++k) sum += sizes.copies[k] * f(sizes.size[k]);
  return ceil_div(sum, whole);
}

/// At most `wanted` of the values, evenly spread.
std::vector<std::int64_t> thinned(std::vector<std::int64_t> values, std::int64_t wanted) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  const auto found = static_cast<std::int64_t>(values.size());
  if (found <= wanted) return values;
  std::vector<std::int64_t> kept;
  for (std::int64_t n = 0; n < wanted; ++n) kept.push_back(values[static_cast<std::size_t>(n * found / wanted)]);
  return kept;
}

std::int64_t dual_feasible_bound(const Sizes& sizes, std::int64_t evaluations) {
  const std::int64_t capacity = sizes.capacity;
  const std::int64_t functions = std::max<std::int64_t>(evaluations / std::max<std::int64_t>(sizes.kinds(), 1), 8);
  std::int64_t best = 0;
  const auto look_at = [&](DualFeasible::Family family, std::int64_t parameter) {
    const DualFeasible f{family, parameter, capacity};
    best = std::max(best, bins_by(sizes, f, f.whole()));
  };
  for (std::int64_t k = 1; k <= std::min(kLargestParameter, functions / 4); ++k) {
    look_at(DualFeasible::Family::FeketeSchepers, k);
    if (k >= 2) look_at(DualFeasible::Family::Vanderbeck, k);
  }

  // The values change only where a size or its complement is a multiple of λ; the sizes themselves are the best guess.
  std::vector<std::int64_t> lambdas;
  std::vector<std::int64_t> thresholds;
  for (const std::int64_t size : sizes.size) {
    if (2 * size <= capacity) {
      lambdas.push_back(size);
      thresholds.push_back(size);
    } else if (size < capacity) {
      lambdas.push_back(capacity - size);
      thresholds.push_back(capacity - size);
    }
  }
  std::erase_if(lambdas, [&](std::int64_t lambda) { return lambda < 1 || 2 * lambda > capacity; });
  std::erase_if(thresholds, [&](std::int64_t epsilon) { return epsilon < 1 || 2 * epsilon > capacity; });
  for (const std::int64_t lambda : thinned(std::move(lambdas), functions / 4)) {
    look_at(DualFeasible::Family::Ccm, lambda);
  }
  for (const std::int64_t epsilon : thinned(std::move(thresholds), std::min(kThresholds, functions / 32))) {
    for (std::int64_t k = 1; k <= kLargestCombined; ++k) {
      const DualFeasible f{DualFeasible::Family::FeketeSchepers, k, capacity};
      const auto thresholded = [&](std::int64_t size) -> std::int64_t {
        if (size > capacity - epsilon) return f.whole();
        return size < epsilon ? 0 : f(size);
      };
      best = std::max(best, bins_by(sizes, thresholded, f.whole()));
    }
  }
  return best;
}

}  // namespace

std::int64_t l2_bound(std::span<const std::int64_t> sizes, std::span<const std::int64_t> copies,
                      std::int64_t capacity) {
  std::int64_t total = 0;
  std::int64_t large_copies = 0;
  std::size_t large = 0;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    total += sizes[k] * copies[k];
    if (2 * sizes[k] > capacity) {
      large_copies += copies[k];
      large = k + 1;
    }
  }
  std::int64_t best = std::max(ceil_div(total, capacity), large_copies);
  // K falls from U/2 over the sizes; units over U − K leave the bins that can be shared.
  std::size_t alone = large;
  std::int64_t shared_free = 0;
  std::int64_t middle = 0;
  for (std::size_t end = large; end < sizes.size(); ++end) {
    middle += sizes[end] * copies[end];
    const std::int64_t largest_shared = capacity - sizes[end];
    while (alone > 0 && sizes[alone - 1] <= largest_shared) {
      --alone;
      shared_free += copies[alone] * (capacity - sizes[alone]);
    }
    if (middle > shared_free) best = std::max(best, large_copies + ceil_div(middle - shared_free, capacity));
  }
  return best;
}

std::int64_t DualFeasible::whole() const {
  switch (family) {
    case Family::FeketeSchepers:
      return capacity * parameter;
    case Family::Ccm:
      return 2 * (capacity / parameter);
    default:
      return 2 * (parameter - 1);
  }
}

std::int64_t DualFeasible::operator()(std::int64_t size) const {
  if (family == Family::FeketeSchepers) {
    const std::int64_t scaled = (parameter + 1) * size;
    return scaled % capacity == 0 ? parameter * size : scaled / capacity * capacity;
  }
  const auto from_below = [&](std::int64_t s) {
    if (family == Family::Ccm) return 2 * (s / parameter);
    return 2 * std::max<std::int64_t>(0, ceil_div(parameter * s, capacity) - 1);
  };
  if (2 * size > capacity) return whole() - from_below(capacity - size);
  if (2 * size == capacity) return whole() / 2;
  return from_below(size);
}

BinBound least_bins(const BinProblem& problem) {
  BinBound bound;
  if (problem.units.empty()) return bound;
  const auto raise = [&](std::int64_t bins, bool by_count, bool by_tokens) {
    if (bins > bound.bins) bound = {bins, by_count, by_tokens};
  };
  const Sizes plain = raised_sizes(problem, 0);
  raise(l2_bound(plain.size, plain.copies, plain.capacity), false, true);
  const bool limited = problem.max_count < problem.total_count();
  if (limited) raise(ceil_div(problem.total_count(), problem.max_count), true, false);
  raise(dual_feasible_bound(plain, limited ? kEvaluations / 4 : kEvaluations), false, true);
  if (!limited) return bound;

  std::int64_t before = 0;
  for (const std::int64_t quarters : {1, 2, 4, 8, 16}) {
    const std::int64_t delta = std::max<std::int64_t>(1, problem.capacity / problem.max_count * quarters / 4);
    if (delta == before) continue;
    before = delta;
    const Sizes raised = raised_sizes(problem, delta);
    raise(l2_bound(raised.size, raised.copies, raised.capacity), true, true);
    raise(dual_feasible_bound(raised, kEvaluations / 8), true, true);
  }
  return bound;
}

}  // namespace routepack
