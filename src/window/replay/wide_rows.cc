// SPDX-License-Identifier: Apache-2.0
#include "window/replay/wide_rows.h"

#include <cstring>

#include "core/assert.h"

#ifdef __x86_64__

#ifndef __clang__
#pragma GCC diagnostic ignored "-Wuninitialized"  // what GCC 12 says of its own header
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <hwy/targets.h>
#include <immintrin.h>

#define ROUTEPACK_WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512cd")))
#define ROUTEPACK_WIDE_INLINE ROUTEPACK_WIDE __attribute__((always_inline)) inline

namespace routepack::replay {
namespace {

constexpr std::size_t kTopK = 8;
constexpr std::size_t kStepRows = 8;
constexpr std::size_t kStepIds = kStepRows * kTopK;

ROUTEPACK_WIDE_INLINE void store(__m512i ids, std::uint8_t* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(ids));
}
ROUTEPACK_WIDE_INLINE void store(__m512i ids, std::uint16_t* out) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(ids));
}

/// As count_ids does, one step.
template <class Narrow>
__attribute__((always_inline)) inline void count_step(const Narrow* ids, std::uint32_t* table) {
  constexpr std::size_t kIds = 8 / sizeof(Narrow);
  constexpr std::size_t kBits = 8 * sizeof(Narrow);
#pragma GCC unroll 2
  for (std::size_t i = 0; i < kStepIds; i += kIds) {
    std::uint64_t word;
    std::memcpy(&word, ids + i, sizeof word);
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kIds; ++k) ++table[static_cast<Narrow>(word >> (kBits * k))];
  }
}

template <class Narrow>
ROUTEPACK_WIDE bool narrow_steps(std::span<const std::byte* const> tokens, std::ptrdiff_t offset, std::uint32_t limit,
                                 Narrow* out, const Pending<Narrow>& pending, Ahead& ahead) {
  // Which earlier ids of two rows side by side equal an id; the second row does not care about the first.
  const __m512i same_row = _mm512_inserti64x4(_mm512_set1_epi32(0xff00), _mm256_set1_epi32(0xff), 0);
  __m512i twice = _mm512_setzero_si512();
  __m512i largest = twice;  // unsigned: negative ids are large
  for (std::size_t row = 0; row < tokens.size(); row += kStepRows) {
    ahead.fetch(ahead.lines);
#pragma GCC unroll 4
    for (std::size_t r = row; r < row + kStepRows; r += 2) {
      const auto* low = reinterpret_cast<const __m256i*>(tokens[r] + offset);
      const auto* high = reinterpret_cast<const __m256i*>(tokens[r + 1] + offset);
      const __m512i ids =
          _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(low)), _mm256_loadu_si256(high), 1);
      twice = _mm512_ternarylogic_epi32(twice, _mm512_conflict_epi32(ids), same_row, 0xF8);
      largest = _mm512_max_epu32(largest, ids);
      store(ids, out + r * kTopK);
    }
    if (pending.ids != nullptr) count_step(pending.ids + row * kTopK, pending.table);
  }
  const __mmask16 beyond = _mm512_cmpge_epu32_mask(largest, _mm512_set1_epi32(static_cast<std::int32_t>(limit)));
  return (beyond | _mm512_test_epi32_mask(twice, twice)) == 0;
}

}  // namespace

bool can_count_wide() {
  static const bool kCan = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
  return kCan && (hwy::SupportedTargets() & HWY_AVX3) != 0;  // tests take instruction sets away
}

template <class Narrow>
bool narrow_in_order(std::span<const std::byte* const> tokens, std::ptrdiff_t offset, std::uint32_t limit, Narrow* out,
                     const Pending<Narrow>& pending, Ahead& ahead) {
  ROUTEPACK_ASSERT(tokens.size() % kStepRows == 0 && (pending.ids == nullptr || pending.size == tokens.size() * kTopK),
                   "not a whole number of steps");
  return narrow_steps(tokens, offset, limit, out, pending, ahead);
}

}  // namespace routepack::replay

#else

namespace routepack::replay {

bool can_count_wide() {
  return false;
}

template <class Narrow>
bool narrow_in_order(std::span<const std::byte* const>, std::ptrdiff_t, std::uint32_t, Narrow*, const Pending<Narrow>&,
                     Ahead&) {
  ROUTEPACK_ASSERT(false, "this processor counts otherwise");
}

}  // namespace routepack::replay

#endif

namespace routepack::replay {
template bool narrow_in_order(std::span<const std::byte* const>, std::ptrdiff_t, std::uint32_t, std::uint8_t*,
                              const Pending<std::uint8_t>&, Ahead&);
template bool narrow_in_order(std::span<const std::byte* const>, std::ptrdiff_t, std::uint32_t, std::uint16_t*,
                              const Pending<std::uint16_t>&, Ahead&);
}  // namespace routepack::replay
