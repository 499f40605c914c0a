// SPDX-License-Identifier: Apache-2.0
// Highway compiles this file once per instruction set and picks the best one at run time.
#include "window/replay/kernels.h"

#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "window/replay/kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace routepack::replay {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
/// «An id is limit or more, or a row names one twice» of whole vectors of rows. `twice` compares each row with itself
/// rotated; half of the rotations compare every pair.
template <class D, class Twice>
HWY_INLINE bool rows_suspicious(D d, const hn::TFromD<D>* ids, std::size_t size, std::uint32_t limit, Twice twice) {
  using T = hn::TFromD<D>;
  const std::size_t step = hn::Lanes(d);
  const bool limited = limit <= hwy::HighestValue<T>();
  const auto least = hn::Set(d, static_cast<T>(limited ? limit : 0));
  auto found = hn::FirstN(d, 0);
  const auto look = [&](const T* at) HWY_ATTR {
    const auto v = hn::LoadU(d, at);
    found = hn::Or(found, twice(v));
    if (limited) found = hn::Or(found, hn::Eq(hn::Max(v, least), v));
  };
  std::size_t i = 0;
  for (; i + step <= size; i += step) look(ids + i);
  if (i < size) look(ids + (size - step));  // whole rows again: a vector holds a whole number of them
  return !hn::AllFalse(d, found);
}

/// Rows of kIds ids of kBits bits, as wide as a Row.
template <int kBits, int kIds, class Row, class D>
HWY_INLINE bool rotate_lanes(D d, const hn::TFromD<D>* ids, std::size_t size, std::uint32_t limit) {
  const hn::Repartition<Row, D> rows;
  return rows_suspicious(d, ids, size, limit, [&](auto v) HWY_ATTR {
    const auto row = hn::BitCast(rows, v);
    auto found = hn::Eq(v, hn::BitCast(d, hn::RotateRight<kBits>(row)));
    if constexpr (kIds >= 4) found = hn::Or(found, hn::Eq(v, hn::BitCast(d, hn::RotateRight<2 * kBits>(row))));
    if constexpr (kIds >= 8) {
      found = hn::Or(found, hn::Eq(v, hn::BitCast(d, hn::RotateRight<3 * kBits>(row))));
      found = hn::Or(found, hn::Eq(v, hn::BitCast(d, hn::RotateRight<4 * kBits>(row))));
    }
    return found;
  });
}

/// Rows of eight 16-bit ids.
template <class D>
HWY_INLINE bool rotate_blocks(D d, const std::uint16_t* ids, std::size_t size, std::uint32_t limit) {
  return rows_suspicious(d, ids, size, limit, [&](auto v) HWY_ATTR {
    const auto a =
        hn::Or(hn::Eq(v, hn::CombineShiftRightBytes<2>(d, v, v)), hn::Eq(v, hn::CombineShiftRightBytes<4>(d, v, v)));
    const auto b =
        hn::Or(hn::Eq(v, hn::CombineShiftRightBytes<6>(d, v, v)), hn::Eq(v, hn::CombineShiftRightBytes<8>(d, v, v)));
    return hn::Or(a, b);
  });
}

#endif  // HWY_TARGET != HWY_SCALAR

bool suspicious_8_lanes(const std::uint8_t* ids, std::size_t rows, std::size_t top_k, std::uint32_t limit) {
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<std::uint8_t> d;
  if (rows * top_k >= hn::Lanes(d)) {
    if (top_k == 8) return rotate_lanes<8, 8, std::uint64_t>(d, ids, rows * top_k, limit);
    if (top_k == 4) return rotate_lanes<8, 4, std::uint32_t>(d, ids, rows * top_k, limit);
  }
#endif
  return scalar::is_suspicious(ids, rows, top_k, limit);
}

bool suspicious_16_lanes(const std::uint16_t* ids, std::size_t rows, std::size_t top_k, std::uint32_t limit) {
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<std::uint16_t> d;
  if (rows * top_k >= hn::Lanes(d)) {
    if (top_k == 8) return rotate_blocks(d, ids, rows * top_k, limit);
    if (top_k == 4) return rotate_lanes<16, 4, std::uint64_t>(d, ids, rows * top_k, limit);
    if (top_k == 2) return rotate_lanes<16, 2, std::uint32_t>(d, ids, rows * top_k, limit);
  }
#endif
  return scalar::is_suspicious(ids, rows, top_k, limit);
}

