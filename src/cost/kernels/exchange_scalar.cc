// SPDX-License-Identifier: Apache-2.0
// What the kernels compute, written plainly.
#include <algorithm>
#include <limits>
#include <vector>

#include "cost/kernels/exchange.h"

namespace routepack::kernels::scalar {
namespace {

constexpr std::int32_t kLeast = std::numeric_limits<std::int16_t>::min();

std::int16_t saturated(std::int32_t value) {
  return static_cast<std::int16_t>(std::clamp<std::int32_t>(value, kLeast, std::numeric_limits<std::int16_t>::max()));
}
std::int16_t sum(std::int16_t a, std::int32_t b) {
  return saturated(a + b);
}
std::int32_t sum(std::int32_t a, std::int32_t b) {
  return a + b;
}

template <class T>
void peaks_of(const LaneShape& shape, const T* i, const T* j, const T* a, const T* b, T* peaks_a, T* peaks_b) {
  std::fill_n(peaks_a, shape.layer_lanes(), T{0});
  std::fill_n(peaks_b, shape.layer_lanes(), T{0});
  for (std::size_t l = 0; l < shape.layers(); ++l) {
    T most_a = std::numeric_limits<T>::min();
    T most_b = std::numeric_limits<T>::min();
    for (std::size_t p = 0; p < shape.ranks(); ++p) {
      const std::size_t at = shape.lane(l, p);
      const std::int32_t change = static_cast<std::int32_t>(j[at]) - static_cast<std::int32_t>(i[at]);
      most_a = std::max(most_a, sum(a[at], change));
      most_b = std::max(most_b, sum(b[at], -change));
    }
    peaks_a[l] = most_a;
    peaks_b[l] = most_b;
  }
}

template <class T>
PeakSums sums_of(const LaneShape& shape, const T* i, const T* j, const T* a, const T* b) {
  std::vector<T> peaks(2 * shape.layer_lanes());
  peaks_of(shape, i, j, a, b, peaks.data(), peaks.data() + shape.layer_lanes());
  PeakSums sums;
  for (std::size_t l = 0; l < shape.layers(); ++l) {
    sums.a += peaks[l];
    sums.b += peaks[shape.layer_lanes() + l];
  }
  return sums;
}

template <class T>
void apply_to(const LaneShape& shape, const T* minus, const T* plus, std::int32_t* loads, std::int32_t* peaks) {
  for (std::size_t at = 0; at < shape.lanes(); ++at) loads[at] += plus[at] - minus[at];
  std::fill_n(peaks, shape.layer_lanes(), 0);
  for (std::size_t l = 0; l < shape.layers(); ++l) {
    for (std::size_t p = 0; p < shape.ranks(); ++p) peaks[l] = std::max(peaks[l], loads[shape.lane(l, p)]);
  }
}

}  // namespace

PeakSums exchange_sums(const LaneShape& shape, const std::int16_t* i, const std::int16_t* j, const std::int16_t* a,
                       const std::int16_t* b) {
  return sums_of(shape, i, j, a, b);
}
PeakSums exchange_sums(const LaneShape& shape, const std::int32_t* i, const std::int32_t* j, const std::int32_t* a,
                       const std::int32_t* b) {
  return sums_of(shape, i, j, a, b);
}
void exchange_peaks(const LaneShape& shape, const std::int16_t* i, const std::int16_t* j, const std::int16_t* a,
                    const std::int16_t* b, std::int16_t* peaks_a, std::int16_t* peaks_b) {
  peaks_of(shape, i, j, a, b, peaks_a, peaks_b);
}
void exchange_peaks(const LaneShape& shape, const std::int32_t* i, const std::int32_t* j, const std::int32_t* a,
                    const std::int32_t* b, std::int32_t* peaks_a, std::int32_t* peaks_b) {
  peaks_of(shape, i, j, a, b, peaks_a, peaks_b);
}
void apply(const LaneShape& shape, const std::int16_t* minus, const std::int16_t* plus, std::int32_t* loads,
           std::int32_t* peaks) {
  apply_to(shape, minus, plus, loads, peaks);
}
void apply(const LaneShape& shape, const std::int32_t* minus, const std::int32_t* plus, std::int32_t* loads,
           std::int32_t* peaks) {
  apply_to(shape, minus, plus, loads, peaks);
}
void relative_loads(const LaneShape& shape, const std::int32_t* loads, const std::int32_t* peaks,
                    std::int16_t* relative) {
  std::fill_n(relative, shape.lanes(), std::int16_t{0});
  for (std::size_t l = 0; l < shape.layers(); ++l) {
    for (std::size_t p = 0; p < shape.ranks(); ++p) {
      const std::size_t at = shape.lane(l, p);
      relative[at] = saturated(loads[at] - peaks[l] + kNarrowLimit);
    }
  }
}

}  // namespace routepack::kernels::scalar
