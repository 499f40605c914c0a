// SPDX-License-Identifier: Apache-2.0
// Where every byte of expert state lies on an EP × EDP grid: which tensors an expert has, and which lane holds which
// part of them. Integers only; every rank builds the same layout without talking to anyone.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "routepack/ids.h"
#include "routepack/params.h"

namespace routepack {

/// One pipeline stage's EP × EDP grid for one expert-tensor-parallel index (every ETP rank moves its own shard the same
/// way). Grid rank r = lane·EP + p, Megatron's order inside a stage with ETP = 1.
struct ExpertGrid {
  std::int32_t ep = 0;   ///< P, ranks of an EP communicator
  std::int32_t edp = 1;  ///< lanes: replicas of every slot, over which optimizer state is sharded
  [[nodiscard]] std::int32_t ranks() const { return ep * edp; }
  [[nodiscard]] std::int32_t rank(std::int32_t ep_rank, std::int32_t lane) const { return lane * ep + ep_rank; }
  [[nodiscard]] std::int32_t ep_rank(std::int32_t rank) const { return rank % ep; }
  [[nodiscard]] std::int32_t lane(std::int32_t rank) const { return rank / ep; }
  friend bool operator==(const ExpertGrid&, const ExpertGrid&) = default;
};

/// Element types of trainers' state, by their safetensors names.
// NOLINTNEXTLINE(readability-identifier-naming)
enum class ScalarType { U8, I8, I16, U16, I32, I64, F16, BF16, F32, F64, F8_E4M3, F8_E5M2, F8_E8M0 };
std::int64_t bytes_of(ScalarType type);
constexpr auto choices(ScalarType) {
  using enum ScalarType;
  return std::array{Choice<ScalarType>{"U8", U8},           Choice<ScalarType>{"I8", I8},
                    Choice<ScalarType>{"I16", I16},         Choice<ScalarType>{"U16", U16},
                    Choice<ScalarType>{"I32", I32},         Choice<ScalarType>{"I64", I64},
                    Choice<ScalarType>{"F16", F16},         Choice<ScalarType>{"BF16", BF16},
                    Choice<ScalarType>{"F32", F32},         Choice<ScalarType>{"F64", F64},
                    Choice<ScalarType>{"F8_E4M3", F8_E4M3}, Choice<ScalarType>{"F8_E5M2", F8_E5M2},
                    Choice<ScalarType>{"F8_E8M0", F8_E8M0}};
}

/// What a tensor is to the trainer. A role that is not listed cannot be moved.
enum class TensorRole {
  Weight,     ///< model weights, also fp8 blocks
  Bias,       ///< of a projection
  Scale,      ///< of fp8 blocks
  Metadata,   ///< other expert-indexed bytes: amax history, extra state
  Master,     ///< fp32 or bf16 copy of the weights in the optimizer
  Remainder,  ///< low halves of masters whose high halves are the bf16 weights
  Moment,     ///< Adam's exp_avg and exp_avg_sq, Muon's momentum_buffer
  Step,       ///< a counter: equal everywhere, never moved
  Canary,     ///< RoutePack's own: which expert of which layer the slot holds
};
constexpr auto choices(TensorRole) {
  using enum TensorRole;
  return std::array{Choice<TensorRole>{"weight", Weight}, Choice<TensorRole>{"bias", Bias},
                    Choice<TensorRole>{"scale", Scale},   Choice<TensorRole>{"metadata", Metadata},
                    Choice<TensorRole>{"master", Master}, Choice<TensorRole>{"remainder", Remainder},
                    Choice<TensorRole>{"moment", Moment}, Choice<TensorRole>{"step", Step},
                    Choice<TensorRole>{"canary", Canary}};
}

/// How a tensor is spread over the lanes of its slot.
enum class Spread {
  Replicated,  ///< every lane holds all of it
  Sharded,     ///< each lane holds the part that the parameter's lane ranges give it, contiguous
  Equal,       ///< one value that all experts on all ranks share: compared, not moved
};
constexpr auto choices(Spread) {
  using enum Spread;
  return std::array{Choice<Spread>{"replicated", Replicated}, Choice<Spread>{"sharded", Sharded},
                    Choice<Spread>{"equal", Equal}};
}

/// One trainable tensor of an expert, e.g. fc1 with 2·f·h elements. Lane ranges belong to parameters.
struct ExpertParameter {
  std::string name;
  std::vector<std::int64_t> shape;
  [[nodiscard]] std::int64_t elements() const;
  friend bool operator==(const ExpertParameter&, const ExpertParameter&) = default;
};

/// One tensor of expert state. Row-major and contiguous per expert, whether experts lie in tensors of their own or
/// stacked in one (expert-outermost).
struct ExpertTensor {
  std::string name;  ///< unique, e.g. «fc1.weight», «fc1.exp_avg»
  TensorRole role = TensorRole::Weight;
  ScalarType type = ScalarType::BF16;
  Spread spread = Spread::Replicated;
  std::int64_t elements = 0;              ///< of one expert, all lanes together; of a sharded one its parameter's
  std::optional<std::int32_t> parameter;  ///< index of the parameter that it belongs to; needed when sharded
  [[nodiscard]] std::int64_t bytes() const { return elements * bytes_of(type); }
  friend bool operator==(const ExpertTensor&, const ExpertTensor&) = default;
};

/// Elements [begin, end) of a flat parameter that `lane` owns.
struct LaneRange {
  std::int32_t lane = 0;
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  friend bool operator==(const LaneRange&, const LaneRange&) = default;
};

/// In which order a layer's parameters were registered, which decides where they lie in a buffer.
enum class Registration {
  Grouped,     ///< fc1 of all local experts, then fc2 of all (TEGroupedMLP)
  Sequential,  ///< all parameters of local expert 0, then of expert 1 (SequentialMLP)
};
constexpr auto choices(Registration) {
  using enum Registration;
  return std::array{Choice<Registration>{"grouped", Grouped}, Choice<Registration>{"sequential", Sequential}};
}

/// Megatron-Core's flat expert buffers (distributed/param_and_grad_buffer.py, optimizer/param_layout.py): parameters in
/// reverse registration order, starts padded to `start_alignment` elements, a bucket closed once it holds
/// `bucket_elements` or more, its end padded to lcm(edp, 128), or lcm(edp, 128, 2¹⁶) with `high_bus_bandwidth`; lane k
/// owns the k-th of edp equal parts of every bucket, whatever parameters it cuts.
struct MegatronBuffers {
  Registration registration = Registration::Grouped;
  std::optional<std::int64_t> bucket_elements = {};  ///< none: one bucket per buffer
  bool high_bus_bandwidth = false;                   ///< pad_buckets_for_high_nccl_busbw
  std::int64_t start_alignment = 64;
  /// Layers of each model chunk (virtual pipeline), in order; empty: one chunk of all layers. A buffer per chunk.
  std::vector<std::vector<LayerId>> chunks = {};
  friend bool operator==(const MegatronBuffers&, const MegatronBuffers&) = default;
};

/// One parameter instance in a buffer, for tests and for adapters that compare with the trainer's own tables.
struct BufferSpan {
  LayerId layer;
  std::int32_t local_slot = 0, parameter = 0, chunk = 0, bucket = 0;
  std::int64_t begin = 0, end = 0;                ///< elements in the buffer
  std::int64_t bucket_begin = 0, bucket_end = 0;  ///< elements in the buffer, padding included
  friend bool operator==(const BufferSpan&, const BufferSpan&) = default;
};

/// Facts about a trainer that forbid moving its experts (docs/data-plane.md lists the reasons).
struct TrainerFacts {
  bool fully_sharded = false;          ///< Megatron-FSDP: parameters are DTensors
  std::int32_t weight_remat = 1;       ///< EGTP: weights re-materialised over more than one rank
  bool experts_differ = false;         ///< learning rate, decay, … differ between experts
  bool replay_in_flight = false;       ///< a routing replay is between forward and backward
  bool offloaded = false;              ///< buffers are on the host or released
  bool params_gather_pending = false;  ///< an overlapped parameter all-gather has not ended
  /// @throws InvalidInput naming the fact and what to do
  void refuse_unmovable() const;
  friend bool operator==(const TrainerFacts&, const TrainerFacts&) = default;
};

/// Immutable. The last tensor is always the canary: I64 [2] per slot (layer, expert), replicated, held by the engine.
class GridLayout {
 public:
  /// @param slots local slots per rank, n = E/P
  /// @throws InvalidInput for sizes below 1, P = 1 (nothing to move to), more than 2¹⁵ − 1 ranks, 2⁶² bytes or more,
  ///         duplicate or empty names, a sharded tensor without parameter or of another size, a canary or unknown role,
  ///         an equal tensor that is no step, a step that is not equal, and sharded 8- or 16-bit floats with scales
  ///         (F16, F8 masters and moments: a re-partition would re-quantise them);
  ///         more than 2²⁰ parameters on a rank (L·n·parameters), 2²¹ lane ranges, 2³¹ − 1 experts in all layers
  static GridLayout megatron(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots,
                             std::vector<ExpertParameter> parameters, std::vector<ExpertTensor> tensors,
                             const MegatronBuffers& buffers = {});
  /// Lane ranges as the trainer has them. `ranges` is [L, n, parameters], each a partition of the parameter in order of
  /// begin; lanes may be missing and a lane may own at most one range of a parameter. Whole tensors on one lane (dist
  /// Muon) are one range.
  /// @throws InvalidInput as above, or unless every list is such a partition
  static GridLayout explicit_ranges(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots,
                                    std::vector<ExpertParameter> parameters, std::vector<ExpertTensor> tensors,
                                    std::vector<std::vector<LaneRange>> ranges);
  /// bf16 weights, fp32 master and two fp32 moments of a gated FFN, fc1 [2·width, hidden] and fc2 [hidden, width].
  static GridLayout adam(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots, std::int64_t hidden,
                         std::int64_t width, const MegatronBuffers& buffers = {});

