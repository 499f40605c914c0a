// SPDX-License-Identifier: Apache-2.0
#include "cost/architecture/readers.h"

#include <fmt/format.h>

#include <algorithm>

namespace routepack {

GroupedAttention read_grouped(ConfigKeys& keys, const ModelShape& shape) {
  GroupedAttention attention;
  attention.heads = keys.need("num_attention_heads", kMostHeads);
  attention.kv_heads = keys.integer("num_key_value_heads", kMostHeads).value_or(attention.heads);
  if (attention.kv_heads < 1 || attention.heads % attention.kv_heads != 0) {
    if (keys.missing().empty()) {
      keys.fail("num_key_value_heads",
                fmt::format("found {}, wanted a divisor of {} attention heads", attention.kv_heads, attention.heads));
    }
    attention.kv_heads = attention.heads;  // refused later, with the keys that are missing
  }
  attention.head_dim = keys.integer("head_dim", kMostWidth).value_or(shape.hidden / attention.heads);
  if (attention.head_dim < 1) {
    if (keys.find("head_dim") != nullptr) keys.fail("head_dim", "found 0, wanted at least 1");
    keys.miss("head_dim");
    attention.head_dim = 1;
  }
  return attention;
}

LatentAttention read_latent(ConfigKeys& keys) {
  LatentAttention attention;
  attention.heads = keys.need("num_attention_heads", kMostHeads);
  attention.q_rank = keys.integer("q_lora_rank", kMostWidth).value_or(0);
  attention.kv_rank = keys.need("kv_lora_rank", kMostWidth);
  attention.qk_nope = keys.need("qk_nope_head_dim", kMostWidth);
  if (keys.find("qk_rope_head_dim") == nullptr) keys.miss("qk_rope_head_dim");
  attention.qk_rope = keys.integer("qk_rope_head_dim", kMostWidth).value_or(0);  // 0: without positions
  attention.v_dim = keys.need("v_head_dim", kMostWidth);
  return attention;
}

void set_attentions(ModelShape& shape, const AttentionShape& full, const AttentionShape& other,
                    const std::function<bool(std::int64_t)>& is_full) {
  const std::int64_t layers = std::ssize(shape.layers);
  std::int64_t index_full = -1, index_other = -1;
  for (std::int64_t l = 0; l < layers; ++l) {
    const bool whole = is_full(l);
    std::int64_t& index = whole ? index_full : index_other;
    if (index < 0) {
      index = std::ssize(shape.attentions);
      shape.attentions.push_back(whole ? full : other);
    }
    shape.layers[static_cast<std::size_t>(l)].attention = static_cast<std::size_t>(index);
  }
}

void set_grouped_layers(ConfigKeys& keys, ModelShape& shape, const GroupedAttention& full, std::int64_t window,
                        const std::function<bool(std::int64_t)>& slides) {
  const auto types = keys.texts("layer_types", shape.layers.size(), {"full_attention", "sliding_attention"});
  const auto is_full = [&](std::int64_t l) {
    return types ? (*types)[static_cast<std::size_t>(l)] == "full_attention" : window == 0 || !slides(l);
  };
  GroupedAttention sliding = full;
  sliding.window = window;
  set_attentions(shape, {"full", full}, {"sliding", sliding}, is_full);
  if (window == 0 && types && std::ranges::find(*types, "sliding_attention") != types->end()) {
    keys.miss("sliding_window");
  }
}

void read_experts(ConfigKeys& keys, ModelShape& shape, std::initializer_list<std::string_view> experts,
                  std::initializer_list<std::string_view> top_k, std::initializer_list<std::string_view> width) {
  const std::size_t missing = keys.missing().size();
  shape.experts = keys.need(experts, kMostExperts);
  shape.top_k = keys.need(top_k, kMostExperts);
  shape.moe_width = keys.need(width, kMostWidth);
  if (keys.missing().size() == missing && shape.top_k > shape.experts) {
    keys.fail(*top_k.begin(), fmt::format("found {}, wanted at most {} experts", shape.top_k, shape.experts));
  }
}

void set_feed_forward(ConfigKeys& keys, ModelShape& shape, const std::function<bool(std::int64_t)>& is_moe) {
  const auto types = keys.texts("mlp_layer_types", shape.layers.size(), {"dense", "sparse"});
  const auto moe = [&](std::int64_t l) {
    return types ? (*types)[static_cast<std::size_t>(l)] == "sparse" : is_moe(l);
  };
  std::int64_t dense_width = 0;
  for (std::int64_t l = 0; l < std::ssize(shape.layers); ++l) {
    if (moe(l)) continue;
    if (dense_width == 0) dense_width = keys.need("intermediate_size", kMostWidth);
    shape.layers[static_cast<std::size_t>(l)].dense_width = dense_width;
  }
}

void set_feed_forward_after_dense(ConfigKeys& keys, ModelShape& shape) {
  const std::int64_t dense = keys.integer("first_k_dense_replace", kMostLayers).value_or(0);
  const Json* frequency = keys.find("moe_layer_freq");
  if (frequency != nullptr && frequency->is_array()) {
    const auto list = *keys.integers("moe_layer_freq", 1);
    if (list.size() != shape.layers.size()) {
      keys.fail("moe_layer_freq",
                fmt::format("found {} entries, wanted one for each of {} layers", list.size(), shape.layers.size()));
    }
    return set_feed_forward(keys, shape, [&](std::int64_t l) { return list[static_cast<std::size_t>(l)] == 1; });
  }
  const std::int64_t every = keys.integer("moe_layer_freq", kMostLayers).value_or(1);
  if (every == 0) keys.fail("moe_layer_freq", "found 0, wanted at least 1");
  set_feed_forward(keys, shape, [&](std::int64_t l) { return l >= dense && l % every == 0; });
}

void note_left_out(const ConfigKeys& keys, ModelShape& shape) {
  const std::int64_t modules =
      keys.integer({"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"}, kMostLayers).value_or(0);
  if (modules > 0) shape.left_out.push_back(fmt::format("multi-token prediction ({} layers)", modules));
}

}  // namespace routepack
