// SPDX-License-Identifier: Apache-2.0
// How long prompts and answers are.
#pragma once

#include <cstdint>
#include <vector>

#include "routepack/generate.h"

namespace routepack {

/// The standard normal numbers behind the lengths of one prompt group.
struct LengthScores {
  double group = 0.0;        ///< shared by the rollouts; in a mixed window it picks the kind of text
  double within_kind = 0.0;  ///< takes its place inside that kind
  double prompt = 0.0;
  std::vector<double> rollouts;
};

struct GroupLengths {
  std::int32_t prompt = 0;
  std::vector<std::int32_t> answers;  ///< one per rollout
};

/// Longest sample of any profile: counts, which never exceed their sample's length, fit 16 bits.
inline constexpr std::int32_t kLongestSample = 0xffff;

/// ln length = f(√ICC · group + √(1 − ICC) · rollout); f is piecewise linear through measured quantiles.
GroupLengths draw_lengths(LengthProfile profile, const LengthScores& scores);

}  // namespace routepack
