// SPDX-License-Identifier: Apache-2.0
// Highway compiles this file once per instruction set and picks the best one at run time.
#include "window/replay/token_rows.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "window/replay/token_rows.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace routepack::replay {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kTopK = 8;
constexpr std::size_t kRowBytes = kTopK * sizeof(std::int32_t);
constexpr std::size_t kStepRows = 4;         // looked at, then counted
constexpr std::ptrdiff_t kAheadBytes = 600;  // what is asked for meanwhile: farther away costs a walk of page tables

/// Adds `kStep` (1, or 255 = −1) to the counters of rows whose ids are all in order.
template <std::uint8_t kStep>
HWY_INLINE void add_rows(const std::byte* rows, std::size_t layers, std::size_t experts, std::uint8_t* counters) {
  for (; layers > 0; --layers, rows += kRowBytes, counters += experts) {
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kTopK; k += 2) {
      std::uint64_t two;
      std::memcpy(&two, rows + k * sizeof(std::int32_t), sizeof two);
      std::uint8_t& low = counters[two & 0xffffffff];
      low = static_cast<std::uint8_t>(low + kStep);
      std::uint8_t& high = counters[two >> 32];
      high = static_cast<std::uint8_t>(high + kStep);
    }
  }
}

#if HWY_TARGET != HWY_SCALAR

#if HWY_HAVE_SCALABLE
using Ids = hn::CappedTag<std::int32_t, 4>;
#else
using Ids = hn::CappedTag<std::int32_t, 16>;
#endif
using Narrow = hn::RepartitionToNarrow<Ids>;
using Bits = hn::RebindToUnsigned<Narrow>;

/// 0 somewhere when one of the rows in `a` and `b`, side by side in memory, names an id twice below 2^15.
HWY_INLINE hn::Vec<Bits> differences(hn::Vec<Ids> a, hn::Vec<Ids> b) {
  const Bits d;
  const auto v = hn::BitCast(d, hn::ReorderDemote2To(Narrow(), a, b));
  const auto to = [&](hn::Vec<Bits> other) HWY_ATTR { return hn::Xor(v, other); };
  if constexpr (hn::MaxLanes(Ids()) == 4) {  // one row, in whatever order: half of the rotations compare every pair
    const auto one = hn::Min(to(hn::CombineShiftRightBytes<2>(d, v, v)), to(hn::CombineShiftRightBytes<4>(d, v, v)));
    return hn::Min(one,
                   hn::Min(to(hn::CombineShiftRightBytes<6>(d, v, v)), to(hn::CombineShiftRightBytes<8>(d, v, v))));
  } else {  // four ids of a row in a word of 64 bits, the other four 16 bytes further
    const hn::Repartition<std::uint64_t, Bits> words;
    const auto word = hn::BitCast(words, v);
    const auto other = hn::SwapAdjacentBlocks(word);
    const auto within = hn::Min(to(hn::BitCast(d, hn::RotateRight<16>(word))),  //
                                to(hn::BitCast(d, hn::RotateRight<32>(word))));
    const auto across =
        hn::Min(to(hn::BitCast(d, hn::RotateRight<16>(other))), to(hn::BitCast(d, hn::RotateRight<32>(other))));
    return hn::Min(hn::Min(within, across), to(hn::BitCast(d, other)));
  }
}

/// Whether four rows are in order.
HWY_INLINE bool in_order(const std::byte* rows, hn::Vec<hn::RebindToUnsigned<Ids>> experts) {
  const Ids d;
  const hn::RebindToUnsigned<Ids> unsigned_ids;
  const std::size_t lanes = hn::Lanes(d);
  const auto* ids = reinterpret_cast<const std::int32_t*>(rows);
  auto largest = hn::Zero(unsigned_ids);  // negative ids are large
  auto least = hn::Set(Bits(), 0xffff);
  for (std::size_t i = 0; i < kStepRows * kTopK; i += 2 * lanes) {
    const auto a = hn::LoadU(d, ids + i);
    const auto b = hn::LoadU(d, ids + i + lanes);
    largest = hn::Max(largest, hn::Max(hn::BitCast(unsigned_ids, a), hn::BitCast(unsigned_ids, b)));
    least = hn::Min(least, differences(a, b));
  }
  return hn::AllTrue(unsigned_ids, hn::Lt(largest, experts)) && hn::AllFalse(Bits(), hn::Eq(least, hn::Zero(Bits())));
}

/// Counts one token; false, and nothing counted, when it is not in order. `later`: rows that will be read soon.
HWY_INLINE bool count_token(const std::byte* rows, std::size_t layers, std::uint32_t experts, std::uint8_t* counters,
                            const std::byte* later) {
  const auto limit = hn::Set(hn::RebindToUnsigned<Ids>(), experts);
  const std::byte* at = rows;
  std::uint8_t* to = counters;
  std::size_t left = layers;
  for (; left >= kStepRows; left -= kStepRows) {
    for (std::size_t line = 0; line < kStepRows * kRowBytes; line += 64) {
      __builtin_prefetch(later + (at - rows) + line, 0, 3);
    }
    if (HWY_UNLIKELY(!in_order(at, limit))) break;
    add_rows<1>(at, kStepRows, experts, to);
    at += kStepRows * kRowBytes;
    to += kStepRows * experts;
  }
  if (left == 0) return true;
  if (left < kStepRows) {
    std::array<std::int32_t, kStepRows * kTopK> last;  // with rows in order in place of those that are not there
    for (std::size_t i = 0; i < last.size(); ++i) last[i] = static_cast<std::int32_t>(i % kTopK);
    std::memcpy(last.data(), at, left * kRowBytes);
    if (in_order(reinterpret_cast<const std::byte*>(last.data()), limit)) {
      add_rows<1>(at, left, experts, to);
      return true;
    }
  }
  add_rows<0xff>(rows, layers - left, experts, counters);
  return false;
}

