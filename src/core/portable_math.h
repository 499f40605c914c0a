// SPDX-License-Identifier: Apache-2.0
// exp, ln and the normal quantile from +, −, ·, / and sqrt alone: IEEE defines those to the last bit, libm defines
// nothing. The same arguments give the same bits on every x86-64 machine as long as the compiler fuses nothing.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace routepack::portable {

/// e^x for |x| ≤ 700, to about 1e-15 relative.
inline double exp(double x) {
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 0.693147180369123816490;  // the last bits are zero: k·kLn2High is exact
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr double kRound = 6755399441055744.0;  // 1.5·2^52: adding it rounds to an integer
  const double shifted = x * kLog2E + kRound;
  const double k = shifted - kRound;
  const double r = (x - k * kLn2High) - k * kLn2Low;
  // Taylor to r^13 on |r| ≤ ln(2)/2, Horner's rule.
  double sum = 1.0 / 6227020800.0;
  sum = sum * r + 1.0 / 479001600.0;
  sum = sum * r + 1.0 / 39916800.0;
  sum = sum * r + 1.0 / 3628800.0;
  sum = sum * r + 1.0 / 362880.0;
  sum = sum * r + 1.0 / 40320.0;
  sum = sum * r + 1.0 / 5040.0;
  sum = sum * r + 1.0 / 720.0;
  sum = sum * r + 1.0 / 120.0;
  sum = sum * r + 1.0 / 24.0;
  sum = sum * r + 1.0 / 6.0;
  sum = sum * r + 0.5;
  sum = sum * r + 1.0;
  sum = sum * r + 1.0;
  const auto exponent = static_cast<std::int64_t>(k) + 1023;
  return sum * std::bit_cast<double>(static_cast<std::uint64_t>(exponent) << 52);
}

/// ln x for a normal x > 0, to about 1e-15 relative.
inline double log(double x) {
  constexpr double kLn2High = 0.693147180369123816490;
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr double kSqrt2 = 1.4142135623730951;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000f'ffff'ffff'ffffULL) | 0x3ff0'0000'0000'0000ULL);
  if (m > kSqrt2) {
    m *= 0.5;
    ++exponent;
  }
  // ln m = 2 artanh f = 2 (f + f³/3 + f⁵/5 + …) with |f| ≤ 0.172
  const double f = (m - 1.0) / (m + 1.0);
  const double f2 = f * f;
  double sum = 1.0 / 23.0;
  for (const double odd : {21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0}) sum = sum * f2 + 1.0 / odd;
  const auto k = static_cast<double>(exponent);
  return k * kLn2High + (2.0 * f * sum + k * kLn2Low);
}

/// The z with Φ(z) = p, 0 < p < 1 (Wichura, algorithm AS 241, PPND16: about 1e-16).
inline double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    const double above =
        (((((((2.5090809287301226727e3 * r + 3.3430575583588128105e4) * r + 6.7265770927008700853e4) * r +
             4.5921953931549871457e4) *
                r +
            1.3731693765509461125e4) *
               r +
           1.9715909503065514427e3) *
              r +
          1.3314166789178437745e2) *
             r +
         3.3871328727963666080e0);
    const double below =
        (((((((5.2264952788528545610e3 * r + 2.8729085735721942674e4) * r + 3.9307895800092710610e4) * r +
             2.1213794301586595867e4) *
                r +
            5.3941960214247511077e3) *
               r +
           6.8718700749205790830e2) *
              r +
          4.2313330701600911252e1) *
             r +
         1.0);
    return q * above / below;
  }
  double r = std::sqrt(-log(q < 0.0 ? p : 1.0 - p));
  double above = 0.0;
  double below = 0.0;
  if (r <= 5.0) {
    r -= 1.6;
    above = (((((((7.74545014278341407640e-4 * r + 2.27238449892691845833e-2) * r + 2.41780725177450611770e-1) * r +
                 1.27045825245236838258e0) *
                    r +
                3.64784832476320460504e0) *
                   r +
               5.76949722146069140550e0) *
                  r +
              4.63033784615654529590e0) *
                 r +
             1.42343711074968357734e0);
    below = (((((((1.05075007164441684324e-9 * r + 5.47593808499534494600e-4) * r + 1.51986665636164571966e-2) * r +
                 1.48103976427480074590e-1) *
                    r +
                6.89767334985100004550e-1) *
                   r +
               1.67638483018380384940e0) *
                  r +
              2.05319162663775882187e0) *
                 r +
             1.0);
  } else {
    r -= 5.0;
    above = (((((((2.01033439929228813265e-7 * r + 2.71155556874348757815e-5) * r + 1.24266094738807843860e-3) * r +
                 2.65321895265761230930e-2) *
                    r +
                2.96560571828504891230e-1) *
                   r +
               1.78482653991729133580e0) *
                  r +
              5.46378491116411436990e0) *
                 r +
             6.65790464350110377720e0);
    below = (((((((2.04426310338993978564e-15 * r + 1.42151175831644588870e-7) * r + 1.84631831751005468180e-5) * r +
                 7.86869131145613259100e-4) *
                    r +
                1.48753612908506148525e-2) *
                   r +
               1.36929880922735805310e-1) *
                  r +
              5.99832206555887937690e-1) *
                 r +
             1.0);
  }
  return q < 0.0 ? -above / below : above / below;
}

}  // namespace routepack::portable
