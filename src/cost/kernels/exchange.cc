// SPDX-License-Identifier: Apache-2.0
// Highway compiles this file once per instruction set and picks the best one at run time.
#include "cost/kernels/exchange.h"

#include <array>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cost/kernels/exchange.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace routepack::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V = hn::Vec<D>>
V plus(D /*d*/, V a, V b, std::int16_t /*lane*/) {
  return hn::SaturatedAdd(a, b);
}
template <class D, class V = hn::Vec<D>>
V minus(D /*d*/, V a, V b, std::int16_t /*lane*/) {
  return hn::SaturatedSub(a, b);
}
template <class D, class V = hn::Vec<D>>
V plus(D /*d*/, V a, V b, std::int32_t /*lane*/) {
  return hn::Add(a, b);
}
template <class D, class V = hn::Vec<D>>
V minus(D /*d*/, V a, V b, std::int32_t /*lane*/) {
  return hn::Sub(a, b);
}

/// The busiest rank of each of Lanes(d) layers, for both row-shards; `width` is the run of lanes per rank.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void busiest(D d, std::size_t ranks, std::size_t width, const T* HWY_RESTRICT i, const T* HWY_RESTRICT j,
                        const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, hn::Vec<D>& most_a, hn::Vec<D>& most_b) {
  most_a = hn::Set(d, hwy::LowestValue<T>());
  most_b = most_a;
  for (std::size_t p = 0; p < ranks; ++p) {
    const auto change = hn::Sub(hn::LoadU(d, j + p * width), hn::LoadU(d, i + p * width));
    most_a = hn::Max(most_a, plus(d, hn::LoadU(d, a + p * width), change, T{}));
    most_b = hn::Max(most_b, minus(d, hn::LoadU(d, b + p * width), change, T{}));
  }
}

/// Calls body(d, first lane of the block's run, first layer lane, width) for every vector of layers.
template <class T, class Body>
HWY_INLINE void each_vector(const LaneShape& shape, Body body) {
  const std::size_t ranks = shape.ranks();
  const hn::CappedTag<T, LaneShape::kWide> wide;
  std::size_t layer = 0;
  std::size_t first = 0;
  for (std::size_t block = 0; block < shape.wide_blocks(); ++block) {
    for (std::size_t v = 0; v < LaneShape::kWide; v += hn::Lanes(wide))
      body(wide, first + v, layer + v, LaneShape::kWide);
    layer += LaneShape::kWide;
    first += LaneShape::kWide * ranks;
  }
  if (shape.has_narrow_block()) {
    const hn::CappedTag<T, LaneShape::kNarrow> narrow;
    for (std::size_t v = 0; v < LaneShape::kNarrow; v += hn::Lanes(narrow)) {
      body(narrow, first + v, layer + v, LaneShape::kNarrow);
    }
  }
}

PeakSums exchange_sums_16_lanes(const LaneShape& shape, const std::int16_t* i, const std::int16_t* j,
                                const std::int16_t* a, const std::int16_t* b) {
  const std::size_t ranks = shape.ranks();
  PeakSums sums;
  each_vector<std::int16_t>(shape, [&](auto d, std::size_t at, std::size_t /*layer*/, std::size_t width) HWY_ATTR {
    hn::Vec<decltype(d)> most_a, most_b;
    busiest(d, ranks, width, i + at, j + at, a + at, b + at, most_a, most_b);
    const hn::Repartition<std::int32_t, decltype(d)> d32;
    const auto ones = hn::Set(d, std::int16_t{1});
    auto high_a = hn::Zero(d32);
    auto high_b = hn::Zero(d32);
    const auto low_a = hn::ReorderWidenMulAccumulate(d32, most_a, ones, hn::Zero(d32), high_a);
    const auto low_b = hn::ReorderWidenMulAccumulate(d32, most_b, ones, hn::Zero(d32), high_b);
    sums.a += hn::GetLane(hn::SumOfLanes(d32, hn::Add(low_a, high_a)));
    sums.b += hn::GetLane(hn::SumOfLanes(d32, hn::Add(low_b, high_b)));
  });
  return sums;
}

