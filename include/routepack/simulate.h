// SPDX-License-Identifier: Apache-2.0
// How long one optimizer step takes: a timeline of rows, layers, passes and ranks (docs/model.md, «A step»).
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "routepack/device.h"
#include "routepack/instance.h"
#include "routepack/layout.h"
#include "routepack/model_cost.h"
#include "routepack/placement.h"

namespace routepack {

/// The two ways through the layers.
enum class Pass : std::uint8_t { Forward, Backward };

/// A time for each pass, in seconds.
struct PerPass {
  double forward = 0.0, backward = 0.0;
  [[nodiscard]] double of(Pass pass) const { return pass == Pass::Forward ? forward : backward; }
  [[nodiscard]] double sum() const { return forward + backward; }
  friend bool operator==(const PerPass&, const PerPass&) = default;
};

/// Stage of the last layer of a timed model: the projection to the vocabulary.
inline constexpr std::string_view kHeadStage = "head";

/// One decoder layer, or the head, which comes last and is not routed.
struct LayerTiming {
  std::string stage = {};
  bool routed = true;          ///< an MoE layer: ranks meet before and after its experts
  PerPass token = {};          ///< dense side, seconds per token of a cell
  PerPass pair = {};           ///< seconds per t²
  double expert_weight = 1.0;  ///< multiplies StepTiming::expert
  friend bool operator==(const LayerTiming&, const LayerTiming&) = default;
};

/// What things take, in seconds, on one device. With `recompute` a backward pass begins each layer with its forward
/// pass, exchanges included.
struct StepTiming {
  std::vector<LayerTiming> layers = {};  ///< in decoder order; the window has the routed ones, or all but the head
  PerPass expert = {};                   ///< per routed token of a rank, in one layer
  PerPass active = {};                   ///< per expert with load, in one layer, beside its tokens
  PerPass floor = {};                    ///< per expert with load: a rank takes at least that many (reading weights)
  std::int64_t tile = 1;                 ///< tokens; the load of an expert counts as the next multiple
  PerPass exchange = {};                 ///< dispatch, and combine: per routed token that a device sends or receives
  PerPass exchange_fixed = {};           ///< dispatch, and combine, whatever they carry
  PerPass layer_fixed = {};              ///< every layer and row
  double row = 0.0;                      ///< every row, before its first layer
  double hand_over = 0.0;                ///< per token of the longest cell, from one pipeline stage to the next
  double reduce = 0.0;                   ///< gradients, when all shards are there
  double optimizer = 0.0;                ///< after that
  bool recompute = false;
  friend bool operator==(const StepTiming&, const StepTiming&) = default;

