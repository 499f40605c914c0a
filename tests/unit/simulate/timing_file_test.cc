// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "routepack/error.h"
#include "routepack/simulate.h"
#include "simulate/interleave.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace routepack {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;
using ::testing::StartsWith;
using testing::TemporaryFolder;

const char* const kFile = R"(tile = 64
dense_layers = 1

[expert]
token = 4e-8
active = 8e-6

[all_to_all]
token = 16e-8
fixed = 32e-6

[fixed]
row = 1e-3
step = 2e-2
layer = 4e-5
forward_share = 0.25

[[stage]]
name = "full"
layers = 3
token = 12e-6
pair = 24e-9

[[stage]]
name = "sliding"
layers = 1
token = 8e-6
pair = 0
)";

void expect_times(const PerPass& found, double forward, double backward) {
  EXPECT_DOUBLE_EQ(found.forward, forward);
  EXPECT_DOUBLE_EQ(found.backward, backward);
}

void expect_file(const StepTiming& timing) {
  ASSERT_EQ(timing.layers.size(), 4U);
  for (std::size_t l = 0; l < 4; ++l) {
    SCOPED_TRACE(l);
    EXPECT_EQ(timing.layers[l].stage, l == 2 ? "sliding" : "full");
    EXPECT_EQ(timing.layers[l].routed, l > 0);
    EXPECT_EQ(timing.layers[l].expert_weight, 1.0);
    if (l != 2) {
      expect_times(timing.layers[l].token, 1e-6, 3e-6);  // a third of the stage, a quarter of it forward
      expect_times(timing.layers[l].pair, 2e-9, 6e-9);
    } else {
      expect_times(timing.layers[l].token, 2e-6, 6e-6);
      expect_times(timing.layers[l].pair, 0.0, 0.0);
    }
  }
  expect_times(timing.expert, 1e-8, 3e-8);
  expect_times(timing.active, 2e-6, 6e-6);
  expect_times(timing.floor, 0.0, 0.0);
  EXPECT_EQ(timing.tile, 64);
  expect_times(timing.exchange, 2e-8, 6e-8);  // half for dispatch, half for combine
  expect_times(timing.exchange_fixed, 4e-6, 12e-6);
  expect_times(timing.layer_fixed, 1e-5, 3e-5);
  EXPECT_EQ(timing.row, 1e-3);
  EXPECT_EQ(timing.optimizer, 2e-2);
  EXPECT_EQ(timing.reduce, 0.0);
  EXPECT_EQ(timing.hand_over, 0.0);
  EXPECT_FALSE(timing.recompute);
}

TEST(TimingFile, gives_seconds_per_layer_and_pass) {
  expect_file(StepTiming::parse(kFile, "t.toml"));
}

TEST(TimingFile, is_read_from_a_path) {
  const TemporaryFolder folder;
  expect_file(StepTiming::load(folder.file("t.toml", kFile)));
  EXPECT_THAT(refusal<IoError>([&] { StepTiming::load(folder / "none.toml"); }), HasSubstr("none.toml"));
  folder.file("bad.toml", "tile = ");
  EXPECT_THAT(refusal<FormatError>([&] { StepTiming::load(folder / "bad.toml"); }), HasSubstr("bad.toml:1"));
}

TEST(TimingFile, needs_experts_and_a_stage_only) {
  const StepTiming timing = StepTiming::parse(
      "[expert]\ntoken = 3e-8\n[[stage]]\nname = \"a\"\nlayers = 2\ntoken = 6e-6\npair = 0.0\n", "t.toml");
  ASSERT_EQ(timing.layers.size(), 2U);
  EXPECT_TRUE(timing.layers[0].routed);
  expect_times(timing.layers[1].token, 1e-6, 2e-6);  // a third of it forward
  expect_times(timing.expert, 1e-8, 2e-8);
  StepTiming rest = timing;
  rest.layers.clear();
  EXPECT_EQ(rest, StepTiming{.expert = timing.expert});
}

std::string with(const std::string& line, const std::string& instead) {
  std::string text = kFile;
  const auto at = text.find(line);
  EXPECT_NE(at, std::string::npos) << line;
  return text.replace(at, line.size(), instead);
}

std::string said(const std::string& toml) {
  return refusal<FormatError>([&] { StepTiming::parse(toml, "t.toml"); });
}