PeakSums exchange_sums_32_lanes(const LaneShape& shape, const std::int32_t* i, const std::int32_t* j,
                                const std::int32_t* a, const std::int32_t* b) {
  const std::size_t ranks = shape.ranks();
  PeakSums sums;
  each_vector<std::int32_t>(shape, [&](auto d, std::size_t at, std::size_t /*layer*/, std::size_t width) HWY_ATTR {
    hn::Vec<decltype(d)> most_a, most_b;
    busiest(d, ranks, width, i + at, j + at, a + at, b + at, most_a, most_b);
    std::array<std::int32_t, LaneShape::kWide> peaks_a{};
    std::array<std::int32_t, LaneShape::kWide> peaks_b{};
    hn::StoreU(most_a, d, peaks_a.data());
    hn::StoreU(most_b, d, peaks_b.data());
    for (std::size_t l = 0; l < hn::Lanes(d); ++l) {
      sums.a += peaks_a[l];
      sums.b += peaks_b[l];
    }
  });
  return sums;
}

template <class T>
HWY_INLINE void exchange_peaks_of(const LaneShape& shape, const T* i, const T* j, const T* a, const T* b, T* peaks_a,
                                  T* peaks_b) {
  const std::size_t ranks = shape.ranks();
  each_vector<T>(shape, [&](auto d, std::size_t at, std::size_t layer, std::size_t width) HWY_ATTR {
    hn::Vec<decltype(d)> most_a, most_b;
    busiest(d, ranks, width, i + at, j + at, a + at, b + at, most_a, most_b);
    hn::StoreU(most_a, d, peaks_a + layer);
    hn::StoreU(most_b, d, peaks_b + layer);
  });
}
void exchange_peaks_16_lanes(const LaneShape& shape, const std::int16_t* i, const std::int16_t* j,
                             const std::int16_t* a, const std::int16_t* b, std::int16_t* peaks_a,
                             std::int16_t* peaks_b) {
  exchange_peaks_of(shape, i, j, a, b, peaks_a, peaks_b);
}
void exchange_peaks_32_lanes(const LaneShape& shape, const std::int32_t* i, const std::int32_t* j,
                             const std::int32_t* a, const std::int32_t* b, std::int32_t* peaks_a,
                             std::int32_t* peaks_b) {
  exchange_peaks_of(shape, i, j, a, b, peaks_a, peaks_b);
}

template <class T>
HWY_INLINE void apply_to(const LaneShape& shape, const T* minus, const T* plus, std::int32_t* loads,
                         std::int32_t* peaks) {
  const std::size_t ranks = shape.ranks();
  each_vector<std::int32_t>(shape, [&](auto d, std::size_t at, std::size_t layer, std::size_t width) HWY_ATTR {
    const hn::Rebind<T, decltype(d)> narrow;
    auto most = hn::Zero(d);
    for (std::size_t p = 0; p < ranks; ++p) {
      const std::size_t lane = at + p * width;
      auto up = hn::Zero(d);
      auto down = hn::Zero(d);
      if constexpr (sizeof(T) == 2) {
        up = hn::PromoteTo(d, hn::LoadU(narrow, plus + lane));
        down = hn::PromoteTo(d, hn::LoadU(narrow, minus + lane));
      } else {
        up = hn::LoadU(d, plus + lane);
        down = hn::LoadU(d, minus + lane);
      }
      const auto load = hn::Add(hn::LoadU(d, loads + lane), hn::Sub(up, down));
      hn::StoreU(load, d, loads + lane);
      most = hn::Max(most, load);
    }
    hn::StoreU(most, d, peaks + layer);
  });
}
void apply_16_lanes(const LaneShape& shape, const std::int16_t* minus, const std::int16_t* plus, std::int32_t* loads,
                    std::int32_t* peaks) {
  apply_to(shape, minus, plus, loads, peaks);
}
void apply_32_lanes(const LaneShape& shape, const std::int32_t* minus, const std::int32_t* plus, std::int32_t* loads,
                    std::int32_t* peaks) {
  apply_to(shape, minus, plus, loads, peaks);
}

void relative_loads_lanes(const LaneShape& shape, const std::int32_t* loads, const std::int32_t* peaks,
                          std::int16_t* relative) {
  const std::size_t ranks = shape.ranks();
  each_vector<std::int32_t>(shape, [&](auto d, std::size_t at, std::size_t layer, std::size_t width) HWY_ATTR {
    const hn::Rebind<std::int16_t, decltype(d)> narrow;
    const auto peak = hn::LoadU(d, peaks + layer);
    const auto offset = hn::Sub(hn::Set(d, kNarrowLimit), peak);
    const auto real = hn::FirstN(d, layer < shape.layers() ? shape.layers() - layer : 0);
    for (std::size_t p = 0; p < ranks; ++p) {
      const std::size_t lane = at + p * width;
      const auto value = hn::Add(hn::LoadU(d, loads + lane), offset);
      hn::StoreU(hn::DemoteTo(narrow, hn::IfThenElseZero(real, value)), narrow, relative + lane);
    }
  });
}

