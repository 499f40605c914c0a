// SPDX-License-Identifier: Apache-2.0
#include "window/replay/bit_rows.h"

#include "core/assert.h"
#include "window/replay/kernels.h"

#ifdef __x86_64__

#ifndef __clang__
// What GCC 12 says of its own header: undefined values that no lane takes, and vectors as template arguments.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wignored-attributes"
#endif

#include <immintrin.h>

#include <algorithm>
#include <array>

// Lambdas do not inherit the instruction set of the function around them, hence plain functions, all inlined.
#define ROUTEPACK_BITS \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bitalg,avx512vpopcntdq,gfni")))
#define ROUTEPACK_BITS_INLINE ROUTEPACK_BITS __attribute__((always_inline)) inline

namespace routepack::replay {
namespace {

using Vector = __m512i;
constexpr std::size_t kStepRows = 8;  // one per 64-bit lane
constexpr std::size_t kSteps = 16;    // summed at once
constexpr std::size_t kWordBits = 64;
constexpr std::size_t kWords = kMaxBitExperts / kWordBits;

/// The words of `steps` steps, [word, step].
using Words = std::array<std::array<Vector, kSteps>, kWords>;

ROUTEPACK_BITS_INLINE Vector broadcast(std::uint64_t value) {
  return _mm512_set1_epi64(static_cast<std::int64_t>(value));
}

/// Eight rows of kTopK bytes.
template <std::size_t kTopK>
ROUTEPACK_BITS_INLINE Vector load_rows(const std::uint8_t* ids) {
  static_assert(kTopK == 8 || kTopK == 4);
  if constexpr (kTopK == 8) return _mm512_loadu_si512(ids);
  return _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids)));
}

/// Id k of each row, one per lane.
template <std::size_t kTopK>
ROUTEPACK_BITS_INLINE Vector choice(Vector rows, std::size_t k) {
  const Vector first = _mm512_slli_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), kTopK == 8 ? 3 : 2);
  return _mm512_maskz_permutexvar_epi8(0x0101010101010101ULL, _mm512_add_epi64(first, broadcast(k)), rows);
}

/// 1 << (id − base), and 0 where that is no bit of a word.
ROUTEPACK_BITS_INLINE Vector bit_of(Vector id, Vector base) {
  return _mm512_sllv_epi64(broadcast(1), _mm512_sub_epi64(id, base));
}

ROUTEPACK_BITS_INLINE Vector or3(Vector a, Vector b, Vector c) {
  return _mm512_ternarylogic_epi64(a, b, c, 0xFE);
}

/// True when every row is in order; only then `out` means something.
template <std::size_t kTopK>
ROUTEPACK_BITS bool make_words(const std::uint8_t* ids, std::size_t steps, std::uint32_t limit, Words& out) {
  const std::size_t words = (limit + kWordBits - 1) / kWordBits;
  const Vector beyond = broadcast(limit % kWordBits == 0 ? 0 : ~std::uint64_t{0} << limit % kWordBits);
  Vector wrong = _mm512_setzero_si512();
  for (std::size_t step = 0; step < steps; ++step) {
    const Vector rows = load_rows<kTopK>(ids + step * kStepRows * kTopK);
    std::array<Vector, kTopK> id;
#pragma GCC unroll 8
    for (std::size_t k = 0; k < kTopK; ++k) id[k] = choice<kTopK>(rows, k);
    Vector named = _mm512_setzero_si512();
    Vector base = named;
    Vector word = named;
    for (std::size_t w = 0; w < words; ++w) {
      word = bit_of(id[0], base);
#pragma GCC unroll 4
      for (std::size_t k = 1; k + 1 < kTopK; k += 2) word = or3(word, bit_of(id[k], base), bit_of(id[k + 1], base));
      word = _mm512_or_si512(word, bit_of(id[kTopK - 1], base));
      _mm512_store_si512(&out[w][step], word);
      named = _mm512_add_epi64(named, _mm512_popcnt_epi64(word));
      base = _mm512_add_epi64(base, broadcast(kWordBits));
    }
    wrong = or3(wrong, _mm512_xor_si512(named, broadcast(kTopK)), _mm512_and_si512(word, beyond));
  }
  return _mm512_test_epi64_mask(wrong, wrong) == 0;
}

ROUTEPACK_BITS_INLINE Vector add3(Vector a, Vector b, Vector c, Vector& carry) {
  carry = _mm512_ternarylogic_epi64(a, b, c, 0xE8);
  return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}

