// SPDX-License-Identifier: Apache-2.0
// Parameters and floating point operations of a shape (docs/model.md has every formula with its source).
#include <algorithm>

#include "routepack/model_cost.h"

namespace routepack {
namespace {

double real(std::int64_t value) {
  return static_cast<double>(value);
}

/// What a layer's mixing of tokens is made of, forward.
struct Mixing {
  double weights = 0.0;  ///< parameters that multiply every token
  double rest = 0.0;     ///< biases, norms, decays: parameters without work worth counting
  double linear = 0.0;   ///< FLOP per token of recurrences and convolutions
  // Attention: scores are products of q channels, sums run over v channels, all heads together.
  double q = 0.0, v = 0.0;
  std::int64_t window = 0;  ///< 0 = all before
  double indexer = 0.0;     ///< channels of an indexer that scores all pairs and learns from few of them
};

// q: heads·d, k and v: kv·d each, o: heads·d.
Mixing mixing(const GroupedAttention& a, double hidden) {
  const double q = real(a.heads * a.head_dim);
  const double kv = real(a.kv_heads * a.head_dim);
  Mixing m{.weights = hidden * (2.0 * q + 2.0 * kv + (a.output_gate ? q : 0.0)), .q = q, .v = q, .window = a.window};
  if (a.biases) m.rest += q + 2.0 * kv;
  if (a.qk_norm) m.rest += 2.0 * real(a.head_dim);
  if (a.sinks) m.rest += real(a.heads);
  return m;
}

// Queries through a rank or directly, one latent and one shared rotary key per token, keys and values from the latent.
Mixing mixing(const LatentAttention& a, double hidden) {
  const double heads = real(a.heads);
  const double q = heads * real(a.qk_nope + a.qk_rope);
  const double v = heads * real(a.v_dim);
  const double kv_rank = real(a.kv_rank);
  Mixing m{.q = q, .v = v};
  m.weights = a.q_rank > 0 ? real(a.q_rank) * (hidden + q) : hidden * q;
  m.weights += hidden * (kv_rank + real(a.qk_rope)) + kv_rank * (heads * real(a.qk_nope) + v) + v * hidden;
  m.weights += hidden * real(a.gate_width);
  m.rest = real(a.q_rank) + kv_rank;
  if (!a.indexer) return m;
  // Chosen keys are read as latents: every head scores the latent and the rotary key, and sums latents. Projecting the
  // queries into the latent space and the sums out of it takes as many products as projecting keys and values does.
  m.window = a.indexer->top_k;
  m.q = heads * (kv_rank + real(a.qk_rope));
  m.v = heads * kv_rank;
  if (a.indexer->own) {
    const double index_heads = real(a.indexer->heads);
    const double dim = real(a.indexer->dim);
    m.weights += (a.q_rank > 0 ? real(a.q_rank) : hidden) * index_heads * dim + hidden * (dim + index_heads);
    m.rest += 2.0 * dim;
    m.indexer = index_heads * dim;
  }
  return m;
}

// Kimi Linear (arXiv 2510.26692, section on complexity): 6·d² + 3·C·d + C² per token and head in chunks of C = 64, with
// d² for the state and d for the mean of its sides.
Mixing mixing(const DeltaAttention& a, double hidden) {
  constexpr double kChunk = 64.0;
  const double keys = real(a.key_heads * a.key_dim);
  const double values = real(a.value_heads * a.value_dim);
  const auto projected = [&](double outputs) {
    return a.gate_rank > 0 ? real(a.gate_rank) * (hidden + outputs) : hidden * outputs;
  };
  const double d_key = real(a.key_dim);
  const double d_value = real(a.value_dim);
  Mixing m;
  m.weights = hidden * (2.0 * keys + values) + projected(real(a.decay_width)) + projected(values) +
              hidden * real(a.value_heads) + values * hidden;
  m.linear = real(a.value_heads) * (6.0 * d_key * d_value + 1.5 * kChunk * (d_key + d_value) + kChunk * kChunk) +
             2.0 * real(a.conv_width) * (2.0 * keys + values);
  m.rest = real(a.conv_width) * (2.0 * keys + values) + real(a.value_heads) + real(a.decay_width) + d_value;
  return m;
}

// MiniMax-01 (arXiv 2501.08313): q, k, v, gate and output of heads·d; inside a block scores and sums as in causal
// attention, 2·B·d, and between blocks two products with the d × d state, 4·d².
Mixing mixing(const LightningAttention& a, double hidden) {
  const double width = real(a.heads * a.head_dim);
  const double d = real(a.head_dim);
  return {.weights = 5.0 * hidden * width,
          .rest = width,
          .linear = real(a.heads) * (4.0 * d * d + 2.0 * real(a.block) * d)};
}

Mixing mixing_of(const ModelShape& shape, const LayerShape& layer) {
  return std::visit([&](const auto& kind) { return mixing(kind, real(shape.hidden)); },
                    shape.attentions[layer.attention].kind);
}

double gated(double hidden, double width) {
  return 3.0 * hidden * width;
}

/// Weights of the feed-forward part of a layer that multiply every token.
double feed_forward_weights(const ModelShape& shape, const LayerShape& layer) {
  const double hidden = real(shape.hidden);
  if (layer.dense_width > 0) return gated(hidden, real(layer.dense_width));
  return hidden * real(shape.experts) + gated(hidden, real(shape.shared_width)) + (shape.shared_gate ? hidden : 0.0);
}

double head_weights(const ModelShape& shape) {
  return real(shape.hidden) * real(shape.vocab);
}

/// FLOP per pair of a token and a key: forward the scores (2 per channel of q) and the sums (2 per channel of v);
/// backward the scores again, since fused kernels keep none, and both gradients of both products.
double pair_flops(const Mixing& m, const Passes& passes) {
  const double forward = 2.0 * m.q + 2.0 * m.v;
  if (!passes.backward) return forward;
  return forward * (passes.recompute ? 2.0 : 1.0) + 6.0 * m.q + 4.0 * m.v;
}

void add(Flops& to, const Flops& more) {
  to.dense += more.dense;
  to.attention += more.attention;
  to.linear += more.linear;
}

/// Adds the FLOP of one layer per token and per t².
void add_layer(StageWork& stage, const ModelShape& shape, const LayerShape& layer, double longest,
               const Passes& passes) {
  const Mixing m = mixing_of(shape, layer);
  const double times = pass_multiple(passes);
  add(stage.token,
      {.dense = 2.0 * times * (m.weights + feed_forward_weights(shape, layer)), .linear = times * m.linear});
  const double per_pair = pair_flops(m, passes);
  const double window = real(m.window);
  if (m.window == 0 || window >= longest) {
    stage.pair.attention += per_pair / 2.0;  // a token sees the half that is before it
  } else {
    // t tokens see t·w − w²/2 keys; at t = longest that is exact, for shorter samples too much.
    stage.token.attention += per_pair * (window - window * window / (2.0 * longest));
  }
  const double index = m.indexer * (passes.backward && passes.recompute ? 2.0 : 1.0);
  stage.pair.attention += 2.0 * index / 2.0;
}

}  // namespace

double pass_multiple(const Passes& passes) {
  if (!passes.backward) return 1.0;
  return passes.recompute ? 4.0 : 3.0;
}

ParameterCount count_parameters(const ModelShape& shape) {
  const double hidden = real(shape.hidden);
  ParameterCount count;
  count.expert =
      gated(hidden, real(shape.moe_width)) + (shape.expert_biases ? 2.0 * real(shape.moe_width) + hidden : 0.0);
  count.head = head_weights(shape);
  count.embedding = count.head;
  double common = hidden + count.head;  // the last norm, the head
  double routed_layers = 0.0;
  for (const LayerShape& layer : shape.layers) {
    const Mixing m = mixing_of(shape, layer);
    common += m.weights + m.rest + 2.0 * hidden + feed_forward_weights(shape, layer);
    if (layer.dense_width == 0) routed_layers += 1.0;
  }
  count.activated = common + routed_layers * real(shape.top_k) * count.expert;
  count.total = common + routed_layers * real(shape.experts) * count.expert + (shape.tied_head ? 0.0 : count.embedding);
  return count;
}

std::vector<StageWork> stage_work(const ModelShape& shape, std::int64_t longest, const Passes& passes) {
  std::vector<StageWork> stages;
  for (const LayerShape& layer : shape.layers) {
    const std::string& name = shape.attentions[layer.attention].stage;
    auto stage = std::ranges::find(stages, name, &StageWork::name);
    if (stage == stages.end()) stage = stages.insert(stage, StageWork{.name = name});
    ++stage->layers;
    add_layer(*stage, shape, layer, real(longest), passes);
    if (&layer == &shape.layers.back()) stage->token.dense += 2.0 * pass_multiple(passes) * head_weights(shape);
  }
  return stages;
}

double routed_token_flops(const ModelShape& shape, const Passes& passes) {
  return 2.0 * pass_multiple(passes) * gated(real(shape.hidden), real(shape.moe_width));
}

double flops_per_token(const ModelShape& shape, std::int64_t tokens, const Passes& passes) {
  double flops = real(shape.moe_layers()) * real(shape.top_k) * routed_token_flops(shape, passes);
  for (const StageWork& stage : stage_work(shape, tokens, passes)) {
    flops += stage.token.total() + stage.pair.total() * real(tokens);
  }
  return flops;
}

double all_to_all_bytes(const ModelShape& shape, const Passes& passes, double value_bytes) {
  // Dispatch and combine; their gradients take the same ways.
  const double crossings = passes.backward ? (passes.recompute ? 6.0 : 4.0) : 2.0;
  return crossings * real(shape.hidden) * value_bytes;
}

}  // namespace routepack
