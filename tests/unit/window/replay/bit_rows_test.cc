// SPDX-License-Identifier: Apache-2.0
// Rows as sets of bits, against plain loops. Skipped where the processor has no such vectors.
#include "window/replay/bit_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace routepack::replay {
namespace {

/// Rows of distinct ids; every expert below `experts` may come.
std::vector<std::uint8_t> byte_rows(std::mt19937& random, std::size_t rows, std::size_t top_k, std::uint32_t experts) {
  std::vector<std::uint8_t> all(experts);
  for (std::uint32_t e = 0; e < experts; ++e) all[e] = static_cast<std::uint8_t>(e);
  std::vector<std::uint8_t> ids;
  for (std::size_t i = 0; i < rows; ++i) {
    std::shuffle(all.begin(), all.end(), random);
    ids.insert(ids.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(top_k));
  }
  return ids;
}

template <class T>
std::vector<std::uint32_t> histogram(std::span<const T> ids, std::uint32_t experts) {
  std::vector<std::uint32_t> counts(experts);
  for (const T id : ids) ++counts[static_cast<std::size_t>(id)];
  return counts;
}

TEST(BitRows, count_every_row_but_the_last_rows_modulo_8) {
  if (!can_count_bits()) GTEST_SKIP() << "no 512-bit vectors with VBMI, BITALG, VPOPCNTDQ and GFNI";
  std::mt19937 random(1);
  for (const std::size_t top_k : {4U, 8U}) {
    for (const std::uint32_t experts : {8U, 60U, 64U, 65U, 128U, 200U, 256U}) {
      for (const std::size_t rows : {0U, 7U, 8U, 50U, 128U, 300U}) {
        const auto ids = byte_rows(random, rows, top_k, experts);
        const std::size_t wanted = rows / 8 * 8;
        auto counts = std::vector<std::uint32_t>(experts, 5);
        ASSERT_EQ(count_bits(ids.data(), rows, top_k, experts, counts.data()), wanted);
        for (auto& count : counts) count -= 5;
        const auto leading = std::span<const std::uint8_t>(ids).first(wanted * top_k);
        ASSERT_EQ(counts, histogram(leading, experts)) << experts << " experts, " << rows << " rows";
      }
    }
  }
}

TEST(BitRows, count_a_bit_that_every_row_has) {
  if (!can_count_bits()) GTEST_SKIP() << "no 512-bit vectors with VBMI, BITALG, VPOPCNTDQ and GFNI";
  std::vector<std::uint8_t> ids;
  for (std::size_t i = 0; i < 128; ++i) ids.insert(ids.end(), {63, 0, 7, 1});
  std::vector<std::uint32_t> counts(64);
  ASSERT_EQ(count_bits(ids.data(), 128, 4, 64, counts.data()), 128U);
  EXPECT_EQ(counts[63], 128U);
  EXPECT_EQ(counts[2], 0U);
}

TEST(BitRows, stop_before_rows_that_are_not_in_order) {
  if (!can_count_bits()) GTEST_SKIP() << "no 512-bit vectors with VBMI, BITALG, VPOPCNTDQ and GFNI";
  std::mt19937 random(2);
  for (const std::uint32_t experts : {40U, 64U, 100U, 250U}) {
    const auto clean = byte_rows(random, 256, 8, experts);
    const auto first = histogram(std::span<const std::uint8_t>(clean).first(128 * 8), experts);
    for (const std::size_t row : {128U, 131U, 255U}) {
      for (std::size_t k = 0; k < 8; ++k) {
        for (const bool twice : {false, true}) {
          auto ids = clean;
          ids[row * 8 + k] = twice ? ids[row * 8 + (k + 3) % 8] : static_cast<std::uint8_t>(experts);
          std::vector<std::uint32_t> counts(experts);
          ASSERT_EQ(count_bits(ids.data(), 256, 8, experts, counts.data()), 128U) << row << ", " << k;
          ASSERT_EQ(counts, first);
        }
      }
    }
  }
}

}  // namespace
}  // namespace routepack::replay