TEST(TimingFile, refuses_numbers_out_of_range_with_file_line_key_found_and_wanted) {
  struct Refusal {
    const char *line, *instead, *where, *key, *found;
  };
  for (const auto& [line, instead, where, key, found] :
       std::vector<Refusal>{{"tile = 64", "tile = 0", "t.toml:1", "tile", "0"},
                            {"tile = 64", "tile = 64.0", "t.toml:1", "tile", "64"},
                            {"tile = 64", "tile = 2000000", "t.toml:1", "tile", "2000000"},
                            {"dense_layers = 1", "dense_layers = -1", "t.toml:2", "dense_layers", "-1"},
                            {"dense_layers = 1", "dense_layers = 5", "t.toml:2", "dense_layers", "5"},
                            {"token = 4e-8", "token = -4e-8", "t.toml:5", "expert.token", "-4e-08"},
                            {"token = 4e-8", "token = \"4e-8\"", "t.toml:5", "expert.token", "string"},
                            {"active = 8e-6", "active = nan", "t.toml:6", "expert.active", "nan"},
                            {"active = 8e-6", "active = 2e6", "t.toml:6", "expert.active", "2"},
                            {"token = 16e-8", "token = -1", "t.toml:9", "all_to_all.token", "-1"},
                            {"fixed = 32e-6", "fixed = inf", "t.toml:10", "all_to_all.fixed", "inf"},
                            {"row = 1e-3", "row = -1", "t.toml:13", "fixed.row", "-1"},
                            {"step = 2e-2", "step = true", "t.toml:14", "fixed.step", "true"},
                            {"layer = 4e-5", "layer = -1", "t.toml:15", "fixed.layer", "-1"},
                            {"forward_share = 0.25", "forward_share = 1.5", "t.toml:16", "fixed.forward_share", "1.5"},
                            {"layers = 3", "layers = 0", "t.toml:20", "stage[0].layers", "0"},
                            {"layers = 3", "layers = 10001", "t.toml:20", "stage[0].layers", "10001"},
                            {"layers = 3", "layers = 3.5", "t.toml:20", "stage[0].layers", "3.5"},
                            {"token = 12e-6", "token = -12e-6", "t.toml:21", "stage[0].token", "-1.2e-05"},
                            {"pair = 24e-9", "pair = [1]", "t.toml:22", "stage[0].pair", "a list"},
                            {"name = \"full\"", "name = 3", "t.toml:19", "stage[0].name", "3"}}) {
    SCOPED_TRACE(instead);
    EXPECT_THAT(said(with(line, instead)),
                AllOf(StartsWith(where), HasSubstr(key), HasSubstr(found), HasSubstr("wanted")));
  }
  EXPECT_THAT(said(with("\nlayers = 1\n", "\nlayers = 10000\n")),
              AllOf(StartsWith("t.toml"), HasSubstr("stage"), HasSubstr("10003 layers"), HasSubstr("at most 10000")));
}

TEST(TimingFile, refuses_to_do_without_what_it_needs) {
  struct Missing {
    const char *line, *key;
  };
  for (const auto& [line, key] : std::vector<Missing>{{"token = 4e-8\n", "expert.token"},
                                                      {"name = \"full\"\n", "name"},
                                                      {"layers = 3\n", "layers"},
                                                      {"token = 12e-6\n", "token"},
                                                      {"pair = 24e-9\n", "pair"}}) {
    SCOPED_TRACE(line);
    EXPECT_THAT(said(with(line, "")), AllOf(StartsWith("t.toml"), HasSubstr(key), HasSubstr("missing, wanted")));
  }
  EXPECT_THAT(said(""), AllOf(StartsWith("t.toml"), HasSubstr("expert"), HasSubstr("missing, wanted")));
  EXPECT_THAT(said("[expert]\ntoken = 1\n"), AllOf(StartsWith("t.toml"), HasSubstr("stage"), HasSubstr("missing")));
  EXPECT_THAT(said("stage = []\n[expert]\ntoken = 1\n"), AllOf(StartsWith("t.toml"), HasSubstr("stage")));
  EXPECT_THAT(said(with("name = \"full\"", "name = \"\"")), HasSubstr("name"));
}

TEST(TimingFile, refuses_keys_that_it_does_not_know_and_lists_those_that_it_does) {
  struct Unknown {
    const char *line, *more, *known;
  };
  for (const auto& [line, more, known] : std::vector<Unknown>{{"tile = 64", "tile = 64\nspeed = 1", "dense_layers"},
                                                              {"token = 4e-8", "token = 4e-8\nspeed = 1", "active"},
                                                              {"fixed = 32e-6", "fixed = 1\nspeed = 1", "token"},
                                                              {"row = 1e-3", "row = 1\nspeed = 1", "forward_share"},
                                                              {"layers = 3", "layers = 3\nspeed = 1", "pair"}}) {
    SCOPED_TRACE(line);
    EXPECT_THAT(said(with(line, more)), AllOf(StartsWith("t.toml:"), HasSubstr("speed"), HasSubstr(known)));
  }
}

TEST(Interleave, mixes_kinds_evenly) {
  const auto order = [](const std::vector<std::int64_t>& counts) { return interleave(counts); };
  EXPECT_THAT(order({3, 1}), ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(order({1, 3}), ElementsAre(1, 0, 1, 1));
  EXPECT_THAT(order({2, 2}), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(order({3}), ElementsAre(0, 0, 0));
  EXPECT_TRUE(order({}).empty());
  EXPECT_THAT(order({0, 2, 0}), ElementsAre(1, 1));
  EXPECT_THAT(order({1, 1, 1}), ElementsAre(0, 1, 2));
}

TEST(Interleave, is_never_a_whole_layer_off_its_share_of_two_kinds) {
  for (std::int64_t a = 0; a <= 12; ++a) {
    for (std::int64_t b = 0; b <= 12; ++b) {
      const auto order = interleave(std::vector{a, b});
      ASSERT_EQ(order.size(), static_cast<std::size_t>(a + b));
      std::int64_t of_a = 0;
      for (std::size_t n = 0; n < order.size(); ++n) {
        of_a += order[n] == 0 ? 1 : 0;
        EXPECT_LT(std::abs(of_a * (a + b) - static_cast<std::int64_t>(n + 1) * a), a + b) << a << " and " << b;
      }
      EXPECT_EQ(of_a, a);
    }
  }
}

}  // namespace
}  // namespace routepack
