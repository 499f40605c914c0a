// SPDX-License-Identifier: Apache-2.0
// Increments that hide everything else, on x86 processors with 512-bit vectors: while the rows of one layer are read,
// looked at and narrowed, which occupies the vector units and the memory, the ids of the layer before are counted,
// which occupies the stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "window/replay/bit_rows.h"

namespace routepack::replay {

/// Whether this processor has what the function below needs: AVX-512 with BW and CD.
bool can_count_wide();

/// Ids that were found to be in order and wait to be counted.
template <class Narrow>
struct Pending {
  const Narrow* ids = nullptr;  ///< null: nothing waits
  std::size_t size = 0;
  std::uint32_t* table = nullptr;
};

/// Counts `pending`, narrows the rows of eight int32 at tokens[i] + offset to `out`, row after row, and says whether
/// each id is below `limit` and no row names one twice. When not, `out` means nothing.
/// @pre can_count_wide(); the number of tokens is a multiple of 8; pending.size is 0 or 8 · tokens
template <class Narrow>
bool narrow_in_order(std::span<const std::byte* const> tokens, std::ptrdiff_t offset, std::uint32_t limit, Narrow* out,
                     const Pending<Narrow>& pending, Ahead& ahead);

}  // namespace routepack::replay
