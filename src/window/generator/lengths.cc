// SPDX-License-Identifier: Apache-2.0
#include "window/generator/lengths.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/portable_math.h"

namespace routepack {
namespace {

/// A quantile of ln length: at the normal score z.
struct Knot {
  double z, ln_tokens;
};

struct Shape {
  std::span<const Knot> knots;
  double icc;  ///< share of the variance of ln length between prompts
  double shortest, longest;
  bool whole;  ///< the knots speak of prompt and answer together
  double ln_prompt, prompt_sd, shortest_prompt, longest_prompt;
};

// GSM8K: median 270, sd 0.30 between prompts and 0.27 within (verl's GRPO log: mean 289, 87 to 963).
constexpr double kGsm8kSd = 0.40361;
constexpr Knot kGsm8kKnots[] = {{0.0, 5.598422}, {1.0, 5.598422 + kGsm8kSd}};
// Competition mathematics without long thinking: a quoted run has mean 1267, shortest 38, cut at 3072.
constexpr Knot kMathKnots[] = {{0.0, 6.975414}, {1.0, 6.975414 + 0.65}};
// Output tokens of DeepSeek-R1 in production (ServeGen, rate-weighted).
constexpr Knot kReasoningKnots[] = {{-2.576, 4.762}, {-1.645, 5.416}, {-1.282, 5.659}, {-0.674, 6.057}, {-0.253, 6.366},
                                    {0.0, 6.675},    {0.253, 7.007},  {0.674, 7.313},  {1.036, 7.694},  {1.282, 8.141},
                                    {1.645, 8.648},  {1.96, 9.032},   {2.326, 9.442},  {3.09, 9.944}};
// Whole conversations of tau-bench airline: quantiles 5, 50, 95 and 99 %.
constexpr Knot kAgenticKnots[] = {{-1.645, 7.413367}, {0.0, 8.104401}, {1.645, 8.816705}, {2.326, 9.004422}};

constexpr Shape kGsm8k{kGsm8kKnots, 0.5525, 16, 2048, false, 4.615121, 0.25, 66, 185};
constexpr Shape kMath{kMathKnots, 0.6, 38, 3072, false, 4.787492, 0.45, 24, 1024};
constexpr Shape kReasoning{kReasoningKnots, 0.6, 9, 32768, false, 5.010635, 0.5, 24, 2048};
constexpr Shape kAgentic{kAgenticKnots, 0.6, 256, 16384, true, 7.090077, 0.10, 800, 2048};

constexpr bool fits(const Shape& shape) {
  return shape.longest + shape.longest_prompt <= kLongestSample;
}
static_assert(fits(kGsm8k) && fits(kMath) && fits(kReasoning) && fits(kAgentic));

/// A mixed window, shortest kind first, and up to which group score each kind reaches (40, 25, 20 and 15 %).
struct Part {
  double up_to;
  const Shape& shape;
};
constexpr Part kMixture[] = {{-0.253347, kGsm8k}, {0.385320, kMath}, {1.036433, kReasoning}, {100.0, kAgentic}};

const Shape& shape_of(LengthProfile profile) {
  switch (profile) {
    case LengthProfile::Math:
      return kMath;
    case LengthProfile::Reasoning:
      return kReasoning;
    case LengthProfile::Agentic:
      return kAgentic;
    default:
      return kGsm8k;
  }
}

double interpolate(std::span<const Knot> knots, double z) {
  std::size_t right = 1;
  while (right + 1 < knots.size() && knots[right].z < z) ++right;
  const Knot& a = knots[right - 1];
  const Knot& b = knots[right];
  return a.ln_tokens + (z - a.z) / (b.z - a.z) * (b.ln_tokens - a.ln_tokens);
}

std::int32_t whole_tokens(double ln_tokens, double shortest, double longest) {
  // Not lround: libm stays out of what decides a window.
  const double above_the_half = std::clamp(portable::exp(std::min(ln_tokens, 40.0)), shortest, longest) + 0.5;
  return static_cast<std::int32_t>(above_the_half);
}

}  // namespace

GroupLengths draw_lengths(LengthProfile profile, const LengthScores& scores) {
  double group_score = scores.group;
  const Shape* shape = &shape_of(profile);
  if (profile == LengthProfile::Mixed) {
    shape = &std::ranges::find_if(kMixture, [&](const Part& p) { return group_score <= p.up_to; })->shape;
    group_score = scores.within_kind;
  }
  GroupLengths lengths;
  lengths.prompt =
      whole_tokens(shape->ln_prompt + shape->prompt_sd * scores.prompt, shape->shortest_prompt, shape->longest_prompt);
  const double between = std::sqrt(shape->icc) * group_score;
  const double within = std::sqrt(1.0 - shape->icc);
  for (const double rollout : scores.rollouts) {
    const double z = between + within * rollout;
    std::int32_t tokens = whole_tokens(interpolate(shape->knots, z), shape->shortest, shape->longest);
    if (shape->whole) tokens = std::max(tokens - lengths.prompt, 16);
    lengths.answers.push_back(tokens);
  }
  return lengths;
}

}  // namespace routepack
