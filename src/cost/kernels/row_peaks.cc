// SPDX-License-Identifier: Apache-2.0
// Highway compiles this file once per instruction set and picks the best one at run time.
#include "cost/kernels/row_peaks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cost/kernels/row_peaks.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace routepack::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Calls body(d, i) for every vector of n lanes, n a multiple of kRowLanes: wide ones first.
template <class Body>
HWY_INLINE void each_vector(std::size_t n, Body body) {
  const hn::ScalableTag<std::int32_t> wide;
  std::size_t i = 0;
  for (; i + hn::Lanes(wide) <= n; i += hn::Lanes(wide)) body(wide, i);
  const hn::CappedTag<std::int32_t, kRowLanes> narrow;
  for (; i < n; i += hn::Lanes(narrow)) body(narrow, i);
}

void exchanged_peaks_lanes(const std::int32_t* HWY_RESTRICT rest, const std::int32_t* HWY_RESTRICT x,
                           const std::int32_t* HWY_RESTRICT y, const std::int32_t* HWY_RESTRICT experts,
                           const std::int32_t* HWY_RESTRICT which, std::size_t count, std::size_t n,
                           std::int32_t* HWY_RESTRICT sums) {
  for (std::size_t k = 0; k < count; ++k) {
    const std::int32_t* expert = experts + static_cast<std::size_t>(which[k]) * n;
    std::int32_t sum = 0;
    each_vector(n, [&](auto d, std::size_t i) HWY_ATTR {
      const auto load = hn::LoadU(d, expert + i);
      const auto pair = hn::Max(hn::Add(hn::LoadU(d, x + i), load), hn::Sub(hn::LoadU(d, y + i), load));
      sum += hn::GetLane(hn::SumOfLanes(d, hn::Max(pair, hn::LoadU(d, rest + i))));
    });
    sums[k] = sum;
  }
}

std::int32_t bounded_peaks_lanes(const std::int32_t* HWY_RESTRICT floor, const std::int32_t* HWY_RESTRICT x,
                                 const std::int32_t* HWY_RESTRICT y, const std::int32_t* HWY_RESTRICT least,
                                 const std::int32_t* HWY_RESTRICT most, std::size_t n) {
  std::int32_t sum = 0;
  each_vector(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto pair = hn::Max(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, least + i)),
                              hn::Sub(hn::LoadU(d, y + i), hn::LoadU(d, most + i)));
    sum += hn::GetLane(hn::SumOfLanes(d, hn::Max(pair, hn::LoadU(d, floor + i))));
  });
  return sum;
}

std::int32_t meet_lanes(const std::int32_t* HWY_RESTRICT rival, const std::int32_t* HWY_RESTRICT rival2,
                        const std::int32_t* HWY_RESTRICT rival_rank, std::int32_t q,
                        const std::int32_t* HWY_RESTRICT on_p, const std::int32_t* HWY_RESTRICT on_q, std::size_t n,
                        std::int32_t* HWY_RESTRICT rest, std::int32_t* HWY_RESTRICT floor) {
  std::int32_t sum = 0;
  each_vector(n, [&](auto d, std::size_t i) HWY_ATTR {
    const auto is_rival = hn::Eq(hn::LoadU(d, rival_rank + i), hn::Set(d, q));
    const auto others = hn::IfThenElse(is_rival, hn::LoadU(d, rival2 + i), hn::LoadU(d, rival + i));
    hn::StoreU(others, d, rest + i);
    const auto both = hn::Add(hn::Add(hn::LoadU(d, on_p + i), hn::LoadU(d, on_q + i)), hn::Set(d, 1));
    const auto most = hn::Max(others, hn::ShiftRight<1>(both));
    hn::StoreU(most, d, floor + i);
    sum += hn::GetLane(hn::SumOfLanes(d, most));
  });
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace routepack::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace routepack::kernels {

HWY_EXPORT(exchanged_peaks_lanes);
HWY_EXPORT(bounded_peaks_lanes);
HWY_EXPORT(meet_lanes);

void exchanged_peaks(const std::int32_t* rest, const std::int32_t* x, const std::int32_t* y,
                     const std::int32_t* experts, const std::int32_t* which, std::size_t count, std::size_t n,
                     std::int32_t* sums) {
  HWY_DYNAMIC_DISPATCH(exchanged_peaks_lanes)(rest, x, y, experts, which, count, n, sums);
}
std::int32_t bounded_peaks(const std::int32_t* floor, const std::int32_t* x, const std::int32_t* y,
                           const std::int32_t* least, const std::int32_t* most, std::size_t n) {
  return HWY_DYNAMIC_DISPATCH(bounded_peaks_lanes)(floor, x, y, least, most, n);
}
std::int32_t meet(const std::int32_t* rival, const std::int32_t* rival2, const std::int32_t* rival_rank, std::int32_t q,
                  const std::int32_t* on_p, const std::int32_t* on_q, std::size_t n, std::int32_t* rest,
                  std::int32_t* floor) {
  return HWY_DYNAMIC_DISPATCH(meet_lanes)(rival, rival2, rival_rank, q, on_p, on_q, n, rest, floor);
}

}  // namespace routepack::kernels
#endif  // HWY_ONCE
