// SPDX-License-Identifier: Apache-2.0
// Generated windows against the recordings that their presets are fitted to (tests/data/calibration).
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/file.h"
#include "core/json.h"
#include "routepack/generate.h"
#include "support/routing_statistics.h"

namespace routepack {
namespace {

using namespace routepack::testing;

constexpr std::int64_t kSeeds = 2;

struct Measured {
  double expert_cv = 0.0, identity_cv = 0.0, between_samples = 0.0;
};

/// Means over fixed seeds.
Measured measure(GenerateParams params, std::int32_t ranks, std::int64_t seeds) {
  Measured measured;
  for (params.seed = 0; params.seed < seeds; ++params.seed) {
    const Window window = generate_window(params);
    measured.expert_cv += identity_cv(window, window.experts()) / static_cast<double>(seeds);
    measured.identity_cv += identity_cv(window, ranks) / static_cast<double>(seeds);
    measured.between_samples += between_sample_variance(window) / static_cast<double>(seeds);
  }
  return measured;
}

Json routing_targets() {
  const std::string file = ROUTEPACK_SOURCE_DIR "/tests/data/calibration/targets.json";
  return parse_json(read_text(file), file)["routing"];
}

/// One model per test, so that they can run side by side.
class GeneratorCalibration : public ::testing::TestWithParam<const char*> {};

TEST_P(GeneratorCalibration, skew_and_differences_between_samples_match_every_recorded_domain) {
  std::size_t found = 0;
  for (const Json& target : routing_targets()) {
    if (target["model"] != GetParam()) continue;
    ++found;
    SCOPED_TRACE(target.dump());
    const auto ranks = target["ranks"].get<std::int32_t>();
    // Windows of many layers are large, and need fewer samples for the same precision.
    const bool large = target["model"] == "glm-5.2";
    GenerateParams params{
        .model = target["model"], .domain = target["domain"], .rollouts = large ? 1 : 2, .answers_only = true};
    const std::int64_t seeds = large ? 1 : 2;
    const Measured answers = measure(params, ranks, seeds);
    EXPECT_NEAR(answers.expert_cv / target["expert_cv"].get<double>(), 1.0, 0.2);
    EXPECT_NEAR(answers.identity_cv / target["identity_cv"].get<double>(), 1.0, 0.2);
    if (target.contains("between_samples")) {
      EXPECT_NEAR(answers.between_samples / target["between_samples"].get<double>(), 1.0, 0.25);
    }
    params.answers_only = false;
    const Measured whole = measure(params, ranks, seeds);
    EXPECT_NEAR(whole.expert_cv / target["expert_cv"].get<double>(), 1.0, 0.2);
    EXPECT_NEAR(whole.identity_cv / target["identity_cv"].get<double>(), 1.0, 0.2);
  }
  EXPECT_GT(found, 0U);
}

INSTANTIATE_TEST_SUITE_P(Models, GeneratorCalibration,
                         ::testing::Values("glm-5.2", "gpt-oss-20b", "mixtral-8x7b", "olmoe-1b-7b", "qwen1.5-moe-a2.7b",
                                           "qwen3-30b-a3b"));

TEST(GeneratorPresets, every_calibrated_domain_has_a_recording) {
  const Json targets = routing_targets();
  for (const ModelInfo& model : list_models()) {
    for (const DomainInfo& domain : model.domains) {
      const bool recorded = std::ranges::any_of(
          targets, [&](const Json& t) { return t["model"] == model.name && t["domain"] == domain.name; });
      EXPECT_EQ(domain.calibrated, recorded) << model.name << " " << domain.name;
    }
  }
}

TEST(GeneratorRows, lpt_and_decreasing_fit_are_as_efficient_as_on_recorded_answers) {
  // 512 answers without common prompts at 8 ranks: one slot of 8,192 tokens 0.838, four of 4,096 tokens 0.873.
  double one_slot = 0.0, four_slots = 0.0;
  for (std::int64_t seed = 0; seed < kSeeds; ++seed) {
    const Window window = generate_window(
        {.model = "gpt-oss-20b", .domain = "mixed", .prompts = 512, .rollouts = 1, .answers_only = true, .seed = seed});
    const Placement placement = lpt(window, 8);
    one_slot += efficiency(window, placement, decreasing_fit(window, 1, 8192)) / kSeeds;
    four_slots += efficiency(window, placement, decreasing_fit(window, 4, 4096)) / kSeeds;
  }
  EXPECT_NEAR(one_slot, 0.838, 0.02);
  EXPECT_NEAR(four_slots, 0.873, 0.02);
}

TEST(GeneratorRows, rows_cut_by_length_lose_efficiency_because_length_follows_topic) {
  for (const char* domain : {"maths", "mixed"}) {
    for (std::int64_t seed = 0; seed < 4; ++seed) {
      const Window window = generate_window({.model = "gpt-oss-20b", .domain = domain, .seed = seed});
      const Placement placement = lpt(window, 8);
      double random = 0.0;
      for (std::uint64_t order = 0; order < 5; ++order) {
        random += efficiency(window, placement, cut_into_rows(window, shuffled(window, order), 8, 2048)) / 5;
      }
      const double by_length = efficiency(window, placement, cut_into_rows(window, by_falling_length(window), 8, 2048));
      EXPECT_GT(random - by_length, 0.04) << domain << " " << seed;
      EXPECT_LT(random - by_length, 0.12) << domain << " " << seed;
    }
  }
}

}  // namespace
}  // namespace routepack
