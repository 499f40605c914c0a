// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/portable_math.h"

namespace routepack::portable {
namespace {

TEST(PortableMath, exp_is_within_two_ulp_of_libm) {
  for (double x = -700.0; x <= 700.0; x += 0.317) EXPECT_NEAR(exp(x) / std::exp(x), 1.0, 5e-16) << x;
  EXPECT_EQ(exp(0.0), 1.0);
}

TEST(PortableMath, log_is_within_two_ulp_of_libm) {
  for (double x = 1e-300; x < 1e300; x *= 1.37) {
    EXPECT_NEAR(log(x), std::log(x), 5e-16 * std::fabs(std::log(x)) + 1e-16) << x;
  }
  EXPECT_EQ(log(1.0), 0.0);
}

TEST(PortableMath, the_normal_quantile_undoes_the_normal_distribution) {
  for (double p = 1e-12; p < 1.0; p = p * 1.3 + 1e-5) {
    EXPECT_NEAR(0.5 * std::erfc(-normal_quantile(p) / std::sqrt(2.0)) / p, 1.0, 5e-14) << p;
  }
  EXPECT_EQ(normal_quantile(0.5), 0.0);
  EXPECT_EQ(normal_quantile(0.25), -normal_quantile(0.75));
}

TEST(PortableMath, results_have_the_same_bits_everywhere) {
  std::uint64_t mixed = 0;
  const auto mix = [&](double value) {
    mixed = (mixed ^ std::bit_cast<std::uint64_t>(value)) * 0x9e37'79b9'7f4a'7c15ULL;
    mixed ^= mixed >> 29;
  };
  for (int i = 1; i < 1000; ++i) {
    const double x = i / 1000.0;
    mix(exp(40.0 * x - 20.0));
    mix(log(x));
    mix(normal_quantile(x));
    mix(normal_quantile(x * 1e-9));
  }
  EXPECT_EQ(mixed, 15893452815639143576ULL);
}

}  // namespace
}  // namespace routepack::portable
