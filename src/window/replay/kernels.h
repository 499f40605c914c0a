// SPDX-License-Identifier: Apache-2.0
// The three loops that a recorded id passes on every processor: narrow, check, count. bit_rows.h and token_rows.h take
// their place where they can.
//
// Rows of a block of tokens are first narrowed and sorted by layer into a buffer of a few kilobytes per layer. A
// layer's part of the buffer is then looked at with vectors: the largest id, and whether a row names an expert twice.
// Ids of −1, of nothing but zeros and beyond the experts all show there, so a block that passes is counted without
// another branch, into a table that stays in the first-level cache. What does not pass is looked at row by row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace routepack::replay {

/// Rows of a block: `tokens[i] + layer_offsets[l]` is the row of token i at layer l, top_k ids `id_stride` bytes apart.
struct RowBlock {
  std::span<const std::byte* const> tokens;
  std::span<const std::ptrdiff_t> layer_offsets;
  std::size_t top_k = 0;
  std::ptrdiff_t id_stride = 0;
};

/// Writes row i of layer l to out + l · layer_stride + i · top_k. False when an id does not fit a To; then `out` means
/// nothing. A From as wide as To is copied as it is.
template <class From, class To>
bool narrow(const RowBlock& block, To* out, std::size_t layer_stride);

/// True when an id is `limit` or more, or a row of `top_k` ids names one twice. `ids` is [rows, top_k].
template <class Narrow>
bool is_suspicious(const Narrow* ids, std::size_t rows, std::size_t top_k, std::uint32_t limit);

/// ++table[id] for each of `size` ids.
template <class Narrow>
void count_ids(const Narrow* ids, std::size_t size, std::uint32_t* table);

/// Whether the functions above run with 512-bit vectors of x86: tests take instruction sets away.
bool has_wide_vectors();

/// Reads the bytes once and does next to nothing with them (their or): what counting is measured against.
std::uint64_t stream_bytes(const std::byte* bytes, std::size_t size);

namespace scalar {
/// The definition of the vector form above.
template <class Narrow>
bool is_suspicious(const Narrow* ids, std::size_t rows, std::size_t top_k, std::uint32_t limit);
}  // namespace scalar

}  // namespace routepack::replay
