// SPDX-License-Identifier: Apache-2.0
// Counting without increments, on x86 processors with 512-bit vectors.
//
// A row of distinct ids is a set of experts, one bit each. Eight rows are made at once into one word of 64 bits per row
// and 64 experts; a row is in order when as many bits are set as it has ids, which an id beyond the experts and an id
// named twice both prevent. Words of sixteen groups are then summed bit by bit with carry-save adders, and only the
// sums are added to the counts. An increment costs a store, and a core commits one per cycle; this costs about a
// quarter of a cycle per id and 64 experts, so it pays up to kMaxBitExperts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace routepack::replay {

inline constexpr std::uint32_t kMaxBitExperts = 256;

/// Whether this processor has what the functions below need: AVX-512 with VBMI, BITALG and VPOPCNTDQ, and GFNI.
bool can_count_bits();

/// Whether rows of `top_k` ids in bytes can be counted so.
inline bool has_bit_rows(std::size_t top_k, std::uint32_t limit) {
  return (top_k == 4 || top_k == 8) && limit <= kMaxBitExperts;
}

/// Adds the ids of leading rows of `ids` [rows, top_k] to `table` [limit] and says of how many. It stops before the
/// first 128 rows (counted from where it began) with an id that is `limit` or more or a row that names an id twice, and
/// before the last rows % 8 rows.
/// @pre can_count_bits(), has_bit_rows(top_k, limit)
std::size_t count_bits(const std::uint8_t* ids, std::size_t rows, std::size_t top_k, std::uint32_t limit,
                       std::uint32_t* table);

/// Memory that will be read soon: each step of eight rows asks for the next few cache lines of it, so that it comes
/// while others are counted.
struct Ahead {
  static constexpr std::ptrdiff_t kLine = 64;
  const std::byte* next = nullptr;
  const std::byte* end = nullptr;
  std::size_t lines = 0;  ///< per step

  void fetch(std::size_t count) {
    for (; count > 0 && end - next >= kLine; --count, next += kLine) __builtin_prefetch(next, 0, 2);
  }
};

/// The same for rows of eight int32 at tokens[i] + offset, 4 bytes apart, without narrowing them first.
std::size_t count_bits(std::span<const std::byte* const> tokens, std::ptrdiff_t offset, std::uint32_t limit,
                       std::uint32_t* table, Ahead& ahead);

}  // namespace routepack::replay