  /// A `routepack.grid-layout/1` file (docs/formats.md). @throws IoError, FormatError, InvalidInput
  static GridLayout load(const std::filesystem::path& path);
  /// The same from its text; `where` goes in front of messages.
  static GridLayout from_json(std::string_view text, const std::string& where);
  [[nodiscard]] std::string to_json() const;
  void save(const std::filesystem::path& path) const;

  [[nodiscard]] const ExpertGrid& grid() const { return grid_; }
  [[nodiscard]] std::int32_t layers() const { return layers_; }
  [[nodiscard]] std::int32_t slots() const { return slots_; }  ///< n, per rank
  [[nodiscard]] std::int32_t experts() const { return slots_ * grid_.ep; }
  [[nodiscard]] std::span<const ExpertParameter> parameters() const { return parameters_; }
  [[nodiscard]] std::span<const ExpertTensor> tensors() const { return tensors_; }  ///< the canary last
  [[nodiscard]] std::int32_t canary() const { return static_cast<std::int32_t>(tensors_.size()) - 1; }
  /// Who owns what of a parameter in a local slot: by rising begin, empty ranges left out.
  [[nodiscard]] std::span<const LaneRange> lanes_of(LayerId layer, std::int32_t local_slot,
                                                    std::int32_t parameter) const;
  /// What `lane` owns of it; an empty range when nothing.
  [[nodiscard]] LaneRange range_of(LayerId layer, std::int32_t local_slot, std::int32_t parameter,
                                   std::int32_t lane) const;
  /// Bytes of a tensor that a lane holds for a local slot.
  [[nodiscard]] std::int64_t bytes_on(LayerId layer, std::int32_t local_slot, std::int32_t tensor,
                                      std::int32_t lane) const;
  /// «xxh3:» and 16 hex digits over everything that ranks must agree on.
  [[nodiscard]] std::string fingerprint() const;
  friend bool operator==(const GridLayout&, const GridLayout&) = default;

 private:
  GridLayout() = default;

  ExpertGrid grid_;
  std::int32_t layers_ = 0, slots_ = 0;
  std::vector<ExpertParameter> parameters_;
  std::vector<ExpertTensor> tensors_;
  std::vector<std::uint32_t> first_range_;  // [L·n·parameters + 1], into ranges_
  std::vector<LaneRange> ranges_;
};

/// Where Megatron puts every parameter, in buffer order.
std::vector<BufferSpan> megatron_spans(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots,
                                       std::span<const ExpertParameter> parameters, const MegatronBuffers& buffers);

}  // namespace routepack