std::int64_t stream_operands_lanes(const LaneShape& shape, const std::int16_t* i, const std::int16_t* j,
                                   const std::int16_t* a, const std::int16_t* b) {
  const hn::CappedTag<std::int16_t, LaneShape::kNarrow> narrow;
  const hn::ScalableTag<std::int16_t> full;
  auto seen = hn::Zero(full);
  std::size_t at = 0;
  for (; at + hn::Lanes(full) <= shape.lanes(); at += hn::Lanes(full)) {
    seen = hn::Xor(seen, hn::Xor(hn::Xor(hn::LoadU(full, i + at), hn::LoadU(full, j + at)),
                                 hn::Xor(hn::LoadU(full, a + at), hn::LoadU(full, b + at))));
  }
  auto rest = hn::Zero(narrow);
  for (; at < shape.lanes(); at += hn::Lanes(narrow)) {
    rest = hn::Xor(rest, hn::Xor(hn::Xor(hn::LoadU(narrow, i + at), hn::LoadU(narrow, j + at)),
                                 hn::Xor(hn::LoadU(narrow, a + at), hn::LoadU(narrow, b + at))));
  }
  return std::int64_t{hn::GetLane(seen)} ^ hn::GetLane(rest);
}

}  // namespace HWY_NAMESPACE
}  // namespace routepack::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace routepack::kernels {

HWY_EXPORT(exchange_sums_16_lanes);
HWY_EXPORT(exchange_sums_32_lanes);
HWY_EXPORT(exchange_peaks_16_lanes);
HWY_EXPORT(exchange_peaks_32_lanes);
HWY_EXPORT(apply_16_lanes);
HWY_EXPORT(apply_32_lanes);
HWY_EXPORT(relative_loads_lanes);
HWY_EXPORT(stream_operands_lanes);

PeakSums exchange_sums(const LaneShape& shape, const std::int16_t* i, const std::int16_t* j, const std::int16_t* a,
                       const std::int16_t* b) {
  return HWY_DYNAMIC_DISPATCH(exchange_sums_16_lanes)(shape, i, j, a, b);
}
PeakSums exchange_sums(const LaneShape& shape, const std::int32_t* i, const std::int32_t* j, const std::int32_t* a,
                       const std::int32_t* b) {
  return HWY_DYNAMIC_DISPATCH(exchange_sums_32_lanes)(shape, i, j, a, b);
}
void exchange_peaks(const LaneShape& shape, const std::int16_t* i, const std::int16_t* j, const std::int16_t* a,
                    const std::int16_t* b, std::int16_t* peaks_a, std::int16_t* peaks_b) {
  HWY_DYNAMIC_DISPATCH(exchange_peaks_16_lanes)(shape, i, j, a, b, peaks_a, peaks_b);
}
void exchange_peaks(const LaneShape& shape, const std::int32_t* i, const std::int32_t* j, const std::int32_t* a,
                    const std::int32_t* b, std::int32_t* peaks_a, std::int32_t* peaks_b) {
  HWY_DYNAMIC_DISPATCH(exchange_peaks_32_lanes)(shape, i, j, a, b, peaks_a, peaks_b);
}
void apply(const LaneShape& shape, const std::int16_t* minus, const std::int16_t* plus, std::int32_t* loads,
           std::int32_t* peaks) {
  HWY_DYNAMIC_DISPATCH(apply_16_lanes)(shape, minus, plus, loads, peaks);
}
void apply(const LaneShape& shape, const std::int32_t* minus, const std::int32_t* plus, std::int32_t* loads,
           std::int32_t* peaks) {
  HWY_DYNAMIC_DISPATCH(apply_32_lanes)(shape, minus, plus, loads, peaks);
}
void relative_loads(const LaneShape& shape, const std::int32_t* loads, const std::int32_t* peaks,
                    std::int16_t* relative) {
  HWY_DYNAMIC_DISPATCH(relative_loads_lanes)(shape, loads, peaks, relative);
}
std::int64_t stream_operands(const LaneShape& shape, const std::int16_t* i, const std::int16_t* j,
                             const std::int16_t* a, const std::int16_t* b) {
  return HWY_DYNAMIC_DISPATCH(stream_operands_lanes)(shape, i, j, a, b);
}

}  // namespace routepack::kernels
#endif  // HWY_ONCE