std::size_t count_tokens_lanes(const TokenRows& rows, std::uint32_t experts, std::uint8_t* counters) {
  const std::ptrdiff_t ahead = rows.stride > 0 ? (kAheadBytes / rows.stride + 1) * rows.stride : 0;
  for (std::size_t i = 0; i < rows.tokens.size(); ++i) {
    const std::byte* token = rows.tokens[i] + rows.offset;
    const bool goes_on = ahead > 0 && rows.end - rows.tokens[i] > ahead;
    if (!count_token(token, rows.layers, experts, counters, goes_on ? token + ahead : token)) return i;
  }
  return rows.tokens.size();
}

#else

std::size_t count_tokens_lanes(const TokenRows& rows, std::uint32_t experts, std::uint8_t* counters) {
  return scalar::count_tokens(rows, experts, counters);
}

#endif  // HWY_TARGET != HWY_SCALAR

std::uint8_t largest_counter_lanes(const std::uint8_t* counters, std::size_t size) {
  const hn::CappedTag<std::uint8_t, 64> d;
  const std::size_t lanes = hn::Lanes(d);
  auto largest = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) largest = hn::Max(largest, hn::LoadU(d, counters + i));
  std::array<std::uint8_t, 64> last{};
  hn::StoreU(largest, d, last.data());
  return std::max(*std::max_element(last.begin(), last.end()),
                  i == size ? std::uint8_t{0} : *std::max_element(counters + i, counters + size));
}

void move_counters_lanes(std::uint8_t* counters, std::size_t size, std::uint32_t* table) {
  const hn::CappedTag<std::uint32_t, 16> d;
  const hn::Rebind<std::uint8_t, decltype(d)> bytes;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    const auto more = hn::PromoteTo(d, hn::LoadU(bytes, counters + i));
    hn::StoreU(hn::Add(hn::LoadU(d, table + i), more), d, table + i);
  }
  for (; i < size; ++i) table[i] += counters[i];
  std::memset(counters, 0, size);
}

}  // namespace HWY_NAMESPACE
}  // namespace routepack::replay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace routepack::replay {
HWY_EXPORT(count_tokens_lanes);
HWY_EXPORT(largest_counter_lanes);
HWY_EXPORT(move_counters_lanes);

std::size_t count_tokens(const TokenRows& rows, std::uint32_t experts, std::uint8_t* counters) {
  return HWY_DYNAMIC_DISPATCH(count_tokens_lanes)(rows, experts, counters);
}

std::uint8_t largest_counter(std::span<const std::uint8_t> counters) {
  return HWY_DYNAMIC_DISPATCH(largest_counter_lanes)(counters.data(), counters.size());
}

void move_counters(std::span<std::uint8_t> counters, std::uint32_t* table) {
  HWY_DYNAMIC_DISPATCH(move_counters_lanes)(counters.data(), counters.size(), table);
}

namespace scalar {

std::size_t count_tokens(const TokenRows& rows, std::uint32_t experts, std::uint8_t* counters) {
  constexpr std::size_t kIds = 8;
  for (std::size_t i = 0; i < rows.tokens.size(); ++i) {
    std::vector<std::uint32_t> ids(rows.layers * kIds);
    std::memcpy(ids.data(), rows.tokens[i] + rows.offset, ids.size() * sizeof(std::uint32_t));
    for (std::size_t at = 0; at < ids.size(); ++at) {
      const auto row = ids.begin() + static_cast<std::ptrdiff_t>(at / kIds * kIds);
      if (ids[at] >= experts || std::count(row, row + kIds, ids[at]) > 1) return i;
    }
    for (std::size_t at = 0; at < ids.size(); ++at) ++counters[at / kIds * experts + ids[at]];
  }
  return rows.tokens.size();
}

}  // namespace scalar

TokenCounters::TokenCounters(std::size_t layers, std::size_t experts, std::uint32_t* table)
    : layers_(layers), experts_(experts), table_(table), counters_(layers * experts) {}

std::size_t TokenCounters::count(const TokenRows& rows) {
  std::uint8_t* counters = counters_.data() + (layers_ - rows.layers) * experts_;
  std::size_t done = 0;
  while (done < rows.tokens.size()) {
    if (room_ == 0) make_room();
    TokenRows next = rows;
    next.tokens = rows.tokens.subspan(done, std::min(rows.tokens.size() - done, room_));
    const std::size_t counted = count_tokens(next, static_cast<std::uint32_t>(experts_), counters);
    room_ -= counted;
    done += counted;
    if (counted < next.tokens.size()) break;
  }
  return done;
}

void TokenCounters::make_room() {
  const std::size_t largest = largest_counter(counters_);
  room_ = kMostTokens - largest;
  if (room_ < kMostTokens / 2) finish();
}

void TokenCounters::finish() {
  move_counters(counters_, table_);
  room_ = kMostTokens;
}

}  // namespace routepack::replay
#endif
