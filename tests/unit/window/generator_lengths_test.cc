// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/json.h"
#include "routepack/params.h"
#include "window/generator/lengths.h"
#include "window/generator/random.h"

namespace routepack {
namespace {

constexpr std::int64_t kGroups = 20'000;
constexpr std::size_t kRollouts = 4;

/// Answers of many groups, and the prompts.
struct Drawn {
  std::vector<double> answers, prompts, whole;
};

Drawn draw(LengthProfile profile) {
  Drawn drawn;
  for (std::int64_t g = 0; g < kGroups; ++g) {
    RandomStream random({.seed = 21, .purpose = Purpose::GroupLength, .item = g});
    LengthScores scores{
        .group = random.normal(), .within_kind = random.normal(), .prompt = random.normal(), .rollouts = {}};
    for (std::size_t r = 0; r < kRollouts; ++r) scores.rollouts.push_back(random.normal());
    const GroupLengths lengths = draw_lengths(profile, scores);
    drawn.prompts.push_back(lengths.prompt);
    for (const std::int32_t answer : lengths.answers) {
      drawn.answers.push_back(answer);
      drawn.whole.push_back(answer + lengths.prompt);
    }
  }
  return drawn;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

/// Share of the variance of ln length that siblings have in common.
double icc(const std::vector<double>& answers) {
  double within = 0.0, total = 0.0, sum = 0.0;
  for (const double a : answers) sum += std::log(a);
  const double centre = sum / static_cast<double>(answers.size());
  for (std::size_t g = 0; g < answers.size(); g += kRollouts) {
    double group = 0.0;
    for (std::size_t r = 0; r < kRollouts; ++r) group += std::log(answers[g + r]) / kRollouts;
    for (std::size_t r = 0; r < kRollouts; ++r) {
      within += std::pow(std::log(answers[g + r]) - group, 2) * kRollouts / (kRollouts - 1);
      total += std::pow(std::log(answers[g + r]) - centre, 2);
    }
  }
  return 1.0 - within / total;
}

TEST(GeneratedLengths, quantiles_and_means_are_within_ten_percent_of_the_recordings) {
  const std::string file = ROUTEPACK_SOURCE_DIR "/tests/data/calibration/targets.json";
  const Json targets = parse_json(read_text(file), file)["lengths"];
  for (const auto& choice : choices(LengthProfile{})) {
    if (choice.value == LengthProfile::Mixed) continue;
    SCOPED_TRACE(choice.name);
    const Json& target = targets.at(std::string(choice.name));
    const Drawn drawn = draw(choice.value);
    const auto& lengths = target["part"] == "whole" ? drawn.whole : drawn.answers;
    if (target.contains("mean")) {
      EXPECT_NEAR(mean(lengths) / target["mean"].get<double>(), 1.0, 0.1);
    }
    if (target.contains("quantiles")) {
      for (const auto& [q, tokens] : target["quantiles"].items()) {
        EXPECT_NEAR(quantile(lengths, std::stod(q)) / tokens.get<double>(), 1.0, 0.1) << q;
      }
    }
    if (target.contains("over_median")) {
      for (const auto& [q, ratio] : target["over_median"].items()) {
        EXPECT_NEAR(quantile(lengths, std::stod(q)) / quantile(lengths, 0.5) / ratio.get<double>(), 1.0, 0.1) << q;
      }
    }
  }
}

TEST(GeneratedLengths, siblings_share_half_to_two_thirds_of_the_variance) {
  for (const auto profile : {LengthProfile::Gsm8k, LengthProfile::Math, LengthProfile::Reasoning}) {
    const double shared = icc(draw(profile).answers);
    EXPECT_GT(shared, 0.50) << name_of(profile);
    EXPECT_LT(shared, 0.66) << name_of(profile);
  }
}

TEST(GeneratedLengths, gsm8k_prompts_are_as_long_as_the_recorded_ones) {
  const auto prompts = draw(LengthProfile::Gsm8k).prompts;
  EXPECT_NEAR(mean(prompts), 104.0, 5.0);
  EXPECT_GE(*std::ranges::min_element(prompts), 66.0);
  EXPECT_LE(*std::ranges::max_element(prompts), 185.0);
}

TEST(GeneratedLengths, a_mixed_window_holds_every_kind_in_its_share) {
  const auto prompts = draw(LengthProfile::Mixed).prompts;
  const auto share = [&](double from, double to) {
    return static_cast<double>(std::ranges::count_if(prompts, [&](double p) { return p >= from && p < to; })) / kGroups;
  };
  EXPECT_NEAR(share(800, 2048), 0.15, 0.01);  // the agentic system prompt is longer than nearly all others
  const Drawn drawn = draw(LengthProfile::Mixed);
  EXPECT_GT(quantile(drawn.whole, 0.95) / quantile(drawn.whole, 0.5), 5.0);
}

TEST(GeneratedLengths, even_the_most_extreme_scores_fit_sixteen_bits) {
  for (const auto& choice : choices(LengthProfile{})) {
    for (const double z : {-8.0, 8.0}) {
      const GroupLengths lengths =
          draw_lengths(choice.value, {.group = z, .within_kind = z, .prompt = z, .rollouts = {-8.0, 0.0, 8.0}});
      for (const std::int32_t answer : lengths.answers) {
        EXPECT_GE(answer, 1) << choice.name;
        EXPECT_LE(answer + lengths.prompt, kLongestSample) << choice.name;
      }
    }
  }
}

}  // namespace
}  // namespace routepack