  /// Takes exactly what the objective charges: a score of s takes s·C·unit_seconds. The stages take turns over the
  /// layers, evenly; `forward_share` of everything is forward.
  /// @throws InvalidInput when there are more stages than layers, or a number is out of range
  static StepTiming of_cost(const CostModel& cost, std::int64_t capacity, std::int32_t layers,
                            double unit_seconds = 1.0, double forward_share = 1.0 / 3.0);
  /// Reads a timing file as `routepack calibrate` writes it (TOML, docs/formats.md).
  /// @throws IoError, FormatError
  static StepTiming load(const std::filesystem::path& path);
  static StepTiming parse(const std::string& toml, const std::string& where);
};

/// How a model is spread over devices.
struct ModelSpread {
  std::int64_t capacity = 0;  ///< C: the longest sample of windowed attention
  std::int32_t dp = 1, ep = 1, tp = 1, cp = 1, etp = 1, pp = 1;
  std::int32_t ranks_per_node = 8;
  std::int64_t tile = 128;  ///< rows of a grouped product's tile
  bool recompute = false;
};

/// From a model's shape and a device, every formula in docs/model.md. Dense layers before, between and behind the MoE
/// layers are in it, and the head as a layer of its own.
/// @throws InvalidInput for sizes below 1
StepTiming time_model(const ModelShape& shape, const Device& device, const ModelSpread& spread);

/// Rows of a step through pipeline stages. 1F1B, interleaved with more than one chunk per stage.
struct PipelineShape {
  std::int32_t stages = 1;  ///< S
  std::int32_t chunks = 1;  ///< model chunks on each stage, V; layers are dealt evenly, the first chunks get more
  friend bool operator==(const PipelineShape&, const PipelineShape&) = default;
};

/// What a device does at a time.
enum class Activity : std::uint8_t { Row, Dense, Experts, Dispatch, Combine, Reduce, Optimizer, Wait };
constexpr auto choices(Activity) {
  using enum Activity;
  return std::array{Choice<Activity>{"row", Row},
                    Choice<Activity>{"dense", Dense},
                    Choice<Activity>{"experts", Experts},
                    Choice<Activity>{"dispatch", Dispatch},
                    Choice<Activity>{"combine", Combine},
                    Choice<Activity>{"reduce", Reduce},
                    Choice<Activity>{"optimizer", Optimizer},
                    Choice<Activity>{"wait", Wait}};
}

/// A device of the simulation: pipeline stage, shard and place in the shard. A shard has as many devices as EP ranks,
/// or as slots if those are more; device i serves EP rank ⌊i·P/n⌋ and slot ⌊i·|D_g|/n⌋.
struct DeviceId {
  std::int32_t stage = 0;
  ShardId shard;
  std::int32_t place = 0;
  friend bool operator==(const DeviceId&, const DeviceId&) = default;
};

/// One stretch of time of one device. `layer` counts decoder layers; −1 where it means nothing, as `row` then.
struct Interval {
  DeviceId device;
  Activity activity = Activity::Wait;
  Pass pass = Pass::Forward;
  std::int32_t row = -1, layer = -1;
  double begin = 0.0, end = 0.0;
};

/// Hears every interval of positive length; those of one device come in order of time.
class TimelineSink {
 public:
  virtual ~TimelineSink() = default;
  virtual void interval(const Interval& interval) = 0;
};

/// Where the time of one device goes. The parts add up to the step.
struct DeviceTime {
  DeviceId device;
  double dense = 0.0, experts = 0.0, exchange = 0.0, fixed = 0.0;  ///< fixed: reduce and optimizer, too
  double wait_dispatch = 0.0;                                      ///< for slower cells, before tokens are dispatched
  double wait_combine = 0.0;                                       ///< for busier expert ranks
  double wait_pipeline = 0.0;                                      ///< for other stages: bubbles
  double wait_shards = 0.0;                                        ///< for other shards, at the end or in every row
};

/// Who others wait for: seconds of waiting, summed over the devices that wait.
struct Culprits {
  std::vector<double> by_slot;   ///< [D] the slowest cell before a dispatch
  std::vector<double> by_rank;   ///< [G, P] the busiest rank before a combine
  std::vector<double> by_layer;  ///< [layers of the timing] both kinds, where devices wait: in a backward pass the
                                 ///< dense side of the layer above may be what is slow
  std::vector<double> by_row;    ///< [R] both kinds
};

struct StepTimes {
  double seconds = 0.0;
  std::vector<double> shard_ends;   ///< [G] when each shard has its gradients
  std::vector<DeviceTime> devices;  ///< by stage, shard, place
  Culprits culprits;
  std::int64_t tokens = 0;  ///< of all samples
  [[nodiscard]] double tokens_per_second() const { return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0; }
};

/// Runs the step: every row through every layer, forward and backward. O(N·L·E + R·G·L·(D + P)).
/// Within a shard all devices meet before and after the experts of each MoE layer; shards meet when the step ends, or
/// after each row with Sync::Row (with several pipeline stages: after each pass of a row over a chunk).
/// @throws InvalidInput when the shapes disagree, the timing has other layers than the window, or
///         interleaving meets a number of rows that the stages do not divide
StepTimes simulate_step(const Instance& instance, const Placement& placement, const Layout& layout,
                        const StepTiming& timing, const PipelineShape& pipeline = {}, TimelineSink* sink = nullptr);

/// From the moment the routes are known to the first microbatch (paper equations 19 and 20), in seconds.
struct Admission {
  double place = 0.0;  ///< T_LPT: until experts have a place
  double pack = 0.0;   ///< T_pack: rows, seeds, search
  double other = 0.0;  ///< T_aux: what the trainer does anyway before state can move
  double state = 0.0;  ///< T_actor: moving and applying state
  double admit = 0.0;  ///< T_admit: after both branches

  /// Equation 19: max(T_LPT + T_pack, max(T_LPT, T_aux) + T_actor) + T_admit.
  [[nodiscard]] double target() const;
  /// By how much packing is late, 0 when it is hidden (equation 20).
  [[nodiscard]] double exposed() const;
};

/// Seconds in which the busiest rank sends or receives its share of a move: bytes per expert over the rate of its link,
/// or over both links at once when some leave the node.
double state_move_seconds(const Placement& before, const Placement& after, std::int64_t expert_bytes,
                          const Device& device, std::int32_t ranks_per_node);

}  // namespace routepack
