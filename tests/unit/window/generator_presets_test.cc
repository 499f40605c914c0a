// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "routepack/error.h"
#include "support/refusal.h"
#include "window/generator/presets.h"

namespace routepack {
namespace {

using testing::refusal;

TEST(Presets, names_are_unique_lower_case_and_sorted) {
  std::vector<std::string> names;
  for (const ModelInfo& model : list_models()) names.push_back(model.name);
  EXPECT_TRUE(std::ranges::is_sorted(names));
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
  for (const auto& name : names) EXPECT_TRUE(std::ranges::none_of(name, [](char c) { return c >= 'A' && c <= 'Z'; }));
}

TEST(Presets, structures_are_possible) {
  for (const ModelInfo& model : list_models()) {
    SCOPED_TRACE(model.name);
    EXPECT_LE(model.moe_layers, model.layers);
    EXPECT_LT(model.top_k, model.experts);
    EXPECT_GT(model.hidden, 0);
    EXPECT_GT(model.moe_width, 0);
    EXPECT_FALSE(model.domains.empty());
  }
}

TEST(Presets, a_model_without_a_recording_says_uncalibrated_and_inferred_widths_say_so) {
  for (const ModelInfo& model : list_models()) {
    const bool recorded = std::set<std::string>{"glm-5.2",     "gpt-oss-20b",       "mixtral-8x7b",
                                                "olmoe-1b-7b", "qwen1.5-moe-a2.7b", "qwen3-30b-a3b"}
                              .contains(model.name);
    EXPECT_EQ(model.calibrated(), recorded) << model.name;
    EXPECT_EQ(model.inferred, model.name == "ling-3.0-flash" || model.name == "ling-flash-2.0") << model.name;
  }
}

TEST(Presets, the_domain_follows_the_lengths_unless_it_is_named) {
  const Preset& model = find_preset("gpt-oss-20b");
  EXPECT_EQ(find_domain(model, "", LengthProfile::Gsm8k).name, "maths");
  EXPECT_EQ(find_domain(model, "", LengthProfile::Mixed).name, "mixed");
  EXPECT_EQ(find_domain(model, "mixed", LengthProfile::Gsm8k).name, "mixed");
  EXPECT_EQ(find_domain(find_preset("mixtral-8x7b"), "", LengthProfile::Mixed).name, "mmlu");
}

TEST(Presets, unknown_names_are_refused_with_the_known_ones) {
  EXPECT_THAT(refusal<InvalidInput>([] { (void)find_preset("gpt-2"); }),
              ::testing::AllOf(::testing::StartsWith("model: found \"gpt-2\", wanted one of "),
                               ::testing::HasSubstr("qwen3-30b-a3b")));
  EXPECT_EQ(refusal<InvalidInput>([] { (void)find_domain(find_preset("gpt-oss-20b"), "law", LengthProfile::Math); }),
            "domain: found \"law\", wanted for gpt-oss-20b one of maths, mixed");
}

}  // namespace
}  // namespace routepack
