// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <type_traits>

#include "window/replay/kernels.h"

namespace routepack::replay {
namespace {

template <class From>
From load(const std::byte* at) {
  From value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// kTopK = 0: known only at run time. Or-ing is enough to see an id that does not fit, negative ones included.
template <std::size_t kTopK, class From, class To>
bool narrow_rows(const RowBlock& block, To* out, std::size_t layer_stride) {
  const std::size_t top_k = kTopK == 0 ? block.top_k : kTopK;
  constexpr auto kSize = static_cast<std::ptrdiff_t>(sizeof(From));
  const bool dense = block.id_stride == kSize;
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < block.tokens.size(); ++i) {
    for (std::size_t l = 0; l < block.layer_offsets.size(); ++l) {
      const std::byte* row = block.tokens[i] + block.layer_offsets[l];
      To* to = out + l * layer_stride + i * top_k;
      if (dense && sizeof(From) == sizeof(To)) {
        std::memcpy(to, row, top_k * sizeof(To));
        continue;
      }
      for (std::size_t k = 0; k < top_k; ++k) {
        const From id = load<From>(row + static_cast<std::ptrdiff_t>(k) * (dense ? kSize : block.id_stride));
        seen |= static_cast<std::uint64_t>(id);
        to[k] = static_cast<To>(id);
      }
    }
  }
  return sizeof(From) == sizeof(To) || seen >> (8 * sizeof(To)) == 0;
}

}  // namespace

template <class From, class To>
bool narrow(const RowBlock& block, To* out, std::size_t layer_stride) {
  switch (block.top_k) {
    case 1:
      return narrow_rows<1, From>(block, out, layer_stride);
    case 2:
      return narrow_rows<2, From>(block, out, layer_stride);
    case 4:
      return narrow_rows<4, From>(block, out, layer_stride);
    case 6:
      return narrow_rows<6, From>(block, out, layer_stride);
    case 8:
      return narrow_rows<8, From>(block, out, layer_stride);
    default:
      return narrow_rows<0, From>(block, out, layer_stride);
  }
}

template bool narrow<std::uint8_t>(const RowBlock&, std::uint8_t*, std::size_t);
template bool narrow<std::int8_t>(const RowBlock&, std::uint8_t*, std::size_t);
template bool narrow<std::uint16_t>(const RowBlock&, std::uint8_t*, std::size_t);
template bool narrow<std::int16_t>(const RowBlock&, std::uint8_t*, std::size_t);
template bool narrow<std::int64_t>(const RowBlock&, std::uint8_t*, std::size_t);
template bool narrow<std::uint16_t>(const RowBlock&, std::uint16_t*, std::size_t);
template bool narrow<std::int16_t>(const RowBlock&, std::uint16_t*, std::size_t);
template bool narrow<std::int64_t>(const RowBlock&, std::uint16_t*, std::size_t);

namespace scalar {

template <class Narrow>
bool is_suspicious(const Narrow* ids, std::size_t rows, std::size_t top_k, std::uint32_t limit) {
  bool suspicious = false;
  for (std::size_t i = 0; i < rows; ++i) {
    const Narrow* row = ids + i * top_k;
    for (std::size_t a = 0; a < top_k; ++a) {
      suspicious |= row[a] >= limit;
      for (std::size_t b = a + 1; b < top_k; ++b) suspicious |= row[a] == row[b];
    }
  }
  return suspicious;
}
template bool is_suspicious(const std::uint8_t*, std::size_t, std::size_t, std::uint32_t);
template bool is_suspicious(const std::uint16_t*, std::size_t, std::size_t, std::uint32_t);

}  // namespace scalar

/// Eight bytes at a time: one load for eight (four) ids leaves the load ports to the table. An id of the same expert
/// comes top_k ids later at the earliest, which is about as long as a store takes to reach a load, so one table does.
template <class Narrow>
void count_ids(const Narrow* ids, std::size_t size, std::uint32_t* table) {
  constexpr std::size_t kIds = 8 / sizeof(Narrow);
  constexpr std::size_t kBits = 8 * sizeof(Narrow);
  std::size_t i = 0;
  for (; i + kIds <= size; i += kIds) {
    std::uint64_t word;
    std::memcpy(&word, ids + i, sizeof word);
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kIds; ++k) ++table[static_cast<Narrow>(word >> (kBits * k))];
  }
  for (; i < size; ++i) ++table[ids[i]];
}
template void count_ids(const std::uint8_t*, std::size_t, std::uint32_t*);
template void count_ids(const std::uint16_t*, std::size_t, std::uint32_t*);

std::uint64_t stream_bytes(const std::byte* bytes, std::size_t size) {
  std::uint64_t seen = 0;
  for (std::size_t at = 0; at + 8 <= size; at += 8) seen |= load<std::uint64_t>(bytes + at);
  return seen;
}

}  // namespace routepack::replay
