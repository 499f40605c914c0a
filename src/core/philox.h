// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: what a number is for decides its value, never who drew before.
#pragma once

#include <Random123/philox.h>

#include <array>
#include <cstdint>

namespace routepack {

/// Philox4x32-10 (Salmon et al. 2011): 128 random bits for one counter under one key. A pure function.
inline std::array<std::uint32_t, 4> philox(std::uint64_t key, const std::array<std::uint32_t, 4>& counter) {
  const r123::Philox4x32::ctr_type block =
      r123::Philox4x32()({{counter[0], counter[1], counter[2], counter[3]}},
                         {{static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}});
  return {block[0], block[1], block[2], block[3]};
}

/// Maps 32 random bits to 0 … bound − 1; the bias is below bound / 2^32.
inline std::uint32_t scaled(std::uint32_t bits, std::uint32_t bound) {
  return static_cast<std::uint32_t>((std::uint64_t{bits} * bound) >> 32);
}

}  // namespace routepack
