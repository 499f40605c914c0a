// SPDX-License-Identifier: Apache-2.0
// Laws of the costs of a model: more of anything is not less work, and a sum of its parts.
#include "routepack/model_cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "support/property.h"

namespace routepack {
namespace {

using testing::draw;
using testing::for_all;

AttentionShape draw_attention() {
  switch (draw(0, 4)) {
    case 0: {
      const std::int64_t kv_heads = draw(1, 4);
      return {"full", GroupedAttention{.heads = kv_heads * draw(1, 4),
                                       .kv_heads = kv_heads,
                                       .head_dim = draw(1, 64),
                                       .window = draw(0, 1) * draw(1, 500),
                                       .output_gate = draw(0, 1) == 1}};
    }
    case 1:
    case 2: {
      LatentAttention latent{.heads = draw(1, 16),
                             .q_rank = draw(0, 64),
                             .kv_rank = draw(1, 64),
                             .qk_nope = draw(1, 32),
                             .qk_rope = draw(0, 16),
                             .v_dim = draw(1, 32),
                             .gate_width = draw(0, 8)};
      if (draw(0, 1) == 1) {
        latent.indexer = Indexer{.heads = draw(1, 4), .dim = draw(1, 8), .top_k = draw(1, 500), .own = draw(0, 1) == 1};
      }
      return {"latent", latent};
    }
    case 3:
      return {"delta", DeltaAttention{.key_heads = draw(1, 4),
                                      .value_heads = draw(1, 8),
                                      .key_dim = draw(1, 64),
                                      .value_dim = draw(1, 64),
                                      .conv_width = draw(1, 4),
                                      .decay_width = draw(1, 64),
                                      .gate_rank = draw(0, 16)}};
    default:
      return {"lightning", LightningAttention{.heads = draw(1, 8), .head_dim = draw(1, 64), .block = draw(1, 256)}};
  }
}

ModelShape draw_shape() {
  ModelShape shape;
  shape.family = "drawn";
  shape.hidden = draw(1, 512);
  shape.vocab = draw(1, 1000);
  shape.tied_head = draw(0, 1) == 1;
  shape.experts = draw(1, 64);
  shape.top_k = draw(1, static_cast<std::int32_t>(shape.experts));
  shape.moe_width = draw(1, 256);
  shape.shared_width = draw(0, 256);
  const std::int32_t kinds = draw(1, 3);
  for (std::int32_t k = 0; k < kinds; ++k) shape.attentions.push_back(draw_attention());
  const std::int32_t layers = draw(1, 12);
  for (std::int32_t l = 0; l < layers; ++l) {
    shape.layers.push_back(
        {.attention = static_cast<std::size_t>(draw(0, kinds - 1)), .dense_width = draw(0, 3) == 0 ? draw(1, 300) : 0});
  }
  shape.layers[0].dense_width = 0;
  return shape;
}

Passes draw_passes() {
  return {.backward = draw(0, 3) > 0, .recompute = draw(0, 1) == 1};
}

/// Work and parameters do not fall from `less` to `more`.
void require_no_less(const ModelShape& less, const ModelShape& more) {
  const std::int64_t tokens = draw(1, 2000);
  const Passes passes = draw_passes();
  RC_ASSERT(flops_per_token(more, tokens, passes) >= flops_per_token(less, tokens, passes));
  RC_ASSERT(count_parameters(more).total >= count_parameters(less).total);
  RC_ASSERT(count_parameters(more).activated >= count_parameters(less).activated);
}

TEST(ModelCost, does_not_fall_with_more_layers_or_widths) {
  for_all(300, [] {
    const ModelShape shape = draw_shape();
    ModelShape more = shape;
    more.layers.push_back(
        shape.layers[static_cast<std::size_t>(draw(0, static_cast<std::int32_t>(shape.layers.size()) - 1))]);
    require_no_less(shape, more);
    for (std::int64_t ModelShape::* width : {&ModelShape::hidden, &ModelShape::vocab, &ModelShape::experts,
                                             &ModelShape::moe_width, &ModelShape::shared_width}) {
      more = shape;
      more.*width += draw(1, 100);
      require_no_less(shape, more);
    }
    more = shape;
    more.top_k += more.top_k < more.experts ? 1 : 0;
    require_no_less(shape, more);
  });
}

TEST(ModelCost, of_a_sample_grows_with_its_length_and_a_window_saves_work) {
  for_all(300, [] {
    const ModelShape shape = draw_shape();
    const std::int64_t tokens = draw(1, 2000);
    const Passes passes = draw_passes();
    RC_ASSERT(flops_per_token(shape, tokens + draw(1, 100), passes) >= flops_per_token(shape, tokens, passes));
    ModelShape full = shape;
    for (AttentionShape& attention : full.attentions) {
      if (auto* grouped = std::get_if<GroupedAttention>(&attention.kind)) grouped->window = 0;
    }
    RC_ASSERT(flops_per_token(full, tokens, passes) >= flops_per_token(shape, tokens, passes));
  });
}

TEST(ModelCost, of_a_window_joins_full_attention_without_a_step) {
  for_all(100, [] {
    ModelShape shape = draw_shape();
    const std::int64_t tokens = draw(2, 2000);
    shape.attentions[0] = {"a", GroupedAttention{.heads = 2, .kv_heads = 2, .head_dim = 8, .window = tokens}};
    const double at = flops_per_token(shape, tokens);
    std::get<GroupedAttention>(shape.attentions[0].kind).window = tokens - 1;
    const double below = flops_per_token(shape, tokens);
    // One key less costs at most its scores, in the last token of the sample.
    const double layers = static_cast<double>(shape.layers.size());
    RC_ASSERT(at >= below);
    RC_ASSERT(at - below <= layers * 14.0 * 16.0 / static_cast<double>(tokens));
  });
}

TEST(ModelCost, derived_weights_give_back_the_work_of_any_sample_as_long_as_the_cap) {
  for_all(200, [] {
    const ModelShape shape = draw_shape();
    const std::int64_t cap = draw(1, 2000);
    const Passes passes = draw_passes();
    const DerivedCost derived = derive_cost(shape, {.capacity = cap}, passes);
    double units = static_cast<double>(shape.moe_layers() * shape.top_k);
    for (const Stage& stage : derived.cost.stages()) units += stage.alpha + stage.beta;
    const double wanted = flops_per_token(shape, cap, passes);
    RC_ASSERT(std::abs(units * derived.unit_flops - wanted) <= 1e-12 * wanted);
  });
}

TEST(ModelCost, weights_halve_when_experts_are_twice_as_wide) {
  for_all(100, [] {
    const ModelShape shape = draw_shape();
    ModelShape wider = shape;
    wider.moe_width *= 2;
    const CostModel cost = derive_cost(shape, {.capacity = 100}).cost;
    const CostModel half = derive_cost(wider, {.capacity = 100}).cost;
    for (std::size_t s = 0; s < cost.stages().size(); ++s) {
      RC_ASSERT(std::abs(cost.stages()[s].alpha - 2.0 * half.stages()[s].alpha) <= 1e-12 * cost.stages()[s].alpha);
      RC_ASSERT(std::abs(cost.stages()[s].beta - 2.0 * half.stages()[s].beta) <= 1e-12 * cost.stages()[s].beta);
    }
  });
}

}  // namespace
}  // namespace routepack