/// 32-bit ids, top_k a multiple of the lanes of D.
template <class D, class To>
HWY_INLINE bool narrow_by(D d, const RowBlock& block, To* HWY_RESTRICT out, std::size_t layer_stride) {
  const hn::Rebind<To, D> narrow;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t top_k = block.top_k;
  auto seen = hn::Zero(d);
  for (std::size_t i = 0; i < block.tokens.size(); ++i) {
    const std::byte* token = block.tokens[i];
    for (std::size_t l = 0; l < block.layer_offsets.size(); ++l) {
      const auto* row = reinterpret_cast<const std::int32_t*>(token + block.layer_offsets[l]);
      To* to = out + l * layer_stride + i * top_k;
      for (std::size_t k = 0; k < top_k; k += lanes) {
        const auto v = hn::LoadU(d, row + k);
        seen = hn::Or(seen, v);
        hn::StoreU(hn::DemoteTo(narrow, v), narrow, to + k);
      }
    }
  }
  const auto high = hn::ShiftRight<8 * sizeof(To)>(seen);  // arithmetic: a negative id stays visible
  return hn::AllTrue(d, hn::Eq(high, hn::Zero(d)));
}

template <class To>
HWY_INLINE bool narrow_any(const RowBlock& block, To* out, std::size_t layer_stride) {
  const hn::CappedTag<std::int32_t, 8> eight;
  if (block.id_stride == 4 && block.top_k % hn::Lanes(eight) == 0) return narrow_by(eight, block, out, layer_stride);
  const hn::CappedTag<std::int32_t, 4> four;
  if (block.id_stride == 4 && block.top_k % hn::Lanes(four) == 0) return narrow_by(four, block, out, layer_stride);
  const hn::CappedTag<std::int32_t, 1> one;
  std::uint32_t seen = 0;
  for (std::size_t i = 0; i < block.tokens.size(); ++i) {
    for (std::size_t l = 0; l < block.layer_offsets.size(); ++l) {
      const std::byte* row = block.tokens[i] + block.layer_offsets[l];
      for (std::size_t k = 0; k < block.top_k; ++k) {
        const auto* at = row + static_cast<std::ptrdiff_t>(k) * block.id_stride;
        const auto id =
            static_cast<std::uint32_t>(hn::GetLane(hn::LoadU(one, reinterpret_cast<const std::int32_t*>(at))));
        seen |= id;
        out[l * layer_stride + i * block.top_k + k] = static_cast<To>(id);
      }
    }
  }
  return seen >> (8 * sizeof(To)) == 0;
}

bool narrow_8_lanes(const RowBlock& block, std::uint8_t* out, std::size_t layer_stride) {
  return narrow_any(block, out, layer_stride);
}
bool narrow_16_lanes(const RowBlock& block, std::uint16_t* out, std::size_t layer_stride) {
  return narrow_any(block, out, layer_stride);
}

bool wide_vectors() {
  return HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3;  // better ones are smaller
}

}  // namespace HWY_NAMESPACE
}  // namespace routepack::replay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace routepack::replay {
HWY_EXPORT(suspicious_8_lanes);
HWY_EXPORT(suspicious_16_lanes);
HWY_EXPORT(narrow_8_lanes);
HWY_EXPORT(narrow_16_lanes);
HWY_EXPORT(wide_vectors);

bool has_wide_vectors() {
  return HWY_DYNAMIC_DISPATCH(wide_vectors)();
}

template <>
bool is_suspicious(const std::uint8_t* ids, std::size_t rows, std::size_t top_k, std::uint32_t limit) {
  return HWY_DYNAMIC_DISPATCH(suspicious_8_lanes)(ids, rows, top_k, limit);
}
template <>
bool is_suspicious(const std::uint16_t* ids, std::size_t rows, std::size_t top_k, std::uint32_t limit) {
  return HWY_DYNAMIC_DISPATCH(suspicious_16_lanes)(ids, rows, top_k, limit);
}
template <>
bool narrow<std::int32_t>(const RowBlock& block, std::uint8_t* out, std::size_t layer_stride) {
  return HWY_DYNAMIC_DISPATCH(narrow_8_lanes)(block, out, layer_stride);
}
template <>
bool narrow<std::int32_t>(const RowBlock& block, std::uint16_t* out, std::size_t layer_stride) {
  return HWY_DYNAMIC_DISPATCH(narrow_16_lanes)(block, out, layer_stride);
}

}  // namespace routepack::replay
#endif
