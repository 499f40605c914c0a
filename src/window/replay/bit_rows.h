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

}  // namespace routepack::replay
