// SPDX-License-Identifier: Apache-2.0
// What a token costs in a given model: the shape of its layers from a config.json or a preset, parameters and floating
// point operations from the shape, and from those the cost model of the planner. Formulas, their sources and what is
// left out: docs/model.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "routepack/cost.h"
#include "routepack/device.h"

namespace routepack {

/// Softmax attention whose query heads share key-value heads (MHA, GQA, MQA).
struct GroupedAttention {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t window = 0;   ///< tokens that a token sees, itself among them; 0 = all before it
  bool output_gate = false;  ///< a gate as wide as the output, from the hidden state
  bool biases = false;       ///< of the query, key and value projections
  bool qk_norm = false;
  bool sinks = false;  ///< one learned logit per head
  friend bool operator==(const GroupedAttention&, const GroupedAttention&) = default;
};

/// Chooses the keys that an attention layer looks at: its scores cost every pair, attention costs `top_k` pairs a
/// token.
struct Indexer {
  std::int64_t heads = 0, dim = 0, top_k = 0;
  bool own = true;  ///< false: the layer takes what an earlier layer chose
  friend bool operator==(const Indexer&, const Indexer&) = default;
};

/// Multi-head latent attention: keys and values from one low-rank vector per token.
struct LatentAttention {
  std::int64_t heads = 0;
  std::int64_t q_rank = 0;  ///< 0: queries are projected directly
  std::int64_t kv_rank = 0, qk_nope = 0, qk_rope = 0, v_dim = 0;
  std::int64_t gate_width = 0;  ///< outputs of a gate projection, 0 = none
  std::optional<Indexer> indexer = {};
  friend bool operator==(const LatentAttention&, const LatentAttention&) = default;
};

/// Linear attention by the gated delta rule: Gated DeltaNet, Kimi Delta Attention.
struct DeltaAttention {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t conv_width = 0;   ///< taps of the short convolutions over queries, keys and values
  std::int64_t decay_width = 0;  ///< outputs of the decay projection: one per value head, or one per key channel
  std::int64_t gate_rank = 0;    ///< rank of the decay and output-gate projections, 0 = full
  friend bool operator==(const DeltaAttention&, const DeltaAttention&) = default;
};

/// Linear attention with a fixed decay per head, computed in blocks (lightning attention).
struct LightningAttention {
  std::int64_t heads = 0, head_dim = 0, block = 0;
  friend bool operator==(const LightningAttention&, const LightningAttention&) = default;
};

struct AttentionShape {
  std::string stage;  ///< name of the cost stage; attentions of one name share it
  std::variant<GroupedAttention, LatentAttention, DeltaAttention, LightningAttention> kind;
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

struct LayerShape {
  std::size_t attention = 0;     ///< index into ModelShape::attentions
  std::int64_t dense_width = 0;  ///< inner width of a dense feed-forward layer; 0 = an MoE layer
  friend bool operator==(const LayerShape&, const LayerShape&) = default;
};

/// What the layers of a model are made of. All feed-forward layers are gated (three matrices).
struct ModelShape {
  std::string family;  ///< model_type of the configuration
  std::int64_t hidden = 0, vocab = 0;
  bool tied_head = false;  ///< the head uses the embedding table
  std::int64_t experts = 0, top_k = 0, moe_width = 0;
  std::int64_t shared_width = 0;  ///< inner width of all shared experts together, 0 = none
  bool shared_gate = false;       ///< a scalar gate on the shared experts
  bool expert_biases = false;
  std::vector<AttentionShape> attentions;
  std::vector<LayerShape> layers;
  std::vector<std::string> left_out;  ///< what the configuration has beside the decoder, for people to read
  [[nodiscard]] std::int64_t moe_layers() const;
  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

/// Reads a configuration in the style of Hugging Face; a nested `text_config` is the language model of a larger one.
/// @throws FormatError for text that is not such JSON; InvalidInput for an unknown architecture or missing keys, with
///         their names and what to do instead
ModelShape parse_model_shape(std::string_view json, const std::string& where);
ModelShape load_model_shape(const std::filesystem::path& path);
/// The shape of a preset that list_models() names. @throws InvalidInput listing the names
ModelShape model_shape(std::string_view preset);
/// Values of `model_type` that are understood.
std::vector<std::string> model_families();

/// @throws InvalidInput unless a window of this structure can be of the model. Windows hold all MoE layers, or all
///         layers with zeros in the dense ones.
void require_fits(const ModelShape& shape, std::int64_t layers, std::int64_t experts, std::int64_t top_k,
                  const std::string& where);

/// Exact below 2⁵³.
struct ParameterCount {
  double total = 0.0;      ///< multi-token prediction and encoders of other modalities left out
  double activated = 0.0;  ///< of one token: top_k routed experts, everything else of `total` but the embedding table
  double embedding = 0.0;  ///< the table of token embeddings
  double head = 0.0;       ///< the projection to the vocabulary, also when it is the same table
  double expert = 0.0;     ///< one routed expert of one layer
};
ParameterCount count_parameters(const ModelShape& shape);

/// Which passes over a sample are counted.
struct Passes {
  bool backward = true;
  bool recompute = false;  ///< every layer's forward pass a second time before its backward pass
  friend bool operator==(const Passes&, const Passes&) = default;
};
/// Matrix products cost 1 forward and 2 backward: 1, 3, or 4 with recomputation.
double pass_multiple(const Passes& passes);

/// Floating point operations, a multiply-add counts 2, by the kind of kernel that does them.
struct Flops {
  double dense = 0.0;      ///< matrix products with weights, but for routed experts
  double attention = 0.0;  ///< scores and weighted sums over keys
  double linear = 0.0;     ///< recurrences and short convolutions of linear attention
  [[nodiscard]] double total() const { return dense + attention + linear; }
  friend bool operator==(const Flops&, const Flops&) = default;
};

/// The dense side of all layers with one kind of attention: a sample of t tokens costs token·t + pair·t². Each layer's
/// router, shared experts or dense feed-forward is in it, and the head is in the stage of the last layer: what runs
/// between two meetings of the expert-parallel ranks adds up within a cell.
struct StageWork {
  std::string name;
  std::int64_t layers = 0;
  Flops token = {}, pair = {};
};
/// Stages in the order in which their first layers stand. A window narrower than `longest` tokens counts for every
/// token as it does, on average, in a sample of that length; a wider one is full attention. `longest` ≥ 1.
std::vector<StageWork> stage_work(const ModelShape& shape, std::int64_t longest, const Passes& passes = {});

/// One routed token through one expert: three matrix products.
double routed_token_flops(const ModelShape& shape, const Passes& passes = {});
/// Work of one token, on average over a sample of `tokens` tokens, routed experts among it.
double flops_per_token(const ModelShape& shape, std::int64_t tokens, const Passes& passes = {});
/// What all-to-all carries for one routed token: its hidden state there and back in every pass, each way `value_bytes`
/// per element. An upper bound: implementations that send a token once to a rank with several of its experts send less.
double all_to_all_bytes(const ModelShape& shape, const Passes& passes = {}, double value_bytes = 2.0);

/// How the work is spread: a cell's dense work over tp·cp ranks, an expert's over etp.
struct CostScale {
  std::int64_t capacity = 0;  ///< C
  std::int64_t tp = 1, cp = 1, etp = 1;
};

/// A cost model with the figures it was made of.
struct DerivedCost {
  CostModel cost;             ///< expert = 1: the unit is one routed token through one expert on one rank
  double unit_flops = 0.0;    ///< of the unit, on one rank
  double unit_seconds = 0.0;  ///< the same in time; 0 without a device. A score s takes s·C·unit_seconds seconds
  double unit_bytes = 0.0;    ///< all-to-all per routed token
};

/// α_s and β_s of the objective, which counts tokens and pairs of tokens in units of C and C² and divides expert loads
/// by C: α_s = token_s/unit, β_s = C·pair_s/unit. With a device every kind of work is weighed by the rate that the
/// device reaches in it, without one all rates are equal.
/// @throws InvalidInput for a capacity or parallel size below 1
DerivedCost derive_cost(const ModelShape& shape, const CostScale& scale, const Passes& passes = {},
                        const Device* device = nullptr);

/// One line for people: family, layers by kind, parameters, what was left out.
std::string describe(const ModelShape& shape);

}  // namespace routepack
