// SPDX-License-Identifier: Apache-2.0
#include "window/replay/kernels.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "window/replay/counter.h"

namespace routepack::replay {
namespace {

/// Runs `body` once for every instruction set that this machine has.
template <class Body>
void on_every_target(Body body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

template <class T>
std::vector<T> clean_rows(std::mt19937& random, std::size_t rows, std::size_t top_k, std::uint32_t experts) {
  std::vector<T> ids;
  std::vector<T> all;
  for (std::uint32_t e = 0; e < experts; ++e) all.push_back(static_cast<T>(e));
  for (std::size_t i = 0; i < rows; ++i) {
    std::shuffle(all.begin(), all.end(), random);
    ids.insert(ids.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(top_k));
  }
  return ids;
}

template <class T>
class ReplayKernels : public ::testing::Test {};
using Types = ::testing::Types<std::uint8_t, std::uint16_t>;
TYPED_TEST_SUITE(ReplayKernels, Types);

TYPED_TEST(ReplayKernels, find_every_pair_and_every_id_beyond_the_limit) {
  on_every_target([] {
    std::mt19937 random(1);
    for (const std::size_t top_k : {1U, 2U, 3U, 4U, 6U, 8U, 10U}) {
      for (const std::size_t rows : {1U, 2U, 7U, 33U}) {
        const std::uint32_t experts = 40;
        const auto clean = clean_rows<TypeParam>(random, rows, top_k, experts);
        ASSERT_FALSE(is_suspicious(clean.data(), rows, top_k, experts)) << top_k << " of " << rows;
        for (std::size_t i = 0; i < rows; i += 1 + rows / 8) {
          for (std::size_t a = 0; a < top_k; ++a) {
            auto wrong = clean;
            wrong[i * top_k + a] = static_cast<TypeParam>(experts);
            ASSERT_TRUE(is_suspicious(wrong.data(), rows, top_k, experts)) << top_k << " of " << rows;
            for (std::size_t b = 0; b < a; ++b) {
              wrong[i * top_k + a] = wrong[i * top_k + b];
              ASSERT_TRUE(is_suspicious(wrong.data(), rows, top_k, experts)) << a << ", " << b << " of " << top_k;
            }
          }
        }
      }
    }
  });
}

TYPED_TEST(ReplayKernels, narrow_rows_of_any_stride_and_see_what_does_not_fit) {
  on_every_target([] {
    std::mt19937 random(2);
    for (const std::size_t top_k : {1U, 2U, 3U, 4U, 8U, 12U}) {
      for (const std::ptrdiff_t step : {1, 2}) {
        const std::size_t tokens = 3;
        const std::size_t layers = 2;
        std::vector<std::int32_t> ids(tokens * layers * top_k * 2);
        for (auto& id : ids) id = static_cast<std::int32_t>(random() % 250);
        const auto* begin = reinterpret_cast<const std::byte*>(ids.data());
        const std::size_t row = top_k * 2;
        std::vector<const std::byte*> rows;
        for (std::size_t i = 0; i < tokens; ++i) rows.push_back(begin + 4 * i * layers * row);
        const std::vector<std::ptrdiff_t> offsets = {static_cast<std::ptrdiff_t>(4 * row), 0};
        const RowBlock block{rows, offsets, top_k, 4 * step};
        std::vector<TypeParam> out(layers * 64);
        ASSERT_TRUE(narrow<std::int32_t>(block, out.data(), 64));
        for (std::size_t i = 0; i < tokens; ++i) {
          for (std::size_t l = 0; l < layers; ++l) {
            for (std::size_t k = 0; k < top_k; ++k) {
              const std::size_t from = i * layers * row + (l == 0 ? row : 0) + k * static_cast<std::size_t>(step);
              ASSERT_EQ(out[l * 64 + i * top_k + k], ids[from]);
            }
          }
        }
        for (const std::int32_t bad : {-1, 1 << 16, std::numeric_limits<std::int32_t>::min()}) {
          ids[row] = bad;
          ASSERT_FALSE(narrow<std::int32_t>(block, out.data(), 64)) << bad << ", top_k " << top_k;
        }
      }
    }
  });
}

TYPED_TEST(ReplayKernels, count_every_id) {
  for (const std::size_t size : {0U, 1U, 7U, 8U, 29U}) {
    std::vector<TypeParam> ids(size, 3);
    std::vector<std::uint32_t> table(256);
    if (size > 1) ids.back() = 255;
    count_ids(ids.data(), size, table.data());
    EXPECT_EQ(table[3] + table[255], size);
    EXPECT_EQ(table[255], size > 1 ? 1U : 0U);
  }
}

TEST(Spread, gives_ties_to_the_lower_index) {
  std::vector<std::uint32_t> counts = {1, 1, 1, 0};
  spread(counts, 4);
  EXPECT_EQ(counts, (std::vector<std::uint32_t>{3, 2, 2, 0}));
}

}  // namespace
}  // namespace routepack::replay
