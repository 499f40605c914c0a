// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic of alignment and counting. Arguments are non-negative, divisors positive.
#pragma once

#include <cstdint>

namespace routepack {

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}
constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return ceil_div(value, multiple) * multiple;
}
constexpr std::int64_t round_down(std::int64_t value, std::int64_t multiple) {
  return value - value % multiple;
}

}  // namespace routepack
