// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "routepack/cost.h"
#include "routepack/error.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::HasSubstr;
using testing::refusal;
using ::testing::StartsWith;

std::string said(const std::string& toml) {
  return refusal<FormatError>([&] { CostModel::parse(toml, "cost.toml"); });
}

TEST(CostFile, reads_stages_and_one_weight) {
  const CostModel cost = CostModel::parse(
      "expert = 0.5\n[[stage]]\nname = \"kda\"\nalpha = 100\n[[stage]]\nname = \"mla\"\nalpha = 60.0\nbeta = 2e2\n",
      "c");
  EXPECT_EQ(cost, CostModel({{"kda", 100.0, 0.0}, {"mla", 60.0, 200.0}}, 0.5));
}

TEST(CostFile, reads_one_weight_per_layer) {
  EXPECT_EQ(CostModel::parse("expert = [1, 0.5]", "c"), CostModel({}, std::vector{1.0, 0.5}));
}

TEST(CostFile, fills_in_defaults) {
  EXPECT_EQ(CostModel::parse("[[stage]]\nalpha = 1\n[[stage]]\nbeta = 2\n", "c"),
            CostModel({{"stage0", 1.0, 0.0}, {"stage1", 0.0, 2.0}}, 1.0));
}

TEST(CostFile, template_is_a_cost_file) {
  const CostModel cost = CostModel::parse(CostModel::file_template(), "template");
  EXPECT_EQ(cost.stages().size(), 2U);
  EXPECT_TRUE(cost.uniform());
}

TEST(CostFile, reads_back_equal_what_it_wrote) {
  std::mt19937_64 random(3);
  const auto number = [&] {
    for (;;) {
      const double value = std::abs(std::bit_cast<double>(random()));
      if (value <= kMaxCost) return value;
    }
  };
  const std::string names[] = {"",      "kda", "quote\" and \\", "line\nbreak\tand \x7f", "Schicht über \xe2\x88\x91",
                               "# [no]"};
  for (int n = 0; n < 300; ++n) {
    std::vector<Stage> stages;
    for (std::uint64_t s = random() % 4; s > 0; --s)
      stages.push_back({names[random() % std::size(names)], number(), number()});
    std::vector<double> expert;
    for (std::uint64_t l = 1 + random() % 100; l > 0; --l) expert.push_back(number());
    const CostModel cost = n % 2 == 0 ? CostModel(stages, expert) : CostModel(stages, expert[0]);
    ASSERT_EQ(CostModel::parse(cost.to_toml(), "again"), cost) << cost.to_toml();
  }
}

TEST(CostFile, refuses_an_unknown_key_and_names_the_known_ones) {
  EXPECT_EQ(said("expert = 1\nexperts = 2"), "cost.toml:2: unknown key \"experts\", wanted one of: expert, stage");
  EXPECT_EQ(said("[[stage]]\nname = 'a'\n[[stage]]\nalhpa = 2"),
            "cost.toml:4: unknown key \"stage[1].alhpa\", wanted one of: name, alpha, beta");
}

TEST(CostFile, refuses_negative_and_not_finite_numbers_with_their_line) {
  EXPECT_EQ(said("[[stage]]\nalpha = -1"),
            "cost.toml:2: stage[0].alpha: found -1, wanted a finite number, at least 0 and at most 1e+100");
  EXPECT_EQ(said("[[stage]]\nbeta = nan"),
            "cost.toml:2: stage[0].beta: found nan, wanted a finite number, at least 0 and at most 1e+100");
  EXPECT_EQ(said("expert = inf"),
            "cost.toml:1: expert: found inf, wanted a finite number, at least 0 and at most 1e+100");
  EXPECT_EQ(said("expert = [\n1.0,\n-2.5]"),
            "cost.toml:3: expert[1]: found -2.5, wanted a finite number, at least 0 and at most 1e+100");
}

TEST(CostFile, refuses_other_types) {
  EXPECT_EQ(said("expert = 'one'"),
            "cost.toml:1: expert: found the string \"one\", wanted a finite number, at least 0 and at most 1e+100");
  EXPECT_EQ(said("[stage]\nalpha = 1"),
            "cost.toml:1: stage: found a table, wanted tables, each with [[stage]] above it");
  EXPECT_EQ(said("[[stage]]\nname = 1"), "cost.toml:2: stage[0].name: found 1, wanted a string");
  EXPECT_EQ(said("expert = []"), "cost.toml:1: expert: found an empty list, wanted one weight per MoE layer");
}

TEST(CostFile, refuses_a_file_without_costs_and_points_to_the_template) {
  for (const std::string text : {"", "# nothing\n", "stage = []"}) {
    EXPECT_THAT(said(text), StartsWith("cost.toml: found no costs, wanted «expert», «[[stage]]» or both"));
    EXPECT_THAT(said(text), HasSubstr("template"));
  }
}

TEST(CostFile, refuses_invalid_toml_with_line_and_column) {
  EXPECT_THAT(said("expert = 1\n[[stage]\n"), StartsWith("cost.toml:2:"));
  EXPECT_THAT(said("{\"expert\": 1}"), StartsWith("cost.toml:1:1: invalid TOML"));
}

TEST(CostFile, names_the_file_that_it_loads) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "cost_file_test.toml";
  std::ofstream(path) << "expert = -1\n";
  EXPECT_THAT(refusal<FormatError>([&] { CostModel::load(path); }), StartsWith(path.string() + ":1: expert: "));
  std::filesystem::remove(path);
  EXPECT_THAT(refusal<IoError>([&] { CostModel::load(path); }), HasSubstr(path.string()));
  EXPECT_THAT(refusal<IoError>([&] { CostModel::load(::testing::TempDir()); }), HasSubstr("directory"));
}

}  // namespace
}  // namespace routepack
