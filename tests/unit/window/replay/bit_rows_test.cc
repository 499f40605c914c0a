// SPDX-License-Identifier: Apache-2.0
// The forms for 512-bit vectors, against plain loops. Skipped where the processor has no such vectors.
#include "window/replay/bit_rows.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "routepack/replay.h"
#include "window/replay/wide_rows.h"

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

/// The ids as int32, each row at a place of its own, in reverse order.
struct Int32Rows {
  explicit Int32Rows(std::span<const std::uint8_t> ids) : values(ids.size() + 3) {
    const std::size_t rows = ids.size() / 8;
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t k = 0; k < 8; ++k) values[3 + (rows - 1 - i) * 8 + k] = ids[i * 8 + k];
    }
    for (std::size_t i = 0; i < rows; ++i) {
      tokens.push_back(reinterpret_cast<const std::byte*>(values.data() + (rows - 1 - i) * 8));
    }
  }
  std::int32_t& at(std::size_t row, std::size_t k) { return values[3 + (tokens.size() - 1 - row) * 8 + k]; }

  static constexpr std::ptrdiff_t kOffset = 12;  // three ids in front
  std::vector<std::int32_t> values;
  std::vector<const std::byte*> tokens;
};

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
        if (top_k != 8) continue;
        const Int32Rows wide(ids);
        Ahead nothing;
        std::ranges::fill(counts, 0U);
        ASSERT_EQ(count_bits(wide.tokens, Int32Rows::kOffset, experts, counts.data(), nothing), wanted);
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
        for (const std::int32_t wrong : {-1, 256, 1 << 16, 1 << 30, std::numeric_limits<std::int32_t>::min()}) {
          Int32Rows wide(clean);
          wide.at(row, k) = wrong;
          Ahead nothing;
          std::vector<std::uint32_t> counts(experts);
          ASSERT_EQ(count_bits(wide.tokens, Int32Rows::kOffset, experts, counts.data(), nothing), 128U) << wrong;
          ASSERT_EQ(counts, first);
        }
      }
    }
  }
}

template <class T>
class WideRows : public ::testing::Test {};
using Types = ::testing::Types<std::uint8_t, std::uint16_t>;
TYPED_TEST_SUITE(WideRows, Types);

TYPED_TEST(WideRows, narrow_one_layer_and_count_the_one_before) {
  if (!can_count_wide()) GTEST_SKIP() << "no 512-bit vectors";
  std::mt19937 random(3);
  const auto ids = byte_rows(random, 48, 8, 200);
  Int32Rows rows(ids);
  if (sizeof(TypeParam) == 2) rows.at(5, 2) = 499;
  std::vector<TypeParam> out(ids.size());
  Ahead nothing;
  ASSERT_TRUE(narrow_in_order<TypeParam>(rows.tokens, Int32Rows::kOffset, 500, out.data(), {}, nothing));
  for (std::size_t i = 0; i < 48; ++i) {
    for (std::size_t k = 0; k < 8; ++k) ASSERT_EQ(out[i * 8 + k], rows.at(i, k)) << i << ", " << k;
  }
  std::vector<std::uint32_t> counts(500);
  std::vector<TypeParam> next(ids.size());
  const Pending<TypeParam> pending{out.data(), out.size(), counts.data()};
  ASSERT_TRUE(narrow_in_order<TypeParam>(rows.tokens, Int32Rows::kOffset, 500, next.data(), pending, nothing));
  EXPECT_EQ(next, out);
  EXPECT_EQ(counts, histogram(std::span<const TypeParam>(out), 500));
}

TYPED_TEST(WideRows, see_every_pair_and_every_id_beyond_the_limit) {
  if (!can_count_wide()) GTEST_SKIP() << "no 512-bit vectors";
  std::mt19937 random(4);
  const auto ids = byte_rows(random, 16, 8, 200);
  std::vector<TypeParam> out(ids.size());
  Ahead nothing;
  const auto in_order = [&](const Int32Rows& rows) {
    return narrow_in_order<TypeParam>(rows.tokens, Int32Rows::kOffset, 200, out.data(), {}, nothing);
  };
  ASSERT_TRUE(in_order(Int32Rows(ids)));
  for (const std::size_t row : {0U, 1U, 15U}) {
    for (std::size_t a = 0; a < 8; ++a) {
      for (const std::int32_t wrong : {-1, 200, 1 << 16, std::numeric_limits<std::int32_t>::min()}) {
        Int32Rows rows(ids);
        rows.at(row, a) = wrong;
        ASSERT_FALSE(in_order(rows)) << wrong;
      }
      for (std::size_t b = 0; b < a; ++b) {
        Int32Rows rows(ids);
        rows.at(row, a) = rows.at(row, b);
        ASSERT_FALSE(in_order(rows)) << a << ", " << b;
      }
    }
  }
  Int32Rows neighbours(ids);  // rows side by side may name the same experts
  for (std::size_t k = 0; k < 8; ++k) neighbours.at(1, k) = neighbours.at(0, k);
  EXPECT_TRUE(in_order(neighbours));
}

/// Rows in order with a few that are not, dense and in C order.
std::vector<std::int32_t> mixed_rows(std::mt19937& random, std::size_t tokens, std::size_t layers,
                                     std::uint32_t experts) {
  std::vector<std::int32_t> ids;
  for (std::size_t row = 0; row < tokens * layers; ++row) {
    const std::size_t begin = ids.size();
    while (ids.size() < begin + 8) {
      const auto id = static_cast<std::int32_t>(random() % experts);
      if (std::find(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    const auto kind = random() % 500;
    const auto whole = std::span(ids).subspan(begin);
    if (row % layers == 1 || kind == 0) std::ranges::fill(whole, 0);
    if (kind == 1) std::ranges::fill(whole, -1);
    if (kind == 2) whole[7] = static_cast<std::int32_t>(experts);
    if (kind == 3) whole[5] = whole[1];
  }
  return ids;
}

TEST(CountRoutes, gives_the_same_on_every_instruction_set) {
  std::mt19937 random(5);
  for (const std::uint32_t experts : {64U, 100U, 256U, 300U, 512U}) {
    for (const std::size_t tokens : {5U, 128U, 700U}) {
      const auto ids = mixed_rows(random, tokens, 5, experts);
      const auto routes = RouteIds::from_bytes(std::as_bytes(std::span(ids)), IdType::I32, 5, 8);
      std::vector<std::uint8_t> mask(tokens);
      for (auto& keep : mask) keep = random() % 8 != 0;
      for (const bool masked : {false, true}) {
        SampleRoutes sample{.ids = routes};
        if (masked) sample.mask = mask;
        const CountOptions options{.experts = experts, .layers = {4, 1, 0, 2}, .invalid = InvalidRoutes::LeaveOut};
        std::vector<std::uint32_t> wanted(4 * experts);
        hwy::SetSupportedTargetsForTest(HWY_SSE4);
        const CountReport report = count_routes(sample, options, wanted);
        hwy::SetSupportedTargetsForTest(0);
        for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
          hwy::SetSupportedTargetsForTest(target);
          std::vector<std::uint32_t> counts(4 * experts, 9);
          ASSERT_EQ(count_routes(sample, options, counts), report) << experts << " experts, " << tokens << " tokens";
          ASSERT_EQ(counts, wanted) << experts << " experts, " << tokens << " tokens";
        }
        hwy::SetSupportedTargetsForTest(0);
      }
    }
  }
}

}  // namespace
}  // namespace routepack::replay