ROUTEPACK_BITS_INLINE Vector add2(Vector a, Vector b, Vector& carry) {
  carry = _mm512_and_si512(a, b);
  return _mm512_xor_si512(a, b);
}

/// Byte i: in how many of the eight lanes bit i is set.
ROUTEPACK_BITS_INLINE Vector lanes_with_bit(Vector word) {
  alignas(64) static constexpr auto kTransposed = [] {
    std::array<std::uint8_t, 64> from{};
    for (std::size_t i = 0; i < 64; ++i) from[i] = static_cast<std::uint8_t>(i % 8 * 8 + i / 8);
    return from;
  }();
  // Bytes of the same eight experts side by side, then each such 8 × 8 bits transposed by a product with the identity.
  const Vector bytes = _mm512_permutexvar_epi8(_mm512_load_si512(kTransposed.data()), word);
  return _mm512_popcnt_epi8(_mm512_gf2p8affine_epi64_epi8(broadcast(0x8040201008040201U), bytes, 0));
}

/// Adds how often each bit is set to table[0, size), size ≤ 64.
ROUTEPACK_BITS void add_words(const std::array<Vector, kSteps>& words, std::uint32_t* table, std::size_t size) {
  std::array<Vector, 8> twos;
  std::array<Vector, 4> fours;
  std::array<Vector, 2> eights;
  Vector one = add3(words[0], words[1], words[2], twos[0]);
#pragma GCC unroll 8
  for (std::size_t i = 1; i < 7; ++i) one = add3(one, words[2 * i + 1], words[2 * i + 2], twos[i]);
  one = add2(one, words[15], twos[7]);
  Vector two = add3(twos[0], twos[1], twos[2], fours[0]);
  two = add3(two, twos[3], twos[4], fours[1]);
  two = add3(two, twos[5], twos[6], fours[2]);
  two = add2(two, twos[7], fours[3]);
  Vector four = add3(fours[0], fours[1], fours[2], eights[0]);
  four = add2(four, fours[3], eights[1]);
  Vector sixteen;
  const Vector eight = add2(eights[0], eights[1], sixteen);
  Vector sums = lanes_with_bit(sixteen);  // at most 128 in the end
  for (const Vector digit : {eight, four, two, one}) {
    sums = _mm512_add_epi8(_mm512_add_epi8(sums, sums), lanes_with_bit(digit));
  }
  alignas(64) std::array<std::uint8_t, 64> counts;
  _mm512_store_si512(counts.data(), sums);
  for (std::size_t i = 0; i < size; i += 16) {
    const auto lanes = static_cast<__mmask16>(size - i >= 16 ? 0xffffU : (1U << (size - i)) - 1U);
    const Vector more = _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(counts.data() + i)));
    _mm512_mask_storeu_epi32(table + i, lanes, _mm512_add_epi32(_mm512_maskz_loadu_epi32(lanes, table + i), more));
  }
}

template <std::size_t kTopK>
ROUTEPACK_BITS std::size_t count_steps(const std::uint8_t* ids, std::size_t rows, std::uint32_t limit,
                                       std::uint32_t* table) {
  alignas(64) Words words;
  std::size_t done = 0;
  while (done + kStepRows <= rows) {
    const std::size_t steps = std::min(kSteps, (rows - done) / kStepRows);
    if (!make_words<kTopK>(ids + done * kTopK, steps, limit, words)) break;
    for (std::size_t w = 0; w * kWordBits < limit; ++w) {
      for (std::size_t step = steps; step < kSteps; ++step) words[w][step] = _mm512_setzero_si512();
      add_words(words[w], table + w * kWordBits, std::min(kWordBits, limit - w * kWordBits));
    }
    done += steps * kStepRows;
  }
  return done;
}

}  // namespace

bool can_count_bits() {
  static const bool kCan = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bitalg") &&
                           __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("gfni");
  return kCan && has_wide_vectors();
}

std::size_t count_bits(const std::uint8_t* ids, std::size_t rows, std::size_t top_k, std::uint32_t limit,
                       std::uint32_t* table) {
  ROUTEPACK_ASSERT(has_bit_rows(top_k, limit), "rows of another shape");
  return top_k == 4 ? count_steps<4>(ids, rows, limit, table) : count_steps<8>(ids, rows, limit, table);
}

}  // namespace routepack::replay

#else

namespace routepack::replay {

bool can_count_bits() {
  return false;
}

std::size_t count_bits(const std::uint8_t*, std::size_t, std::size_t, std::uint32_t, std::uint32_t*) {
  ROUTEPACK_ASSERT(false, "this processor counts otherwise");
}

}  // namespace routepack::replay

#endif
