// SPDX-License-Identifier: Apache-2.0
// The shapes of the presets, as what their published configurations say: the same reader takes both.
#include "window/generator/presets.h"

#include <fmt/format.h>

#include <algorithm>

#include "routepack/error.h"
#include "routepack/model_cost.h"

namespace routepack {
namespace {

struct PresetConfig {
  std::string_view name;
  std::string_view json;
};

// Facts of the configurations on huggingface.co; those of GLM-5.2 and Ling 3 as implementations of them restate them.
constexpr PresetConfig kConfigs[] = {
    {"deepseek-v3", R"({"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
      "vocab_size": 129280, "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432,
      "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
      "first_k_dense_replace": 3, "num_nextn_predict_layers": 1})"},
    {"glm-4.5", R"({"model_type": "glm4_moe", "hidden_size": 5120, "num_hidden_layers": 92, "vocab_size": 151552,
      "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "attention_bias": true,
      "use_qk_norm": true, "intermediate_size": 12288, "n_routed_experts": 160, "num_experts_per_tok": 8,
      "n_shared_experts": 1, "moe_intermediate_size": 1536, "first_k_dense_replace": 3,
      "num_nextn_predict_layers": 1})"},
    {"glm-4.5-air", R"({"model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46, "vocab_size": 151552,
      "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "attention_bias": true,
      "use_qk_norm": false, "intermediate_size": 10944, "n_routed_experts": 128, "num_experts_per_tok": 8,
      "n_shared_experts": 1, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
      "num_nextn_predict_layers": 1})"},
    {"glm-4.7-flash", R"({"model_type": "glm4_moe_lite", "hidden_size": 2048, "num_hidden_layers": 47,
      "vocab_size": 154880, "num_attention_heads": 20, "q_lora_rank": 768, "kv_lora_rank": 512,
      "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "intermediate_size": 10240,
      "n_routed_experts": 64, "num_experts_per_tok": 4, "n_shared_experts": 1, "moe_intermediate_size": 1536,
      "first_k_dense_replace": 1, "num_nextn_predict_layers": 1})"},
    {"glm-5.2", R"({"model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78, "vocab_size": 154880,
      "num_attention_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
      "qk_rope_head_dim": 64, "v_head_dim": 256, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
      "indexer_types": ["full", "full", "full", "shared", "shared", "shared", "full", "shared", "shared", "shared",
        "full", "shared", "shared", "shared", "full", "shared", "shared", "shared", "full", "shared", "shared",
        "shared", "full", "shared", "shared", "shared", "full", "shared", "shared", "shared", "full", "shared",
        "shared", "shared", "full", "shared", "shared", "shared", "full", "shared", "shared", "shared", "full",
        "shared", "shared", "shared", "full", "shared", "shared", "shared", "full", "shared", "shared", "shared",
        "full", "shared", "shared", "shared", "full", "shared", "shared", "shared", "full", "shared", "shared",
        "shared", "full", "shared", "shared", "shared", "full", "shared", "shared", "shared", "full", "shared",
        "shared", "shared"],
      "intermediate_size": 12288, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
      "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1})"},
    {"gpt-oss-120b", R"({"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36, "vocab_size": 201088,
      "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
      "intermediate_size": 2880, "num_local_experts": 128, "num_experts_per_tok": 4})"},
    {"gpt-oss-20b", R"({"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "vocab_size": 201088,
      "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
      "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4})"},
    {"kimi-k2", R"({"model_type": "kimi_k2", "hidden_size": 7168, "num_hidden_layers": 61, "vocab_size": 163840,
      "num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "n_routed_experts": 384,
      "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 1})"},
    {"ling-3.0-flash", R"({"model_type": "bailing_hybrid", "hidden_size": 2560, "num_hidden_layers": 42,
      "vocab_size": 157184, "num_attention_heads": 32, "head_dim": 128, "q_lora_rank": null, "kv_lora_rank": 512,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
      "gated_attention_proj_granularity_type": "head_wise", "short_conv_kernel_size": 4, "no_kda_lora": true,
      "layer_group_size": 6, "intermediate_size": 6144, "num_experts": 512, "num_experts_per_tok": 8,
      "num_shared_experts": 1, "moe_intermediate_size": 768, "moe_shared_expert_intermediate_size": 768,
      "first_k_dense_replace": 2, "num_nextn_predict_layers": 1})"},
    {"ling-3.0-tiny", R"({"model_type": "bailing_hybrid", "hidden_size": 1536, "num_hidden_layers": 24,
      "vocab_size": 157184, "num_attention_heads": 16, "head_dim": 128, "q_lora_rank": 256, "kv_lora_rank": 512,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
      "gated_attention_proj_granularity_type": "head_wise", "short_conv_kernel_size": 4, "no_kda_lora": true,
      "layer_group_size": 4, "intermediate_size": 4608, "num_experts": 128, "num_experts_per_tok": 8,
      "num_shared_experts": 1, "moe_intermediate_size": 512, "moe_shared_expert_intermediate_size": 512,
      "first_k_dense_replace": 1})"},
    {"ling-flash-2.0", R"({"model_type": "bailing_moe_v2", "hidden_size": 4096, "num_hidden_layers": 32,
      "vocab_size": 157184, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
      "use_qk_norm": true, "intermediate_size": 9216, "num_experts": 256, "num_experts_per_tok": 8,
      "num_shared_experts": 1, "moe_intermediate_size": 1024, "first_k_dense_replace": 1})"},
    {"ling-mini-2.0", R"({"model_type": "bailing_moe_v2", "hidden_size": 2048, "num_hidden_layers": 20,
      "vocab_size": 157184, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
      "use_qk_norm": true, "intermediate_size": 5120, "num_experts": 256, "num_experts_per_tok": 8,
      "num_shared_experts": 1, "moe_intermediate_size": 512, "first_k_dense_replace": 1})"},
    {"minimax-m2.5", R"({"model_type": "minimax_m2", "hidden_size": 3072, "num_hidden_layers": 62,
      "vocab_size": 200064, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
      "use_qk_norm": true, "intermediate_size": 1536, "num_local_experts": 256, "num_experts_per_tok": 8,
      "num_mtp_modules": 3})"},
    {"mixtral-8x7b", R"({"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32000,
      "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": null, "intermediate_size": 14336,
      "num_local_experts": 8, "num_experts_per_tok": 2})"},
    {"moonlight-16b", R"({"model_type": "deepseek_v3", "hidden_size": 2048, "num_hidden_layers": 27,
      "vocab_size": 163840, "num_attention_heads": 16, "q_lora_rank": null, "kv_lora_rank": 512,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 11264,
      "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "moe_intermediate_size": 1408,
      "first_k_dense_replace": 1})"},
    {"olmoe-1b-7b", R"({"model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16, "vocab_size": 50304,
      "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 1024, "num_experts": 64,
      "num_experts_per_tok": 8})"},
    {"qwen1.5-moe-a2.7b", R"({"model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24,
      "vocab_size": 151936, "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 5632,
      "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts": 60,
      "num_experts_per_tok": 4})"},
    {"qwen3-235b-a22b", R"({"model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94,
      "vocab_size": 151936, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
      "moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8})"},
    {"qwen3-30b-a3b", R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
      "vocab_size": 151936, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
      "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8})"},
    {"qwen3-next-80b-a3b", R"({"model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48,
      "vocab_size": 151936, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
      "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
      "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
      "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 512,
      "num_experts_per_tok": 10})"},
    {"qwen3.5-35b-a3b", R"({"model_type": "qwen3_5_moe", "hidden_size": 2048, "num_hidden_layers": 40,
      "vocab_size": 248320, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
      "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
      "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
      "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 256,
      "num_experts_per_tok": 8})"},
};

}  // namespace

ModelShape model_shape(std::string_view preset) {
  const std::string_view name = find_preset(preset).name;
  const auto* found = std::ranges::find(kConfigs, name, &PresetConfig::name);
  if (found == std::end(kConfigs)) {
    throw InvalidInput(fmt::format(
        "model: {}: the shape of its layers is not known, wanted its config.json with --model-config", name));
  }
  return parse_model_shape(found->json, std::string(name));
}

}  // namespace routepack
