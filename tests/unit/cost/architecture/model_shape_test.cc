// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "routepack/error.h"
#include "routepack/generate.h"
#include "routepack/model_cost.h"
#include "support/refusal.h"
#include "unit/cost/architecture/shapes.h"

namespace routepack {
namespace {

using ::testing::AllOf;
using testing::config_text;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;
using testing::shape_of;
using testing::with;

std::string said(const std::string& json) {
  return refusal<InvalidInput>([&] { parse_model_shape(json, "config.json"); });
}

/// Layers per stage.
std::map<std::string, int> layers_of(const ModelShape& shape) {
  std::map<std::string, int> layers;
  for (const LayerShape& layer : shape.layers) ++layers[shape.attentions[layer.attention].stage];
  return layers;
}

using Layers = std::map<std::string, int>;

TEST(ModelShape, of_a_preset_is_the_shape_of_its_configuration) {
  for (const char* name : {"qwen3-30b-a3b", "qwen3-235b-a22b", "qwen3-next-80b-a3b", "qwen3.5-35b-a3b", "deepseek-v3",
                           "kimi-k2", "glm-4.5-air", "gpt-oss-20b", "gpt-oss-120b", "mixtral-8x7b", "olmoe-1b-7b",
                           "ling-mini-2.0", "ling-3.0-flash"}) {
    SCOPED_TRACE(name);
    ModelShape preset = model_shape(name);
    ModelShape file = shape_of(name);
    preset.left_out = file.left_out = {};  // presets are language models alone
    EXPECT_EQ(preset, file);
  }
  ModelShape m2 = shape_of("minimax-m2");
  EXPECT_EQ(model_shape("minimax-m2.5"), m2);
}

TEST(ModelShape, of_every_preset_agrees_with_the_list_of_models) {
  for (const ModelInfo& model : list_models()) {
    SCOPED_TRACE(model.name);
    const ModelShape shape = model_shape(model.name);
    EXPECT_EQ(std::ssize(shape.layers), model.layers);
    EXPECT_EQ(shape.moe_layers(), model.moe_layers);
    EXPECT_EQ(shape.experts, model.experts);
    EXPECT_EQ(shape.top_k, model.top_k);
    EXPECT_EQ(shape.hidden, model.hidden);
    EXPECT_EQ(shape.moe_width, model.moe_width);
    EXPECT_EQ(shape.shared_width, model.shared_experts * model.moe_width);
  }
}

TEST(ModelShape, of_an_unknown_preset_names_the_known_ones) {
  EXPECT_THAT(refusal<InvalidInput>([] { model_shape("gpt-2"); }), AllOf(HasSubstr("gpt-2"), HasSubstr("olmoe-1b-7b")));
}

TEST(ModelShape, knows_which_layers_attend_how) {
  EXPECT_EQ(layers_of(shape_of("qwen3-next-80b-a3b")), (Layers{{"full", 12}, {"gated_deltanet", 36}}));
  EXPECT_EQ(layers_of(shape_of("ling-3.0-flash")), (Layers{{"kda", 35}, {"mla", 7}}));
  EXPECT_EQ(layers_of(model_shape("ling-3.0-tiny")), (Layers{{"kda", 18}, {"mla", 6}}));
  EXPECT_EQ(layers_of(shape_of("kimi-linear-48b-a3b")), (Layers{{"kda", 20}, {"mla", 7}}));
  EXPECT_EQ(layers_of(shape_of("gpt-oss-20b")), (Layers{{"full", 12}, {"sliding", 12}}));
  EXPECT_EQ(layers_of(shape_of("minimax-text-01")), (Layers{{"full", 10}, {"lightning", 70}}));
  EXPECT_EQ(layers_of(shape_of("minimax-m2")), (Layers{{"full", 62}}));
  EXPECT_EQ(layers_of(model_shape("glm-5.2")), (Layers{{"dsa", 78}}));
}

TEST(ModelShape, counts_indexers_that_several_layers_share) {
  const ModelShape glm = model_shape("glm-5.2");
  int own = 0;
  for (const LayerShape& layer : glm.layers) {
    own += std::get<LatentAttention>(glm.attentions[layer.attention].kind).indexer->own ? 1 : 0;
  }
  EXPECT_EQ(own, 21);
}

TEST(ModelShape, slides_from_max_window_layers_on_when_the_window_is_used) {
  std::string json = with(config_text("qwen3-30b-a3b"), "sliding_window", 4096);
  EXPECT_EQ(layers_of(parse_model_shape(json, "c")), (Layers{{"full", 48}}));
  json = with(with(json, "use_sliding_window", true), "max_window_layers", 40);
  const ModelShape shape = parse_model_shape(json, "c");
  EXPECT_EQ(layers_of(shape), (Layers{{"full", 40}, {"sliding", 8}}));
  EXPECT_EQ(std::get<GroupedAttention>(shape.attentions.back().kind).window, 4096);
  EXPECT_EQ(layers_of(parse_model_shape(with(config_text("mixtral-8x7b"), "sliding_window", 4096), "c")),
            (Layers{{"sliding", 32}}));
}

TEST(ModelShape, knows_which_layers_are_dense) {
  EXPECT_EQ(shape_of("deepseek-v3").moe_layers(), 58);
  EXPECT_EQ(shape_of("deepseek-v3").layers[2].dense_width, 18432);
  const std::string qwen = config_text("qwen3-30b-a3b");
  EXPECT_EQ(parse_model_shape(with(qwen, "mlp_only_layers", {0, 5}), "c").moe_layers(), 46);
  EXPECT_EQ(parse_model_shape(with(qwen, "decoder_sparse_step", 2), "c").moe_layers(), 24);
  Json frequency = Json::array();
  for (int l = 0; l < 61; ++l) frequency.push_back(l % 2);
  EXPECT_EQ(parse_model_shape(with(config_text("deepseek-v3"), "moe_layer_freq", frequency), "c").moe_layers(), 30);
  EXPECT_EQ(parse_model_shape(with(config_text("deepseek-v3"), "moe_layer_freq", 2), "c").moe_layers(), 29);
}

TEST(ModelShape, says_what_it_left_out) {
  EXPECT_THAT(shape_of("qwen3.5-35b-a3b").left_out, ElementsAre("vision encoder", "multi-token prediction (1 layers)"));
  EXPECT_THAT(describe(shape_of("deepseek-v3")),
              AllOf(HasSubstr("61 mla"), HasSubstr("671.0B"), HasSubstr("multi-token")));
}

TEST(ModelShape, is_found_by_the_architecture_when_there_is_no_model_type) {
  EXPECT_EQ(parse_model_shape(with(config_text("olmoe-1b-7b"), "model_type", nullptr), "c"), shape_of("olmoe-1b-7b"));
}

TEST(ModelShape, refuses_an_unknown_architecture_with_the_keys_that_are_missing_and_a_way_out) {
  EXPECT_THAT(
      said(R"({"model_type": "mamba_moe", "hidden_size": 8, "vocab_size": 9, "num_experts": 4})"),
      AllOf(HasSubstr("config.json: model_type: found \"mamba_moe\""), HasSubstr("qwen3_moe"),
            HasSubstr("these are missing: num_hidden_layers, num_attention_heads"), HasSubstr("--cost-template")));
  EXPECT_THAT(said("{}"), HasSubstr("found nothing"));
}

TEST(ModelShape, names_all_keys_that_are_missing) {
  EXPECT_THAT(said(R"({"model_type": "qwen3_moe", "hidden_size": 64, "num_attention_heads": 4})"),
              AllOf(HasSubstr("keys are missing, which qwen3_moe needs: moe_intermediate_size, num_experts, "
                              "num_experts_per_tok, num_hidden_layers, vocab_size;"),
                    HasSubstr("--cost-template")));
  EXPECT_THAT(said(with(config_text("kimi-linear-48b-a3b"), "linear_attn_config", {{"head_dim", 128}})),
              AllOf(HasSubstr("linear_attn_config.full_attn_layers"), HasSubstr("linear_attn_config.num_heads")));
  EXPECT_THAT(said(with(config_text("deepseek-v3"), "intermediate_size", nullptr)),
              HasSubstr("a key is missing, which deepseek_v3 needs: intermediate_size"));
}

TEST(ModelShape, refuses_values_that_no_model_has) {
  const std::string qwen = config_text("qwen3-30b-a3b");
  EXPECT_THAT(said(with(qwen, "hidden_size", 0)), HasSubstr("config.json: hidden_size"));
  EXPECT_THAT(said(with(qwen, "hidden_size", "2048")), HasSubstr("config.json: hidden_size"));
  EXPECT_THAT(said(with(qwen, "num_hidden_layers", 1'000'000'000)), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(said(with(qwen, "num_key_value_heads", 5)), HasSubstr("num_key_value_heads: found 5"));
  EXPECT_THAT(said(with(qwen, "num_experts_per_tok", 129)), HasSubstr("num_experts_per_tok: found 129"));
  EXPECT_THAT(said(with(qwen, "decoder_sparse_step", 0)), HasSubstr("decoder_sparse_step: found 0"));
  EXPECT_THAT(said(with(qwen, "decoder_sparse_step", 49)), HasSubstr("found 48 dense layers"));
  EXPECT_THAT(said(with(qwen, "layer_types", {"full_attention"})), HasSubstr("layer_types: found 1 entries"));
  EXPECT_THAT(said("[]"), HasSubstr("config.json"));
}

TEST(ModelShape, refuses_kinds_of_layers_that_it_does_not_know) {
  Json types = Json::array();
  for (int l = 0; l < 24; ++l) types.push_back("full_attention");
  types[3] = "chunked_attention";
  EXPECT_THAT(said(with(config_text("gpt-oss-20b"), "layer_types", types)),
              AllOf(HasSubstr("layer_types[3]: found \"chunked_attention\""), HasSubstr("--cost-template")));
  EXPECT_THAT(said(with(config_text("kimi-linear-48b-a3b"), "routed_expert_hidden_size", 1152)),
              HasSubstr("routed_expert_hidden_size: found 1152"));
  EXPECT_THAT(said(with(config_text("deepseek-v3"), "index_topk", 2048)), HasSubstr("deepseek_v32"));
  // Ling 2.5 has the model_type of Ling 3 and other linear layers.
  EXPECT_THAT(said(with(config_text("ling-3.0-flash"), "short_conv_kernel_size", nullptr)),
              HasSubstr("short_conv_kernel_size"));
  EXPECT_THAT(said(with(config_text("ling-3.0-flash"), "gated_attention_proj_granularity_type", "row_wise")),
              HasSubstr("row_wise"));
}

TEST(ModelShape, fits_windows_of_its_moe_layers_or_of_all_layers) {
  const ModelShape deepseek = shape_of("deepseek-v3");
  EXPECT_NO_THROW(require_fits(deepseek, 58, 256, 8, "w"));
  EXPECT_NO_THROW(require_fits(deepseek, 61, 256, 8, "w"));
  EXPECT_THAT(refusal<InvalidInput>([&] { require_fits(deepseek, 48, 128, 8, "w.safetensors"); }),
              AllOf(HasSubstr("w.safetensors: found 48 layers of 128 experts, top-8"), HasSubstr("58 (or all 61)")));
  EXPECT_THROW(require_fits(deepseek, 58, 256, 4, "w"), InvalidInput);
}

}  // namespace
}  // namespace routepack
