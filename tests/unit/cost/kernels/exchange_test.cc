// SPDX-License-Identifier: Apache-2.0
#include "cost/kernels/exchange.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace routepack::kernels {
namespace {

/// Runs a body once per instruction set that this machine has.
template <class Body>
void on_every_target(Body body) {
  for (const auto target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    SCOPED_TRACE(hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

const std::vector<std::pair<std::size_t, std::size_t>> kShapes = {{1, 1},  {3, 2},   {16, 5},  {17, 8}, {24, 8},
                                                                  {32, 4}, {33, 16}, {40, 16}, {58, 3}, {94, 64}};

struct Operands {
  std::vector<std::int32_t> i, j, a, b;  // [lanes], zero past L
};

/// Item loads up to `most_item`, row loads up to `most_row`.
Operands operands(const LaneShape& shape, std::uint64_t seed, std::int32_t most_item, std::int32_t most_row) {
  std::mt19937_64 random(seed);
  Operands made;
  for (auto* vector : {&made.i, &made.j, &made.a, &made.b}) vector->assign(shape.lanes(), 0);
  for (std::size_t l = 0; l < shape.layers(); ++l) {
    for (std::size_t p = 0; p < shape.ranks(); ++p) {
      const std::size_t lane = shape.lane(l, p);
      // Many extremes: saturation happens there.
      const auto load = [&](std::int32_t most) {
        const auto kind = random() % 4;
        return kind == 0   ? 0
               : kind == 1 ? most
                           : static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(most + 1));
      };
      made.i[lane] = load(most_item);
      made.j[lane] = load(most_item);
      made.a[lane] = made.i[lane] + load(most_row);
      made.b[lane] = made.j[lane] + load(most_row);
    }
  }
  return made;
}

std::vector<std::int16_t> narrowed(const std::vector<std::int32_t>& wide) {
  return {wide.begin(), wide.end()};
}

std::vector<std::int32_t> peaks_of(const LaneShape& shape, const std::vector<std::int32_t>& loads) {
  std::vector<std::int32_t> peaks(shape.layer_lanes());
  for (std::size_t l = 0; l < shape.layers(); ++l) {
    for (std::size_t p = 0; p < shape.ranks(); ++p) peaks[l] = std::max(peaks[l], loads[shape.lane(l, p)]);
  }
  return peaks;
}

TEST(LaneShape, gives_every_layer_and_rank_a_lane_of_its_own) {
  for (const auto& [layers, ranks] : kShapes) {
    const LaneShape shape(layers, ranks);
    std::vector<int> taken(shape.lanes());
    for (std::size_t l = 0; l < layers; ++l) {
      for (std::size_t p = 0; p < ranks; ++p) {
        ASSERT_LT(shape.lane(l, p), shape.lanes());
        EXPECT_EQ(taken[shape.lane(l, p)]++, 0);
      }
    }
    EXPECT_GE(shape.layer_lanes(), layers);
    EXPECT_LT(shape.layer_lanes(), layers + LaneShape::kWide);
  }
}

TEST(LaneShape, takes_a_narrow_block_when_that_holds_the_rest) {
  EXPECT_EQ(LaneShape(24, 8).lanes(), 32 * 8);
  EXPECT_EQ(LaneShape(40, 16).lanes(), 48 * 16);
  EXPECT_EQ(LaneShape(58, 32).lanes(), 64 * 32);
  EXPECT_EQ(LaneShape(94, 64).lanes(), 96 * 64);
}

TEST(ExchangeKernels, the_scalar_twin_counts_a_hand_checked_exchange) {
  // One layer, two ranks: row-shard a holds {10, 4} and gives {3, 0} for {0, 2}; b holds {5, 7}.
  const LaneShape shape(1, 2);
  std::vector<std::int32_t> i(shape.lanes()), j(shape.lanes()), a(shape.lanes()), b(shape.lanes());
  const std::size_t first = shape.lane(0, 0);
  const std::size_t second = shape.lane(0, 1);
  i[first] = 3;
  j[second] = 2;
  a[first] = 10;
  a[second] = 4;
  b[first] = 5;
  b[second] = 7;
  const PeakSums sums = scalar::exchange_sums(shape, i.data(), j.data(), a.data(), b.data());
  EXPECT_EQ(sums.a, 7);  // {7, 6}
  EXPECT_EQ(sums.b, 8);  // {8, 5}
}

TEST(ExchangeKernels, every_target_equals_the_scalar_twin_in_32_bits) {
  on_every_target([] {
    for (const auto& [layers, ranks] : kShapes) {
      const LaneShape shape(layers, ranks);
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        const Operands x = operands(shape, seed, 1 << 20, 1 << 28);
        const PeakSums found = exchange_sums(shape, x.i.data(), x.j.data(), x.a.data(), x.b.data());
        const PeakSums wanted = scalar::exchange_sums(shape, x.i.data(), x.j.data(), x.a.data(), x.b.data());
        ASSERT_EQ(found.a, wanted.a);
        ASSERT_EQ(found.b, wanted.b);
        std::vector<std::int32_t> peaks_a(shape.layer_lanes()), peaks_b(shape.layer_lanes());
        std::vector<std::int32_t> scalar_a(shape.layer_lanes()), scalar_b(shape.layer_lanes());
        exchange_peaks(shape, x.i.data(), x.j.data(), x.a.data(), x.b.data(), peaks_a.data(), peaks_b.data());
        scalar::exchange_peaks(shape, x.i.data(), x.j.data(), x.a.data(), x.b.data(), scalar_a.data(), scalar_b.data());
        ASSERT_EQ(peaks_a, scalar_a);
        ASSERT_EQ(peaks_b, scalar_b);
      }
    }
  });
}

TEST(ExchangeKernels, sixteen_relative_bits_find_the_absolute_peaks_whatever_the_row_loads) {
  on_every_target([] {
    for (const auto& [layers, ranks] : kShapes) {
      const LaneShape shape(layers, ranks);
      for (const std::int32_t most_row : {0, 5, 40'000, 1 << 28}) {
        for (std::uint64_t seed = 0; seed < 10; ++seed) {
          const Operands x = operands(shape, seed, kNarrowLimit, most_row);
          const auto i = narrowed(x.i);
          const auto j = narrowed(x.j);
          const auto old_a = peaks_of(shape, x.a);
          const auto old_b = peaks_of(shape, x.b);
          std::vector<std::int16_t> a(shape.lanes()), b(shape.lanes()), scalar_a(shape.lanes());
          relative_loads(shape, x.a.data(), old_a.data(), a.data());
          relative_loads(shape, x.b.data(), old_b.data(), b.data());
          scalar::relative_loads(shape, x.a.data(), old_a.data(), scalar_a.data());
          ASSERT_EQ(a, scalar_a);

          const PeakSums absolute = scalar::exchange_sums(shape, x.i.data(), x.j.data(), x.a.data(), x.b.data());
          const PeakSums found = exchange_sums(shape, i.data(), j.data(), a.data(), b.data());
          const PeakSums twin = scalar::exchange_sums(shape, i.data(), j.data(), a.data(), b.data());
          ASSERT_EQ(found.a, twin.a);
          ASSERT_EQ(found.b, twin.b);
          std::int64_t sum_a = -static_cast<std::int64_t>(layers) * kNarrowLimit;
          std::int64_t sum_b = sum_a;
          for (std::size_t l = 0; l < layers; ++l) {
            sum_a += old_a[l];
            sum_b += old_b[l];
          }
          ASSERT_EQ(found.a + sum_a, absolute.a);
          ASSERT_EQ(found.b + sum_b, absolute.b);

          std::vector<std::int16_t> peaks_a(shape.layer_lanes()), peaks_b(shape.layer_lanes());
          std::vector<std::int32_t> wide_a(shape.layer_lanes()), wide_b(shape.layer_lanes());
          exchange_peaks(shape, i.data(), j.data(), a.data(), b.data(), peaks_a.data(), peaks_b.data());
          scalar::exchange_peaks(shape, x.i.data(), x.j.data(), x.a.data(), x.b.data(), wide_a.data(), wide_b.data());
          for (std::size_t l = 0; l < layers; ++l) {
            ASSERT_EQ(peaks_a[l] + old_a[l] - kNarrowLimit, wide_a[l]);
            ASSERT_EQ(peaks_b[l] + old_b[l] - kNarrowLimit, wide_b[l]);
          }
        }
      }
    }
  });
}

TEST(ExchangeKernels, applying_an_exchange_changes_loads_and_peaks_as_the_scalar_twin_does) {
  on_every_target([] {
    for (const auto& [layers, ranks] : kShapes) {
      const LaneShape shape(layers, ranks);
      const Operands x = operands(shape, 7, kNarrowLimit, 1 << 20);
      const auto i = narrowed(x.i);
      const auto j = narrowed(x.j);
      std::vector<std::int32_t> loads16 = x.a, loads32 = x.a, twin = x.a;
      std::vector<std::int32_t> peaks16(shape.layer_lanes()), peaks32(shape.layer_lanes()), peaks(shape.layer_lanes());
      apply(shape, i.data(), j.data(), loads16.data(), peaks16.data());
      apply(shape, x.i.data(), x.j.data(), loads32.data(), peaks32.data());
      scalar::apply(shape, x.i.data(), x.j.data(), twin.data(), peaks.data());
      EXPECT_EQ(loads16, twin);
      EXPECT_EQ(loads32, twin);
      EXPECT_EQ(peaks16, peaks);
      EXPECT_EQ(peaks32, peaks);
      EXPECT_EQ(peaks, peaks_of(shape, twin));
    }
  });
}

TEST(ExchangeKernels, the_yardstick_reads_every_operand) {
  const LaneShape shape(40, 3);
  std::vector<std::int16_t> zeros(shape.lanes());
  ASSERT_EQ(stream_operands(shape, zeros.data(), zeros.data(), zeros.data(), zeros.data()), 0);
  auto one = zeros;
  one[0] = 1;
  EXPECT_NE(stream_operands(shape, one.data(), zeros.data(), zeros.data(), zeros.data()), 0);
  EXPECT_NE(stream_operands(shape, zeros.data(), one.data(), zeros.data(), zeros.data()), 0);
  EXPECT_NE(stream_operands(shape, zeros.data(), zeros.data(), one.data(), zeros.data()), 0);
  EXPECT_NE(stream_operands(shape, zeros.data(), zeros.data(), zeros.data(), one.data()), 0);
}

}  // namespace
}  // namespace routepack::kernels
