// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/hash.h"
#include "routepack/error.h"
#include "routepack/placement.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::HasSubstr;
using testing::refusal;
using ::testing::StartsWith;

class PlacementFile : public ::testing::Test {
 protected:
  PlacementFile() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(::testing::TempDir()) / (std::string("placement_") + test->name() + ".json");
  }
  ~PlacementFile() override { std::filesystem::remove(path_); }

  void write(const std::string& text) const { std::ofstream(path_) << text; }
  [[nodiscard]] std::string read() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  /// What follows the file's name in the message.
  template <class Exception = FormatError>
  [[nodiscard]] std::string said(const std::string& text) const {
    write(text);
    const std::string message = refusal<Exception>([&] { Placement::load(path_); });
    EXPECT_THAT(message, StartsWith(path_.string() + ": "));
    return message.substr(std::min(message.size(), path_.string().size() + 2));
  }

  std::filesystem::path path_;
};

Placement shuffled(std::uint64_t seed, int layers, int experts, int ranks) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<ExpertId>> maps;
  for (int l = 0; l < layers; ++l) {
    auto& map = maps.emplace_back();
    for (int e = 0; e < experts; ++e) map.emplace_back(e);
    std::shuffle(map.begin(), map.end(), random);
  }
  return Placement::from_maps(ranks, maps);
}

TEST_F(PlacementFile, reads_back_equal_what_it_wrote) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const Placement placement = shuffled(seed, 1 + static_cast<int>(seed), 12, 4);
    placement.save(path_, 7);
    EXPECT_EQ(Placement::load(path_), placement);
  }
}

TEST_F(PlacementFile, has_a_line_per_layer) {
  Placement::identity(2, 4, 2).save(path_, 3);
  EXPECT_EQ(read(),
            "{\n  \"format\": \"routepack.placement/1\",\n  \"ep\": 2,\n  \"layers\": 2,\n"
            "  \"physical_to_logical\": [\n    [0, 1, 2, 3],\n    [0, 1, 2, 3]\n  ],\n  \"epoch\": 3,\n"
            "  \"fingerprint\": \"" +
                Placement::identity(2, 4, 2).fingerprint() + "\"\n}\n");
}

TEST_F(PlacementFile, fingerprint_is_over_sizes_and_maps) {
  Xxh3 hash;
  for (const std::uint64_t size : {2U, 1U, 4U}) hash.value(size);
  for (const std::int32_t expert : {3, 0, 2, 1}) hash.value(expert);
  const Placement placement = Placement::from_maps(2, {{ExpertId(3), ExpertId(0), ExpertId(2), ExpertId(1)}});
  EXPECT_EQ(placement.fingerprint(), hash.digest());
  EXPECT_NE(placement.fingerprint(), Placement::identity(1, 4, 2).fingerprint());
  EXPECT_NE(Placement::identity(1, 4, 4).fingerprint(), Placement::identity(1, 4, 2).fingerprint());
}

TEST_F(PlacementFile, reads_only_ep_and_maps_of_a_plan_file) {
  write(R"({"format": "routepack.plan/1", "topology": {"ep": 2}, "physical_to_logical": [[1, 0]], "layout": 7})");
  EXPECT_EQ(Placement::load(path_).slot_of(LayerId(0), ExpertId(1)), 0);
}

TEST_F(PlacementFile, does_without_what_it_can_compute) {
  write(R"({"format": "routepack.placement/1", "ep": 2, "physical_to_logical": [[1, 0]], "note": null})");
  EXPECT_EQ(Placement::load(path_).ranks(), 2);
}

TEST_F(PlacementFile, refuses_a_fingerprint_of_other_maps) {
  EXPECT_THAT(said(R"({"format": "routepack.placement/1", "ep": 1, "physical_to_logical": [[0, 1]],
                       "fingerprint": "xxh3:0000000000000000"})"),
              StartsWith("fingerprint: found the string \"xxh3:0000000000000000\", wanted \"xxh3:"));
}

TEST_F(PlacementFile, refuses_another_number_of_layers_than_it_states) {
  EXPECT_EQ(said(R"({"format": "routepack.placement/1", "ep": 1, "layers": 2, "physical_to_logical": [[0, 1]]})"),
            "layers: found 2, wanted 1, the length of physical_to_logical");
}

TEST_F(PlacementFile, refuses_another_format_or_version) {
  EXPECT_THAT(said(R"({"format": "routepack.manifest/1"})"), StartsWith("format: found the string"));
  EXPECT_THAT(said(R"({"format": "routepack.placement/2"})"),
              StartsWith("format: found version 2 of routepack.placement"));
  EXPECT_THAT(said(R"({"format": "routepack.plan/9"})"), StartsWith("format: found version 9 of routepack.plan"));
  EXPECT_EQ(said(R"({"ep": 2})"), "key \"format\" is missing");
}

TEST_F(PlacementFile, refuses_wrong_types_and_missing_keys) {
  EXPECT_EQ(said(R"({"format": "routepack.placement/1", "ep": 1})"), "key \"physical_to_logical\" is missing");
  EXPECT_EQ(said(R"({"format": "routepack.placement/1", "physical_to_logical": [[0]]})"), "key \"ep\" is missing");
  EXPECT_EQ(said(R"({"format": "routepack.placement/1", "ep": 1.0, "physical_to_logical": [[0]]})"),
            "ep: found the number 1.0, wanted an integer from 1 to 2147483647");
  EXPECT_EQ(said(R"({"format": "routepack.placement/1", "ep": 1, "physical_to_logical": [[0, "1"]]})"),
            "physical_to_logical[0][1]: found the string \"1\", wanted an integer from 0 to 2147483647");
  EXPECT_EQ(said(R"({"format": "routepack.placement/1", "ep": 1, "physical_to_logical": [[0]], "epoch": -1})"),
            "epoch: found the number -1, wanted an integer from 0 to 9223372036854775807");
  EXPECT_EQ(said(R"({"format": "routepack.plan/1", "physical_to_logical": [[0]]})"), "key \"topology\" is missing");
}

TEST_F(PlacementFile, refuses_maps_that_are_no_permutations) {
  EXPECT_EQ(said<InvalidInput>(R"({"format": "routepack.placement/1", "ep": 1, "physical_to_logical": [[0, 0]]})"),
            "physical_to_logical[0]: expert 0 occurs twice (slots 0 and 1)");
}

TEST_F(PlacementFile, refuses_a_negative_epoch_and_writes_nothing) {
  EXPECT_EQ(refusal<InvalidInput>([&] { Placement::identity(1, 2, 1).save(path_, -1); }),
            "placement: epoch: found -1, wanted at least 0");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace routepack
