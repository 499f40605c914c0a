// SPDX-License-Identifier: Apache-2.0
// Parameters and floating point operations, against arithmetic written out and against published totals.
#include <gtest/gtest.h>

#include "routepack/model_cost.h"
#include "unit/cost/architecture/shapes.h"

namespace routepack {
namespace {

using testing::shape_of;
using testing::small_shape;

constexpr double kPercent = 0.01;

void expect_within(double found, double wanted, double share) {
  EXPECT_NEAR(found, wanted, share * wanted);
}

double activated(const std::string& name) {
  return count_parameters(shape_of(name)).activated;
}

double total(const std::string& name) {
  return count_parameters(shape_of(name)).total;
}

double embedding(const std::string& name) {
  return count_parameters(shape_of(name)).embedding;
}

// Published totals (model cards and reports). «Activated» is published with the embedding table and the head, with the
// head alone, or without both; each line says which.
TEST(Parameters, are_what_the_cards_of_the_models_say) {
  expect_within(total("qwen3-30b-a3b"), 30.5e9, kPercent);
  expect_within(activated("qwen3-30b-a3b") + embedding("qwen3-30b-a3b"), 3.3e9, 2 * kPercent);
  expect_within(total("qwen3-235b-a22b"), 235e9, kPercent);
  expect_within(activated("qwen3-235b-a22b") + embedding("qwen3-235b-a22b"), 22e9, 2 * kPercent);
  expect_within(total("qwen3-next-80b-a3b"), 80e9, kPercent);
  expect_within(total("deepseek-v3"), 671e9, 0.1 * kPercent);
  expect_within(activated("deepseek-v3"), 37e9, 2 * kPercent);  // with the head
  expect_within(total("kimi-k2"), 1.04e12, 2 * kPercent);
  expect_within(activated("kimi-k2") + embedding("kimi-k2"), 32.6e9, 2 * kPercent);
  expect_within(activated("glm-4.5-air") - embedding("glm-4.5-air"), 12e9, 2 * kPercent);  // without both
  expect_within(total("gpt-oss-20b"), 20.91e9, 0.1 * kPercent);
  expect_within(activated("gpt-oss-20b"), 3.61e9, 0.5 * kPercent);  // with the head
  expect_within(total("gpt-oss-120b"), 116.83e9, 0.1 * kPercent);
  expect_within(activated("gpt-oss-120b"), 5.13e9, 0.5 * kPercent);
  expect_within(total("mixtral-8x7b"), 46.7e9, 0.1 * kPercent);
  expect_within(activated("mixtral-8x7b") + embedding("mixtral-8x7b"), 12.9e9, kPercent);
  expect_within(total("olmoe-1b-7b"), 6.92e9, 0.1 * kPercent);
  expect_within(activated("olmoe-1b-7b") + embedding("olmoe-1b-7b"), 1.28e9, 0.5 * kPercent);
  expect_within(total("minimax-m2"), 230e9, kPercent);
  expect_within(total("minimax-text-01"), 456e9, 0.1 * kPercent);
  expect_within(activated("minimax-text-01") - embedding("minimax-text-01"), 45.9e9, 0.1 * kPercent);  // without both
  expect_within(activated("ling-mini-2.0") - embedding("ling-mini-2.0"), 789e6, 0.1 * kPercent);       // without both
  expect_within(activated("ling-mini-2.0") + embedding("ling-mini-2.0"), 1.43e9, kPercent);
  expect_within(total("ling-3.0-flash"), 124e9, kPercent);
  expect_within(activated("ling-3.0-flash"), 5.1e9, kPercent);  // with the head
  expect_within(count_parameters(model_shape("glm-5.2")).total, 744e9, kPercent);
  expect_within(count_parameters(model_shape("glm-5.2")).activated, 40e9, kPercent);  // with the head
}

// Per layer: q 2048·4096, k and v 2048·512 each, o 4096·2048, router 2048·128, 8 experts of 3·2048·768.
TEST(Flops, of_a_token_in_qwen3_30b_are_two_per_weight_and_the_pairs) {
  const double attention = 2048.0 * 4096 + 2 * 2048.0 * 512 + 4096.0 * 2048;
  const double layer = attention + 2048.0 * 128 + 8 * 3 * 2048.0 * 768;
  const double head = 2048.0 * 151936;
  const double weights = 48 * layer + head;
  // Scores and sums: 2 · 2 · 4096 channels per pair, t/2 pairs a token.
  const double pairs = 48 * 4 * 4096.0 * (4096.0 / 2);
  EXPECT_DOUBLE_EQ(flops_per_token(shape_of("qwen3-30b-a3b"), 4096, {.backward = false}), 2 * weights + pairs);
  EXPECT_NEAR(2 * weights, 2 * 3.04e9, 0.02e9);  // 3.04 billion: 3.35 less the embedding table
}

// One MLA layer: q 7168→1536→128·192, kv 7168→512+64 and 512→128·256, o 128·128→7168.
TEST(Flops, of_a_token_in_deepseek_v3_follow_the_ranks) {
  const double mla = 7168.0 * 1536 + 1536.0 * 128 * 192 + 7168.0 * 576 + 512.0 * 128 * 256 + 128.0 * 128 * 7168;
  EXPECT_EQ(mla, 187'105'280.0);
  const double dense = 3 * 7168.0 * 18432;
  const double moe = 7168.0 * 256 + 9 * 3 * 7168.0 * 2048;
  const double weights = 61 * mla + 3 * dense + 58 * moe + 7168.0 * 129280;
  const double pairs = 61 * 2 * 128.0 * (192 + 128) * 2048.0;  // t/2 = 2048
  EXPECT_DOUBLE_EQ(flops_per_token(shape_of("deepseek-v3"), 4096, {.backward = false}), 2 * weights + pairs);
}

// 24 layers, every other one sees 128 keys: at t = 8192 on average 128 − 128²/(2·8192) = 127.
TEST(Flops, of_a_token_in_gpt_oss_20b_count_the_window) {
  const double attention = 2880.0 * 4096 + 2 * 2880.0 * 512 + 4096.0 * 2880;
  const double layer = attention + 2880.0 * 32 + 4 * 3 * 2880.0 * 2880;
  const double weights = 24 * layer + 2880.0 * 201088;
  const double keys = 12 * 4096.0 + 12 * 127.0;
  EXPECT_DOUBLE_EQ(flops_per_token(shape_of("gpt-oss-20b"), 8192, {.backward = false}),
                   2 * weights + 4 * 4096.0 * keys);
}

TEST(Flops, of_a_token_in_mixtral_olmoe_and_minimax_m2_are_two_per_weight_and_the_pairs) {
  const auto by_hand = [](double layers, double hidden, double q, double kv, double router, double experts,
                          double vocab, double tokens) {
    const double weights = layers * (2 * hidden * q + 2 * hidden * kv + hidden * router + experts) + hidden * vocab;
    return 2 * weights + layers * 4 * q * tokens / 2;
  };
  EXPECT_DOUBLE_EQ(flops_per_token(shape_of("mixtral-8x7b"), 1024, {.backward = false}),
                   by_hand(32, 4096, 4096, 1024, 8, 2 * 3 * 4096.0 * 14336, 32000, 1024));
  EXPECT_DOUBLE_EQ(flops_per_token(shape_of("olmoe-1b-7b"), 1024, {.backward = false}),
                   by_hand(16, 2048, 2048, 2048, 64, 8 * 3 * 2048.0 * 1024, 50304, 1024));
  EXPECT_DOUBLE_EQ(flops_per_token(shape_of("minimax-m2"), 1024, {.backward = false}),
                   by_hand(62, 3072, 6144, 1024, 256, 8 * 3 * 3072.0 * 1536, 200064, 1024));
}

// Two layers: router 8·4 and attention each, the head 8·16 once.
StageWork only_stage(const AttentionShape& attention, std::int64_t longest,
                     const Passes& passes = {.backward = false}) {
  const auto stages = stage_work(small_shape(attention), longest, passes);
  EXPECT_EQ(stages.size(), 1U);
  EXPECT_EQ(stages.at(0).layers, 2);
  return stages.at(0);
}
constexpr double kRoutersAndHead = 2 * (2 * 8 * 4 + 8 * 16);

// Queries 8·(2·3), keys and values 8·3 each, output 6·8: 48 + 48 + 48. Pairs: (2·6 + 2·6)/2 = 12 per t², two layers.
TEST(StageWork, of_grouped_attention_by_hand) {
  const AttentionShape grouped{"full", GroupedAttention{.heads = 2, .kv_heads = 1, .head_dim = 3}};
  const StageWork work = only_stage(grouped, 100);
  EXPECT_EQ(work.token.dense, 2 * 2 * 144 + kRoutersAndHead);
  EXPECT_EQ(work.token.attention, 0.0);
  EXPECT_EQ(work.pair.attention, 2 * 12.0);
  EXPECT_EQ(work.pair.dense + work.pair.linear + work.token.linear, 0.0);
}

TEST(StageWork, of_a_gate_adds_its_projection) {
  GroupedAttention gated{.heads = 2, .kv_heads = 1, .head_dim = 3, .output_gate = true};
  EXPECT_EQ(only_stage({"full", gated}, 100).token.dense, 2 * 2 * (144 + 48) + kRoutersAndHead);
}

// A window of 10 in samples of up to 100: 10 − 10²/200 = 9.5 keys a token, 24 FLOP each, two layers.
TEST(StageWork, of_a_sliding_window_is_linear_below_the_longest_sample_and_quadratic_from_there) {
  const GroupedAttention sliding{.heads = 2, .kv_heads = 1, .head_dim = 3, .window = 10};
  const StageWork narrow = only_stage({"sliding", sliding}, 100);
  EXPECT_EQ(narrow.token.attention, 2 * 24 * 9.5);
  EXPECT_EQ(narrow.pair.attention, 0.0);
  const StageWork wide = only_stage({"sliding", sliding}, 10);
  EXPECT_EQ(wide.token.attention, 0.0);
  EXPECT_EQ(wide.pair.attention, 2 * 12.0);
}

// q 8→4→2·(3+1), kv 8→5+1 and 5→2·(3+2), o 2·2→8: 32+32 + 48 + 50 + 32. Pairs: 2·8 + 2·4 over 2.
TEST(StageWork, of_latent_attention_by_hand) {
  LatentAttention latent{.heads = 2, .q_rank = 4, .kv_rank = 5, .qk_nope = 3, .qk_rope = 1, .v_dim = 2};
  const StageWork work = only_stage({"mla", latent}, 100);
  EXPECT_EQ(work.token.dense, 2 * 2 * (32 + 32 + 48 + 50 + 32) + kRoutersAndHead);
  EXPECT_EQ(work.pair.attention, 2 * 12.0);
  latent.q_rank = 0;
  latent.gate_width = 2;
  EXPECT_EQ(only_stage({"mla", latent}, 100).token.dense, 2 * 2 * (64 + 48 + 50 + 32 + 16) + kRoutersAndHead);
}

// The indexer, 3 heads of 2: 4·6 + 8·(2+3) = 64 weights, 2·6 per pair over 2. Of 10 chosen keys a head reads 5 + 1
// channels and sums 5: 2·2·6 + 2·2·5 = 44 FLOP, 9.5 keys a token.
TEST(StageWork, of_sparse_attention_scores_all_pairs_and_reads_the_chosen) {
  LatentAttention sparse{.heads = 2, .q_rank = 4, .kv_rank = 5, .qk_nope = 3, .qk_rope = 1, .v_dim = 2};
  const double dense = only_stage({"mla", sparse}, 100).token.dense;
  sparse.indexer = Indexer{.heads = 3, .dim = 2, .top_k = 10};
  const StageWork own = only_stage({"dsa", sparse}, 100);
  EXPECT_EQ(own.token.dense, dense + 2 * 2 * 64);
  EXPECT_EQ(own.token.attention, 2 * 44 * 9.5);
  EXPECT_EQ(own.pair.attention, 2 * 6.0);
  sparse.indexer->own = false;
  const StageWork shared = only_stage({"dsa", sparse}, 100);
  EXPECT_EQ(shared.token.dense, dense);
  EXPECT_EQ(shared.token.attention, own.token.attention);
  EXPECT_EQ(shared.pair.attention, 0.0);
}

// q, k 8·4 each, v 8·6, decay 8·3, gate 8·6, update rate 8·3, output 6·8. Per value head: 6·2·2 + 64·1.5·(2+2) + 64²;
// convolutions 2·4·(4+4+6).
TEST(StageWork, of_gated_deltanet_by_hand) {
  const DeltaAttention delta{.key_heads = 2,
                             .value_heads = 3,
                             .key_dim = 2,
                             .value_dim = 2,
                             .conv_width = 4,
                             .decay_width = 3,
                             .gate_rank = 0};
  const StageWork work = only_stage({"gated_deltanet", delta}, 100);
  EXPECT_EQ(work.token.dense, 2 * 2 * (32 + 32 + 48 + 24 + 48 + 24 + 48) + kRoutersAndHead);
  EXPECT_EQ(work.token.linear, 2 * (3 * (24 + 384 + 4096) + 112));
  EXPECT_EQ(work.pair, Flops{});
}

// 3 heads of 2: q, k, v 8·6 each, decay and gate through rank 2: 2·(8+6) each, update rate 8·3, output 6·8.
TEST(StageWork, of_kimi_delta_attention_takes_low_rank_gates_into_account) {
  DeltaAttention delta{.key_heads = 3,
                       .value_heads = 3,
                       .key_dim = 2,
                       .value_dim = 2,
                       .conv_width = 4,
                       .decay_width = 6,
                       .gate_rank = 2};
  EXPECT_EQ(only_stage({"kda", delta}, 100).token.dense, 2 * 2 * (3 * 48 + 2 * 28 + 24 + 48) + kRoutersAndHead);
  delta.gate_rank = 0;
  EXPECT_EQ(only_stage({"kda", delta}, 100).token.dense, 2 * 2 * (3 * 48 + 2 * 48 + 24 + 48) + kRoutersAndHead);
}

// 2 heads of 3 in blocks of 16: five projections 8·6; per head 4·9 + 2·16·3.
TEST(StageWork, of_lightning_attention_by_hand) {
  const StageWork work = only_stage({"lightning", LightningAttention{.heads = 2, .head_dim = 3, .block = 16}}, 100);
  EXPECT_EQ(work.token.dense, 2 * 2 * 5 * 48 + kRoutersAndHead);
  EXPECT_EQ(work.token.linear, 2 * 2 * (36 + 96));
  EXPECT_EQ(work.pair, Flops{});
}

TEST(StageWork, of_feed_forward_parts_is_in_the_stage_of_their_layer) {
  ModelShape shape = small_shape({"full", GroupedAttention{.heads = 1, .kv_heads = 1, .head_dim = 8}});
  shape.attentions.push_back({"other", GroupedAttention{.heads = 1, .kv_heads = 1, .head_dim = 8}});
  shape.layers = {{.attention = 0, .dense_width = 5}, {.attention = 1, .dense_width = 0}};
  shape.shared_width = 7;
  shape.shared_gate = true;
  const auto stages = stage_work(shape, 10, {.backward = false});
  ASSERT_EQ(stages.size(), 2U);
  EXPECT_EQ(stages[0].token.dense, 2 * (4 * 64 + 3 * 8 * 5));
  EXPECT_EQ(stages[1].token.dense, 2 * (4 * 64 + 8 * 4 + 3 * 8 * 7 + 8 + 8 * 16));  // the head ends the last layer
}

// Products with weights 3 or 4 times. Scores and sums: forward 2q + 2v, backward 6q + 4v: for q = v 3.5 or 4.5 times.
TEST(Passes, multiply_products_by_three_or_four_and_pairs_by_half_more) {
  const AttentionShape grouped{"full", GroupedAttention{.heads = 2, .kv_heads = 1, .head_dim = 3}};
  const StageWork forward = only_stage(grouped, 100);
  const StageWork training = only_stage(grouped, 100, {});
  const StageWork recomputing = only_stage(grouped, 100, {.recompute = true});
  EXPECT_EQ(training.token.dense, 3 * forward.token.dense);
  EXPECT_EQ(training.pair.attention, 3.5 * forward.pair.attention);
  EXPECT_EQ(recomputing.token.dense, 4 * forward.token.dense);
  EXPECT_EQ(recomputing.pair.attention, 4.5 * forward.pair.attention);
  const ModelShape shape = small_shape(grouped);
  EXPECT_EQ(routed_token_flops(shape, {.backward = false}), 2 * 3 * 8 * 2);
  EXPECT_EQ(routed_token_flops(shape), 3 * 2 * 3 * 8 * 2);
  EXPECT_EQ(routed_token_flops(shape, {.recompute = true}), 4 * 2 * 3 * 8 * 2);
}

TEST(Passes, cross_the_all_to_all_twice_each) {
  const ModelShape shape = small_shape({"full", GroupedAttention{.heads = 1, .kv_heads = 1, .head_dim = 8}});
  EXPECT_EQ(all_to_all_bytes(shape, {.backward = false}), 2 * 8 * 2.0);
  EXPECT_EQ(all_to_all_bytes(shape), 4 * 8 * 2.0);
  EXPECT_EQ(all_to_all_bytes(shape, {.recompute = true}, 1.0), 6 * 8 * 1.0);
}

TEST(Parameters, of_a_tied_head_count_the_table_once) {
  ModelShape shape = small_shape({"full", GroupedAttention{.heads = 1, .kv_heads = 1, .head_dim = 8}});
  const ParameterCount apart = count_parameters(shape);
  shape.tied_head = true;
  const ParameterCount tied = count_parameters(shape);
  EXPECT_EQ(apart.total - tied.total, 8 * 16.0);
  EXPECT_EQ(apart.activated, tied.activated);
  // Two layers of 4·64 attention, two norms, router and 4 experts of 3·8·2; a last norm; table and head.
  EXPECT_EQ(apart.total, 2 * (256 + 16 + 32 + 4 * 48) + 8 + 2 * 128);
  EXPECT_EQ(apart.activated, 2 * (256 + 16 + 32 + 48) + 8 + 128);
}

}  // namespace
}  // namespace routepack
