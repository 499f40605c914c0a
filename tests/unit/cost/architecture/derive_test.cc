// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "routepack/device.h"
#include "routepack/error.h"
#include "routepack/model_cost.h"
#include "support/refusal.h"
#include "unit/cost/architecture/shapes.h"

namespace routepack {
namespace {

using ::testing::HasSubstr;
using testing::refusal;
using testing::shape_of;
using testing::small_shape;

const char* const kDevice = R"(name = "test"
peak_tflops = 100.0
memory_gbytes_per_second = 2000.0
[reached]
dense = 0.8
grouped = 0.5
attention = 0.4
linear_attention = 0.1
[links]
near_gbytes_per_second = 450.0
near_reached = 0.8
far_gbytes_per_second = 50.0
far_reached = 0.9
)";

AttentionShape small_attention() {
  return {"full", GroupedAttention{.heads = 2, .kv_heads = 1, .head_dim = 3}};
}

// Forward: a routed token takes 2·3·8·2 = 96 FLOP; a token 2·(2·144 + 2·32 + 128) = 960 on the dense side; t² takes 24.
TEST(DerivedCost, counts_tokens_and_pairs_in_routed_tokens_per_cap) {
  const DerivedCost derived = derive_cost(small_shape(small_attention()), {.capacity = 100}, {.backward = false});
  EXPECT_EQ(derived.unit_flops, 96.0);
  EXPECT_EQ(derived.unit_seconds, 0.0);
  EXPECT_EQ(derived.unit_bytes, 2 * 8 * 2.0);
  ASSERT_EQ(derived.cost.stages().size(), 1U);
  EXPECT_EQ(derived.cost.stages()[0].name, "full");
  EXPECT_DOUBLE_EQ(derived.cost.stages()[0].alpha, 960.0 / 96.0);
  EXPECT_DOUBLE_EQ(derived.cost.stages()[0].beta, 100 * 24.0 / 96.0);
  EXPECT_EQ(derived.cost.expert_weight(LayerId(0)), 1.0);
}

// The objective of one cell with one sample of t tokens, times C, is the sample's work in routed tokens.
TEST(DerivedCost, makes_the_objective_the_work_of_a_cell) {
  const ModelShape shape = shape_of("gpt-oss-20b");
  constexpr double kCap = 4096.0;
  const DerivedCost derived = derive_cost(shape, {.capacity = 4096});
  double objective = 0.0;
  for (const Stage& stage : derived.cost.stages()) objective += stage.alpha * 1.0 + stage.beta * 1.0;  // t = C
  const double routed = static_cast<double>(shape.moe_layers() * shape.top_k);
  EXPECT_NEAR((objective + routed) * derived.unit_flops * kCap, flops_per_token(shape, 4096) * kCap,
              1e-9 * kCap * 1e12);
}

TEST(DerivedCost, divides_cells_by_tp_and_cp_and_experts_by_etp) {
  const ModelShape shape = small_shape(small_attention());
  const Stage whole = derive_cost(shape, {.capacity = 100}).cost.stages()[0];
  const DerivedCost split = derive_cost(shape, {.capacity = 100, .tp = 4, .cp = 2, .etp = 2});
  EXPECT_DOUBLE_EQ(split.cost.stages()[0].alpha, whole.alpha * 2 / 8);
  EXPECT_DOUBLE_EQ(split.cost.stages()[0].beta, whole.beta * 2 / 8);
  EXPECT_EQ(split.unit_flops, derive_cost(shape, {.capacity = 100}).unit_flops / 2);
}

TEST(DerivedCost, weighs_work_by_the_rates_of_a_device) {
  const Device device = Device::parse(kDevice, "d.toml");
  const ModelShape shape = small_shape(small_attention());
  const DerivedCost derived = derive_cost(shape, {.capacity = 100}, {.backward = false}, &device);
  EXPECT_DOUBLE_EQ(derived.unit_seconds, 96.0 / 50e12);
  EXPECT_DOUBLE_EQ(derived.cost.stages()[0].alpha, 960.0 / 80e12 / derived.unit_seconds);
  EXPECT_DOUBLE_EQ(derived.cost.stages()[0].beta, 100 * 24.0 / 40e12 / derived.unit_seconds);
}

TEST(DerivedCost, refuses_sizes_below_one) {
  const ModelShape shape = small_shape(small_attention());
  EXPECT_THAT(refusal<InvalidInput>([&] { derive_cost(shape, {.capacity = 0}); }), HasSubstr("capacity: found 0"));
  EXPECT_THAT(refusal<InvalidInput>([&] { derive_cost(shape, {.capacity = 1, .etp = -1}); }), HasSubstr("etp"));
}

TEST(Device, reads_rates_as_reached) {
  const Device device = Device::parse(kDevice, "d.toml");
  EXPECT_EQ(device.name, "test");
  EXPECT_EQ(device.peak_flops, 100e12);
  EXPECT_DOUBLE_EQ(device.dense_flops, 80e12);
  EXPECT_DOUBLE_EQ(device.grouped_flops, 50e12);
  EXPECT_DOUBLE_EQ(device.attention_flops, 40e12);
  EXPECT_DOUBLE_EQ(device.linear_flops, 10e12);
  EXPECT_EQ(device.memory_rate, 2e12);
  EXPECT_DOUBLE_EQ(device.near_rate, 360e9);
  EXPECT_DOUBLE_EQ(device.far_rate, 45e9);
}

std::string without(const std::string& line) {
  std::string text = kDevice;
  const auto at = text.find(line);
  EXPECT_NE(at, std::string::npos) << line;
  return text.erase(at, text.find('\n', at) + 1 - at);
}

TEST(Device, refuses_missing_unknown_and_impossible_values) {
  const auto said = [](const std::string& toml) {
    return refusal<FormatError>([&] { Device::parse(toml, "d.toml"); });
  };
  for (const char* line : {"name", "peak_tflops", "memory_gbytes", "dense", "grouped", "attention =",
                           "linear_attention", "near_gbytes", "near_reached", "far_gbytes", "far_reached"}) {
    EXPECT_THAT(said(without(line)), HasSubstr("missing")) << line;
  }
  EXPECT_THAT(said(std::string("speed = 1.0\n") + kDevice), HasSubstr("speed"));
  std::string text = kDevice;
  EXPECT_THAT(said(text.replace(text.find("dense = 0.8"), 11, "dense = 1.1")), HasSubstr("dense"));
  EXPECT_THAT(said("name = \"x\"\n"), HasSubstr("reached"));
}

TEST(Device, examples_can_be_read_and_are_what_their_data_sheets_say) {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ROUTEPACK_SOURCE_DIR "/examples/devices")) {
    SCOPED_TRACE(entry.path());
    const Device device = Device::load(entry.path());
    EXPECT_GE(device.peak_flops, 148e12);
    EXPECT_LE(device.peak_flops, 2250e12);
    EXPECT_LT(device.far_rate, device.near_rate);
    ++found;
  }
  EXPECT_EQ(found, 5);
}

}  // namespace
}  // namespace routepack
