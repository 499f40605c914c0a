// SPDX-License-Identifier: Apache-2.0
// What things take, against arithmetic written out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "routepack/error.h"
#include "routepack/simulate.h"
#include "support/refusal.h"
#include "unit/cost/architecture/shapes.h"

namespace routepack {
namespace {

using ::testing::HasSubstr;
using testing::refusal;
using testing::small_shape;

Device device() {
  return {.name = "test",
          .peak_flops = 100e12,
          .dense_flops = 80e12,
          .grouped_flops = 50e12,
          .attention_flops = 40e12,
          .linear_flops = 10e12,
          .memory_rate = 2e12,
          .near_rate = 360e9,
          .far_rate = 45e9};
}

/// A dense layer of inner width 5, then an MoE layer of 4 experts of width 2; hidden 8, vocabulary 16, two heads of 3
/// and one for keys and values.
ModelShape shape() {
  ModelShape shape = small_shape({"full", GroupedAttention{.heads = 2, .kv_heads = 1, .head_dim = 3}});
  shape.layers = {{.attention = 0, .dense_width = 5}, {}};
  return shape;
}

constexpr ModelSpread kSpread{
    .capacity = 100, .dp = 8, .ep = 4, .tp = 2, .cp = 1, .etp = 1, .pp = 2, .ranks_per_node = 2, .tile = 16};

void expect_times(const PerPass& found, double forward, double backward) {
  EXPECT_DOUBLE_EQ(found.forward, forward);
  EXPECT_DOUBLE_EQ(found.backward, backward);
}

// Attention has 8·6 + 2·8·3 + 6·8 = 144 weights; the dense layer 3·8·5 = 120 more, the MoE layer a router of 8·4 = 32.
// A weight takes 2 FLOP forward and 4 backward, shared by two ranks of a cell. t² takes (2·6 + 2·6)/2 = 12 forward and
// (6·6 + 4·6)/2 = 30 backward.
TEST(TimeModel, counts_the_dense_side_of_every_layer_and_the_head) {
  const StepTiming timing = time_model(shape(), device(), kSpread);
  ASSERT_EQ(timing.layers.size(), 3U);
  EXPECT_EQ(timing.layers[0].stage, "full");
  EXPECT_FALSE(timing.layers[0].routed);
  expect_times(timing.layers[0].token, 2 * 264 / 80e12 / 2, 4 * 264 / 80e12 / 2);
  expect_times(timing.layers[0].pair, 12 / 40e12 / 2, 30 / 40e12 / 2);
  EXPECT_EQ(timing.layers[1].stage, "full");
  EXPECT_TRUE(timing.layers[1].routed);
  expect_times(timing.layers[1].token, 2 * 176 / 80e12 / 2, 4 * 176 / 80e12 / 2);
  expect_times(timing.layers[1].pair, 12 / 40e12 / 2, 30 / 40e12 / 2);
  EXPECT_EQ(timing.layers[1].expert_weight, 1.0);
  EXPECT_EQ(timing.layers[2].stage, "head");
  EXPECT_FALSE(timing.layers[2].routed);
  expect_times(timing.layers[2].token, 2 * 128 / 80e12 / 2, 4 * 128 / 80e12 / 2);
  expect_times(timing.layers[2].pair, 0.0, 0.0);
}

TEST(TimeModel, shares_a_cell_over_tp_and_cp) {
  ModelSpread spread = kSpread;
  spread.tp = 4;
  spread.cp = 3;
  const StepTiming timing = time_model(shape(), device(), spread);
  expect_times(timing.layers[0].token, 2 * 264 / 80e12 / 12, 4 * 264 / 80e12 / 12);
  expect_times(timing.layers[1].pair, 12 / 40e12 / 12, 30 / 40e12 / 12);
  expect_times(timing.layers[2].token, 2 * 128 / 80e12 / 12, 4 * 128 / 80e12 / 12);
}

// A window of 50 tokens in samples of 100: a token sees 50 − 50²/200 = 37.5 keys, at 24 FLOP forward and 60 backward.
TEST(TimeModel, takes_sliding_windows_per_token) {
  ModelShape sliding = shape();
  std::get<GroupedAttention>(sliding.attentions[0].kind).window = 50;
  const LayerTiming layer = time_model(sliding, device(), kSpread).layers[1];
  expect_times(layer.token, (2 * 176 / 80e12 + 37.5 * 24 / 40e12) / 2, (4 * 176 / 80e12 + 37.5 * 60 / 40e12) / 2);
  expect_times(layer.pair, 0.0, 0.0);
}

// An expert has 3·8·2 = 48 weights. Reading them in 16 bits takes 96 bytes; backward reads and adds to gradients of 32.
TEST(TimeModel, counts_experts_and_the_reading_of_their_weights) {
  ModelSpread spread = kSpread;
  StepTiming timing = time_model(shape(), device(), spread);
  expect_times(timing.expert, 2 * 48 / 50e12, 4 * 48 / 50e12);
  expect_times(timing.floor, 48 * 2 / 2e12, 48 * (2 + 4 + 4) / 2e12);
  expect_times(timing.active, 0.0, 0.0);
  EXPECT_EQ(timing.tile, 16);
  spread.etp = 2;
  timing = time_model(shape(), device(), spread);
  expect_times(timing.expert, 2 * 48 / 50e12 / 2, 4 * 48 / 50e12 / 2);
  expect_times(timing.floor, 48 * 2 / 2e12 / 2, 48 * (2 + 4 + 4) / 2e12 / 2);
}

// 8 values of 2 bytes to one of 4 ranks: itself with 1/4, its neighbour in a node of 2 with 1/4, another node with 1/2.
TEST(TimeModel, sends_routed_tokens_over_the_slower_of_both_links) {
  ModelSpread spread = kSpread;
  StepTiming timing = time_model(shape(), device(), spread);
  expect_times(timing.exchange, 16 * 0.5 / 45e9, 16 * 0.5 / 45e9);
  expect_times(timing.exchange_fixed, 0.0, 0.0);
  spread.ranks_per_node = 8;  // all 4 ranks in one node
  timing = time_model(shape(), device(), spread);
  expect_times(timing.exchange, 16 * 0.75 / 360e9, 16 * 0.75 / 360e9);
  spread.ep = 1;
  expect_times(time_model(shape(), device(), spread).exchange, 0.0, 0.0);
  Device even = device();
  even.far_rate = even.near_rate = 45e9;
  spread.ep = 4;
  spread.ranks_per_node = 3;  // 2/4 near, 1/4 far: near is the slower
  expect_times(time_model(shape(), even, spread).exchange, 16 * 0.5 / 45e9, 16 * 0.5 / 45e9);
}

// Weights outside experts: norms 8 + 2·2·8, head and embeddings 16·8 each, attention 2·144, dense 120, router 32: 736
// over tp·pp = 4 ranks, on 8 replicas. Experts: 4·48 over ep·pp = 8, on 16/4 replicas. A ring carries 6 bytes of each,
// less the own part; the optimizer touches 30 bytes of each parameter that it owns.
TEST(TimeModel, counts_gradients_and_the_optimizer) {
  const StepTiming timing = time_model(shape(), device(), kSpread);
  EXPECT_DOUBLE_EQ(timing.reduce, (184 * 6 * 7.0 / 8 + 24 * 6 * 3.0 / 4) / 45e9);
  EXPECT_DOUBLE_EQ(timing.optimizer, 30 * (184 / 8.0 + 24 / 4.0) / 2e12);

  ModelSpread small = kSpread;  // one node, one stage, nobody to reduce experts with
  small.dp = small.ep = 2;
  small.tp = small.pp = 1;
  const StepTiming near = time_model(shape(), device(), small);
  EXPECT_DOUBLE_EQ(near.reduce, 736 * 6 / 2.0 / 360e9);
  EXPECT_DOUBLE_EQ(near.optimizer, 30 * (736 / 2.0 + 96) / 2e12);
}

TEST(TimeModel, hands_tokens_over_between_stages_only) {
  ModelSpread spread = kSpread;
  EXPECT_DOUBLE_EQ(time_model(shape(), device(), spread).hand_over, 8 * 2 / 2.0 / 45e9);
  spread.ranks_per_node = 32;  // both stages of 16 devices in one node
  EXPECT_DOUBLE_EQ(time_model(shape(), device(), spread).hand_over, 8 * 2 / 2.0 / 360e9);
  spread.pp = 1;
  EXPECT_EQ(time_model(shape(), device(), spread).hand_over, 0.0);
}

TEST(TimeModel, passes_recomputation_on) {
  ModelSpread spread = kSpread;
  const StepTiming without = time_model(shape(), device(), spread);
  spread.recompute = true;
  StepTiming with = time_model(shape(), device(), spread);
  EXPECT_TRUE(with.recompute);
  with.recompute = false;
  EXPECT_EQ(with, without);  // the forward pass again is the timeline's business
}

// All layers and the head together are the work that the objective is derived from.
TEST(TimeModel, adds_up_to_the_work_of_a_token) {
  Device even = device();
  even.dense_flops = even.attention_flops = even.linear_flops = even.grouped_flops = 1e12;
  for (const char* name : {"gpt-oss-20b", "deepseek-v3", "qwen3.5-35b-a3b", "ling-3.0-flash", "minimax-text-01"}) {
    SCOPED_TRACE(name);
    const ModelShape model = testing::shape_of(name);
    const StepTiming timing = time_model(model, even, {.capacity = 4096});
    double seconds = static_cast<double>(model.moe_layers() * model.top_k) * timing.expert.sum();
    for (const LayerTiming& layer : timing.layers) seconds += layer.token.sum() + 4096 * layer.pair.sum();
    EXPECT_NEAR(seconds, flops_per_token(model, 4096) / 1e12, 1e-12 * seconds);
  }
}

TEST(TimeModel, refuses_sizes_below_one) {
  const std::vector<std::pair<std::string, void (*)(ModelSpread&)>> sizes = {
      {"capacity", [](ModelSpread& s) { s.capacity = 0; }},
      {"dp", [](ModelSpread& s) { s.dp = 0; }},
      {"ep", [](ModelSpread& s) { s.ep = 0; }},
      {"tp", [](ModelSpread& s) { s.tp = 0; }},
      {"cp", [](ModelSpread& s) { s.cp = 0; }},
      {"etp", [](ModelSpread& s) { s.etp = 0; }},
      {"pp", [](ModelSpread& s) { s.pp = 0; }},
      {"ranks per node", [](ModelSpread& s) { s.ranks_per_node = 0; }},
      {"tile", [](ModelSpread& s) { s.tile = 0; }}};
  for (const auto& [name, spoil] : sizes) {
    ModelSpread spread = kSpread;
    spoil(spread);
    EXPECT_EQ(refusal<InvalidInput>([&] { time_model(shape(), device(), spread); }),
              name + ": found 0, wanted at least 1");
  }
}

TEST(OfCost, deals_stages_to_layers_and_splits_both_passes) {
  const CostModel cost({{"kda", 6.0, 0.0}, {"mla", 5.0, 200.0}}, std::vector{1.0, 0.5, 2.0});
  const StepTiming timing = StepTiming::of_cost(cost, 100, 3, 1e-6, 0.25);
  ASSERT_EQ(timing.layers.size(), 3U);
  for (const std::size_t l : {0U, 2U}) {
    EXPECT_EQ(timing.layers[l].stage, "kda");
    EXPECT_TRUE(timing.layers[l].routed);
    expect_times(timing.layers[l].token, 0.25 * 3e-6, 0.75 * 3e-6);  // two of three layers
    expect_times(timing.layers[l].pair, 0.0, 0.0);
  }
  EXPECT_EQ(timing.layers[1].stage, "mla");
  expect_times(timing.layers[1].token, 0.25 * 5e-6, 0.75 * 5e-6);
  expect_times(timing.layers[1].pair, 0.25 * 2e-6, 0.75 * 2e-6);  // β/C
  expect_times(timing.expert, 0.25e-6, 0.75e-6);
  EXPECT_EQ(timing.layers[0].expert_weight, 1.0);
  EXPECT_EQ(timing.layers[1].expert_weight, 0.5);
  EXPECT_EQ(timing.layers[2].expert_weight, 2.0);
  StepTiming overheads = timing;  // none
  overheads.layers.clear();
  EXPECT_EQ(overheads, StepTiming{.expert = timing.expert});
}

TEST(OfCost, of_no_stage_has_experts_only) {
  const StepTiming timing = StepTiming::of_cost(CostModel({}, 2.0), 100, 4);
  ASSERT_EQ(timing.layers.size(), 4U);
  for (const LayerTiming& layer : timing.layers) EXPECT_EQ(layer, LayerTiming{.expert_weight = 2.0});
}

TEST(OfCost, refuses_what_it_cannot_deal) {
  const CostModel cost({{"a", 1.0, 0.0}, {"b", 1.0, 0.0}});
  EXPECT_THAT(refusal<InvalidInput>([&] { StepTiming::of_cost(cost, 100, 1); }),
              HasSubstr("found 2 stages, wanted at most as many as layers (1)"));
  EXPECT_THAT(refusal<InvalidInput>([&] { StepTiming::of_cost(cost, 100, 0); }), HasSubstr("layers: found 0"));
  EXPECT_THAT(refusal<InvalidInput>([&] { StepTiming::of_cost(cost, 0, 2); }), HasSubstr("capacity: found 0"));
  for (const double seconds :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(refusal<InvalidInput>([&] { StepTiming::of_cost(cost, 100, 2, seconds); }), HasSubstr("seconds"));
  }
  for (const double share : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(refusal<InvalidInput>([&] { StepTiming::of_cost(cost, 100, 2, 1.0, share); }),
                HasSubstr("forward share"));
  }
}

}  // namespace
}  // namespace routepack
