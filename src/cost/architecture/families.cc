// SPDX-License-Identifier: Apache-2.0
// One function per family; the comment above each says which keys it reads beside hidden_size, vocab_size,
// num_hidden_layers and tie_word_embeddings, in the spelling of the published configurations.
#include "cost/architecture/families.h"

#include <fmt/format.h>

#include <algorithm>

#include "cost/architecture/readers.h"
#include "routepack/error.h"

namespace routepack {
namespace {

constexpr auto kEveryLayer = [](std::int64_t) { return true; };

/// decoder_sparse_step, mlp_only_layers, intermediate_size; num_experts, num_experts_per_tok, moe_intermediate_size.
void read_qwen_experts(ConfigKeys& keys, ModelShape& shape) {
  read_experts(keys, shape, {"num_experts"}, {"num_experts_per_tok"}, {"moe_intermediate_size"});
  const std::int64_t step = keys.integer("decoder_sparse_step", kMostLayers).value_or(1);
  if (step == 0) keys.fail("decoder_sparse_step", "found 0, wanted at least 1");
  const auto dense = keys.integers("mlp_only_layers", kMostLayers).value_or(std::vector<std::int64_t>{});
  set_feed_forward(keys, shape,
                   [&](std::int64_t l) { return (l + 1) % step == 0 && std::ranges::find(dense, l) == dense.end(); });
}

/// use_sliding_window, sliding_window, max_window_layers: the layers from there on slide.
void set_qwen_layers(ConfigKeys& keys, ModelShape& shape, const GroupedAttention& attention) {
  const bool slides = keys.flag("use_sliding_window").value_or(false);
  const std::int64_t window = slides ? keys.need("sliding_window", kMostTokens) : 0;
  const std::int64_t first = keys.integer("max_window_layers", kMostLayers).value_or(0);
  set_grouped_layers(keys, shape, attention, window, [&](std::int64_t l) { return l >= first; });
}

// Qwen3-MoE: GQA with norms on queries and keys.
void read_qwen3_moe(ConfigKeys& keys, ModelShape& shape) {
  GroupedAttention attention = read_grouped(keys, shape);
  attention.biases = keys.flag("attention_bias").value_or(false);
  attention.qk_norm = true;
  set_qwen_layers(keys, shape, attention);
  read_qwen_experts(keys, shape);
}

// Qwen1.5-MoE, Qwen2-MoE: biases (qkv_bias), shared experts of shared_expert_intermediate_size behind a scalar gate.
void read_qwen2_moe(ConfigKeys& keys, ModelShape& shape) {
  GroupedAttention attention = read_grouped(keys, shape);
  attention.biases = keys.flag("qkv_bias").value_or(true);
  set_qwen_layers(keys, shape, attention);
  read_qwen_experts(keys, shape);
  shape.shared_width = keys.need("shared_expert_intermediate_size", kMostWidth);
  shape.shared_gate = true;
}

// Qwen3-Next, Qwen3.5-MoE: layer_types or full_attention_interval; linear_num_key_heads, linear_num_value_heads,
// linear_key_head_dim, linear_value_head_dim, linear_conv_kernel_dim; full layers have an output gate
// (attn_output_gate); shared_expert_intermediate_size.
void read_qwen3_next(ConfigKeys& keys, ModelShape& shape) {
  GroupedAttention full = read_grouped(keys, shape);
  full.output_gate = keys.flag("attn_output_gate").value_or(true);
  full.biases = keys.flag("attention_bias").value_or(false);
  full.qk_norm = true;
  DeltaAttention linear;
  linear.key_heads = keys.need("linear_num_key_heads", kMostHeads);
  linear.value_heads = keys.need("linear_num_value_heads", kMostHeads);
  linear.key_dim = keys.need("linear_key_head_dim", kMostWidth);
  linear.value_dim = keys.need("linear_value_head_dim", kMostWidth);
  linear.conv_width = keys.need("linear_conv_kernel_dim", kMostWidth);
  linear.decay_width = linear.value_heads;
  const auto types = keys.texts("layer_types", shape.layers.size(), {"full_attention", "linear_attention"});
  const std::int64_t every = keys.integer("full_attention_interval", kMostLayers).value_or(4);
  if (every == 0) keys.fail("full_attention_interval", "found 0, wanted at least 1");
  set_attentions(shape, {"full", full}, {"gated_deltanet", linear}, [&](std::int64_t l) {
    return types ? (*types)[static_cast<std::size_t>(l)] == "full_attention" : (l + 1) % every == 0;
  });
  read_qwen_experts(keys, shape);
  shape.shared_width = keys.integer("shared_expert_intermediate_size", kMostWidth).value_or(0);
  shape.shared_gate = shape.shared_width > 0;
}

/// n_routed_experts, num_experts_per_tok, moe_intermediate_size, n_shared_experts, first_k_dense_replace,
/// moe_layer_freq, intermediate_size; mlp_layer_types in newer files.
void read_deepseek_experts(ConfigKeys& keys, ModelShape& shape) {
  read_experts(keys, shape, {"n_routed_experts"}, {"num_experts_per_tok"}, {"moe_intermediate_size"});
  shape.shared_width = keys.integer("n_shared_experts", kMostExperts).value_or(0) * shape.moe_width;
  set_feed_forward_after_dense(keys, shape);
}

// DeepSeek-V2, DeepSeek-V3, Kimi-K2, Moonlight, GLM-4.7-Flash: MLA.
void read_deepseek(ConfigKeys& keys, ModelShape& shape) {
  if (keys.find("index_topk") != nullptr) {
    keys.fail("index_topk", fmt::format("found a sparse indexer, wanted the model_type of such a model: deepseek_v32 "
                                        "or glm_moe_dsa; {}",
                                        kInstead));
  }
  const LatentAttention attention = read_latent(keys);
  set_attentions(shape, {"mla", attention}, {}, kEveryLayer);
  read_deepseek_experts(keys, shape);
}

// DeepSeek-V3.2, GLM-5: MLA over the keys that an indexer chose: index_n_heads, index_head_dim, index_topk. GLM-5.2 has
// indexers in some layers only (indexer_types); the others take the choice of the layer before.
void read_sparse_latent(ConfigKeys& keys, ModelShape& shape) {
  LatentAttention own = read_latent(keys);
  own.indexer = Indexer{.heads = keys.need("index_n_heads", kMostHeads),
                        .dim = keys.need("index_head_dim", kMostWidth),
                        .top_k = keys.need("index_topk", kMostTokens)};
  LatentAttention shared = own;
  shared.indexer->own = false;
  const auto types = keys.texts("indexer_types", shape.layers.size(), {"full", "shared"});
  set_attentions(shape, {"dsa", own}, {"dsa", shared},
                 [&](std::int64_t l) { return !types || (*types)[static_cast<std::size_t>(l)] == "full"; });
  read_deepseek_experts(keys, shape);
}

// GLM-4.5, 4.6, 4.7: GQA (attention_bias, use_qk_norm) with DeepSeek's keys for experts.
void read_glm4_moe(ConfigKeys& keys, ModelShape& shape) {
  GroupedAttention attention = read_grouped(keys, shape);
  attention.biases = keys.flag("attention_bias").value_or(false);
  attention.qk_norm = keys.flag("use_qk_norm").value_or(false);
  set_attentions(shape, {"full", attention}, {}, kEveryLayer);
  read_deepseek_experts(keys, shape);
}

// gpt-oss: GQA with sinks; layer_types, or every other layer sliding from the first on; sliding_window;
// num_local_experts, num_experts_per_tok (also experts_per_token), intermediate_size of an expert, biases everywhere.
void read_gpt_oss(ConfigKeys& keys, ModelShape& shape) {
  GroupedAttention attention = read_grouped(keys, shape);
  attention.biases = keys.flag("attention_bias").value_or(true);
  attention.sinks = true;
  const std::int64_t window = keys.need("sliding_window", kMostTokens);
  set_grouped_layers(keys, shape, attention, window, [](std::int64_t l) { return l % 2 == 0; });
  read_experts(keys, shape, {"num_local_experts"}, {"num_experts_per_tok", "experts_per_token"}, {"intermediate_size"});
  shape.expert_biases = true;
}

// Mixtral: GQA, in all layers sliding when sliding_window is a number; num_local_experts, intermediate_size of an
// expert.
void read_mixtral(ConfigKeys& keys, ModelShape& shape) {
  const GroupedAttention attention = read_grouped(keys, shape);
  const std::int64_t window = keys.integer("sliding_window", kMostTokens).value_or(0);
  set_grouped_layers(keys, shape, attention, window, kEveryLayer);
  read_experts(keys, shape, {"num_local_experts"}, {"num_experts_per_tok"}, {"intermediate_size"});
}

// OLMoE: MHA; num_experts, intermediate_size of an expert.
void read_olmoe(ConfigKeys& keys, ModelShape& shape) {
  GroupedAttention attention = read_grouped(keys, shape);
  attention.biases = keys.flag("attention_bias").value_or(false);
  attention.qk_norm = true;
  set_attentions(shape, {"full", attention}, {}, kEveryLayer);
  read_experts(keys, shape, {"num_experts"}, {"num_experts_per_tok"}, {"intermediate_size"});
}

/// attn_type_list (1 = full, 0 = lightning) or layer_types; without either all layers are full.
std::function<bool(std::int64_t)> minimax_full_layers(const ConfigKeys& keys, const ModelShape& shape) {
  if (const auto types = keys.texts("layer_types", shape.layers.size(), {"full_attention", "linear_attention"})) {
    return [types = *types](std::int64_t l) { return types[static_cast<std::size_t>(l)] == "full_attention"; };
  }
  const auto codes = keys.integers("attn_type_list", 1);
  if (!codes) return kEveryLayer;
  if (codes->size() != shape.layers.size()) {
    keys.fail("attn_type_list",
              fmt::format("found {} entries, wanted one for each of {} layers", codes->size(), shape.layers.size()));
  }
  return [codes = *codes](std::int64_t l) { return codes[static_cast<std::size_t>(l)] == 1; };
}

// MiniMax-M2, M2.5: GQA in all layers; num_local_experts, intermediate_size of an expert, shared_intermediate_size.
// MiniMax-Text-01, M1: lightning attention of num_attention_heads · head_dim in the layers that the list calls 0;
// block_size.
void read_minimax(ConfigKeys& keys, ModelShape& shape) {
  GroupedAttention full = read_grouped(keys, shape);
  full.qk_norm = keys.flag("use_qk_norm").value_or(false);
  const std::int64_t block = keys.integer("block_size", kMostWidth).value_or(256);
  const LightningAttention lightning{.heads = full.heads, .head_dim = full.head_dim, .block = block};
  set_attentions(shape, {"full", full}, {"lightning", lightning}, minimax_full_layers(keys, shape));
  read_experts(keys, shape, {"num_local_experts"}, {"num_experts_per_tok"}, {"intermediate_size"});
  const Json* shared = keys.find("shared_intermediate_size");
  if (shared != nullptr && shared->is_array()) {  // as published: a list with one number
    const auto widths = *keys.integers("shared_intermediate_size", kMostWidth);
    if (std::ranges::any_of(widths, [&](std::int64_t w) { return w != widths.front(); })) {
      keys.fail("shared_intermediate_size", "found different widths, wanted one for all layers");
    }
    shape.shared_width = widths.empty() ? 0 : widths.front();
  } else {
    shape.shared_width = keys.integer("shared_intermediate_size", kMostWidth).value_or(0);
  }
}

/// num_experts, num_experts_per_tok, moe_intermediate_size, num_shared_experts, moe_shared_expert_intermediate_size
/// (default: as a routed expert), first_k_dense_replace, intermediate_size.
void read_bailing_experts(ConfigKeys& keys, ModelShape& shape) {
  read_experts(keys, shape, {"num_experts"}, {"num_experts_per_tok"}, {"moe_intermediate_size"});
  shape.shared_width = keys.integer("num_shared_experts", kMostExperts).value_or(0) *
                       keys.integer("moe_shared_expert_intermediate_size", kMostWidth).value_or(shape.moe_width);
  set_feed_forward_after_dense(keys, shape);
}

// Ling and Ring 1 and 2 (BailingMoe, BailingMoeV2): GQA (use_qkv_bias, use_qk_norm).
void read_bailing_moe(ConfigKeys& keys, ModelShape& shape) {
  GroupedAttention attention = read_grouped(keys, shape);
  attention.biases = keys.flag("use_qkv_bias").value_or(false);
  attention.qk_norm = keys.flag("use_qk_norm").value_or(false);
  set_attentions(shape, {"full", attention}, {}, kEveryLayer);
  read_bailing_experts(keys, shape);
}

/// The keys of MLA, and of KDA: heads and dimension as given, decay and gate of rank head_dim unless `full_rank`.
DeltaAttention kda(std::int64_t heads, std::int64_t head_dim, std::int64_t conv_width, bool full_rank) {
  return {.key_heads = heads,
          .value_heads = heads,
          .key_dim = head_dim,
          .value_dim = head_dim,
          .conv_width = conv_width,
          .decay_width = heads * head_dim,
          .gate_rank = full_rank ? 0 : head_dim};
}

// Ling 3 (BailingMoeV3): groups of layer_group_size layers, the last of each and what is behind the last whole group
// MLA with a gate (gated_attention_proj_granularity_type), the others KDA of num_attention_heads · head_dim with
// short_conv_kernel_size; no_kda_lora. Ling 2.5 has the same model_type and other linear layers: it lacks the
// convolutions and is refused.
void read_bailing_hybrid(ConfigKeys& keys, ModelShape& shape) {
  LatentAttention full = read_latent(keys);
  const std::string gate = keys.text("gated_attention_proj_granularity_type").value_or("");
  if (gate == "head_wise") full.gate_width = full.heads;
  if (gate == "element_wise") full.gate_width = full.heads * full.v_dim;
  if (!gate.empty() && full.gate_width == 0) {
    keys.fail("gated_attention_proj_granularity_type",
              fmt::format("found {}, wanted head_wise or element_wise; {}", Json(gate).dump(), kInstead));
  }
  const DeltaAttention linear =
      kda(full.heads, keys.need("head_dim", kMostWidth), keys.need("short_conv_kernel_size", kMostWidth),
          keys.flag("no_kda_lora").value_or(false));
  const std::int64_t group = keys.need("layer_group_size", kMostLayers);
  const std::int64_t whole = std::ssize(shape.layers) / group * group;
  set_attentions(shape, {"mla", full}, {"kda", linear},
                 [&](std::int64_t l) { return (l + 1) % group == 0 || l >= whole; });
  read_bailing_experts(keys, shape);
}

// Kimi-Linear: linear_attn_config with num_heads, head_dim, short_conv_kernel_size and full_attn_layers (counted from
// 1), use_full_rank_gate; num_experts, num_experts_per_token, num_shared_experts. Experts in a narrower space
// (routed_expert_hidden_size, Kimi-K3) are not known.
void read_kimi_linear(ConfigKeys& keys, ModelShape& shape) {
  if (const auto width = keys.integer("routed_expert_hidden_size", kMostWidth); width && *width != shape.hidden) {
    keys.fail(
        "routed_expert_hidden_size",
        fmt::format("found {}, wanted the hidden size; experts of another width are not known; {}", *width, kInstead));
  }
  LatentAttention full = read_latent(keys);
  if (keys.flag("mla_use_output_gate").value_or(false)) full.gate_width = full.heads * full.v_dim;
  ConfigKeys part = keys.object("linear_attn_config");
  const DeltaAttention linear =
      kda(part.need("num_heads", kMostHeads), part.need("head_dim", kMostWidth),
          part.need("short_conv_kernel_size", kMostWidth), part.flag("use_full_rank_gate").value_or(false));
  const auto full_layers = part.integers("full_attn_layers", kMostLayers);
  if (!full_layers) part.miss("full_attn_layers");
  if (keys.find("linear_attn_config") != nullptr) keys.adopt(part, "linear_attn_config");
  set_attentions(shape, {"mla", full}, {"kda", linear}, [&](std::int64_t l) {
    return full_layers && std::ranges::find(*full_layers, l + 1) != full_layers->end();
  });
  read_experts(keys, shape, {"num_experts"}, {"num_experts_per_token", "num_experts_per_tok"},
               {"moe_intermediate_size"});
  shape.shared_width = keys.integer("num_shared_experts", kMostExperts).value_or(0) * shape.moe_width;
  set_feed_forward_after_dense(keys, shape);
}

constexpr Family kFamilies[] = {
    {"bailing_hybrid", "BailingMoeV3", read_bailing_hybrid},
    {"bailing_moe", "BailingMoeForCausalLM", read_bailing_moe},
    {"bailing_moe_v2", "BailingMoeV2ForCausalLM", read_bailing_moe},
    {"bailing_moe_v3", "BailingMoeV3ForCausalLM", read_bailing_hybrid},
    {"deepseek_v2", "DeepseekV2ForCausalLM", read_deepseek},
    {"deepseek_v3", "DeepseekV3ForCausalLM", read_deepseek},
    {"deepseek_v32", "DeepseekV32ForCausalLM", read_sparse_latent},
    {"glm4_moe", "Glm4MoeForCausalLM", read_glm4_moe},
    {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", read_deepseek},
    {"glm_moe_dsa", "GlmMoeDsaForCausalLM", read_sparse_latent},
    {"gpt_oss", "GptOssForCausalLM", read_gpt_oss},
    {"kimi_k2", "KimiK2ForCausalLM", read_deepseek},
    {"kimi_linear", "KimiLinearForCausalLM", read_kimi_linear},
    {"minimax", "MiniMaxForCausalLM", read_minimax},
    {"minimax_m1", "MiniMaxM1ForCausalLM", read_minimax},
    {"minimax_m2", "MiniMaxM2ForCausalLM", read_minimax},
    {"minimax_text_01", "MiniMaxText01ForCausalLM", read_minimax},
    {"mixtral", "MixtralForCausalLM", read_mixtral},
    {"olmoe", "OlmoeForCausalLM", read_olmoe},
    {"qwen2_moe", "Qwen2MoeForCausalLM", read_qwen2_moe},
    {"qwen3_5_moe", "Qwen3_5Moe", read_qwen3_next},
    {"qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3_moe},
    {"qwen3_next", "Qwen3NextForCausalLM", read_qwen3_next},
    {"qwen3_vl_moe", "Qwen3VLMoe", read_qwen3_moe},
};

}  // namespace

std::span<const Family> families() {
  return kFamilies;
}

}  // namespace routepack
