// SPDX-License-Identifier: Apache-2.0
// What the families of models have in common.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "cost/architecture/config_keys.h"
#include "routepack/model_cost.h"

namespace routepack {

/// num_attention_heads, num_key_value_heads (default: as many), head_dim (default: hidden/heads).
GroupedAttention read_grouped(ConfigKeys& keys, const ModelShape& shape);
/// q_lora_rank (absent: none), kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, num_attention_heads.
LatentAttention read_latent(ConfigKeys& keys);

/// All layers, or those that `layer_types` calls full, attend to all; those that it calls sliding get the window.
void set_grouped_layers(ConfigKeys& keys, ModelShape& shape, const GroupedAttention& full, std::int64_t window,
                        const std::function<bool(std::int64_t)>& slides);
/// Layers for which `is_full` holds have the first kind, the others the second; kinds that no layer has stay out.
void set_attentions(ModelShape& shape, const AttentionShape& full, const AttentionShape& other,
                    const std::function<bool(std::int64_t)>& is_full);

/// Routed experts under the given names of the keys.
void read_experts(ConfigKeys& keys, ModelShape& shape, std::initializer_list<std::string_view> experts,
                  std::initializer_list<std::string_view> top_k, std::initializer_list<std::string_view> width);
/// Layers for which `is_moe` does not hold are dense, intermediate_size wide. `mlp_layer_types`, where it is given,
/// wins.
void set_feed_forward(ConfigKeys& keys, ModelShape& shape, const std::function<bool(std::int64_t)>& is_moe);
/// DeepSeek's rule: MoE from first_k_dense_replace on, every moe_layer_freq-th layer (a number, or a list of 0 and 1).
void set_feed_forward_after_dense(ConfigKeys& keys, ModelShape& shape);
/// Notes multi-token prediction under any of its names.
void note_left_out(const ConfigKeys& keys, ModelShape& shape);

}  // namespace routepack
