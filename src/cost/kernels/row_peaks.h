// SPDX-License-Identifier: Apache-2.0
// The inner loops of row-aware placement: Σ over row-shards of the busiest rank when two ranks exchange an expert.
// Vectors have one number per row-shard, `n` of them, a multiple of kRowLanes. Scalar code (namespace scalar) is the
// definition; Highway's versions for each instruction set give the same integers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace routepack::kernels {

inline constexpr std::size_t kRowLanes = 8;

/// For each k below `count`: Σ max(rest, x + e, y − e) with e = experts + which[k]·n. Sums must fit 32 bits.
void exchanged_peaks(const std::int32_t* rest, const std::int32_t* x, const std::int32_t* y,
                     const std::int32_t* experts, const std::int32_t* which, std::size_t count, std::size_t n,
                     std::int32_t* sums);
/// Σ max(floor, x + least, y − most). The sum must fit 32 bits.
std::int32_t bounded_peaks(const std::int32_t* floor, const std::int32_t* x, const std::int32_t* y,
                           const std::int32_t* least, const std::int32_t* most, std::size_t n);
/// What two ranks meet when they exchange something: rest = the busiest of the others, that is `rival`, or `rival2`
/// where the rival is rank q itself; floor = max(rest, ceil((p + q) / 2)), as no exchange lowers their mean. Returns
/// Σ floor, which must fit 32 bits.
std::int32_t meet(const std::int32_t* rival, const std::int32_t* rival2, const std::int32_t* rival_rank, std::int32_t q,
                  const std::int32_t* on_p, const std::int32_t* on_q, std::size_t n, std::int32_t* rest,
                  std::int32_t* floor);

namespace scalar {

template <class Load>
void exchanged_peaks(const Load* rest, const Load* x, const Load* y, const Load* experts, const std::int32_t* which,
                     std::size_t count, std::size_t n, Load* sums) {
  for (std::size_t k = 0; k < count; ++k) {
    const Load* expert = experts + static_cast<std::size_t>(which[k]) * n;
    Load sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const Load a = x[i] + expert[i];
      const Load b = y[i] - expert[i];
      const Load c = a > b ? a : b;
      sum += c > rest[i] ? c : rest[i];
    }
    sums[k] = sum;
  }
}

template <class Load>
Load bounded_peaks(const Load* floor, const Load* x, const Load* y, const Load* least, const Load* most,
                   std::size_t n) {
  Load sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const Load a = x[i] + least[i];
    const Load b = y[i] - most[i];
    const Load c = a > b ? a : b;
    sum += c > floor[i] ? c : floor[i];
  }
  return sum;
}

template <class Load>
Load meet(const Load* rival, const Load* rival2, const std::int32_t* rival_rank, std::int32_t q, const Load* on_p,
          const Load* on_q, std::size_t n, Load* rest, Load* floor) {
  Load sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    rest[i] = rival_rank[i] == q ? rival2[i] : rival[i];
    const Load half = (on_p[i] + on_q[i] + 1) >> 1;
    floor[i] = half > rest[i] ? half : rest[i];
    sum += floor[i];
  }
  return sum;
}

}  // namespace scalar
}  // namespace routepack::kernels
