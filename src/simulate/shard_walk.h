// SPDX-License-Identifier: Apache-2.0
// One row through the layers of one chunk, on all devices of one shard: where they meet, who is late, who waits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "routepack/simulate.h"
#include "simulate/step_loads.h"

namespace routepack {

/// Layers [first, last) of the timing.
struct ChunkLayers {
  std::int32_t first = 0, last = 0;
};

/// What a walk writes to: the account of each device, and who made others wait.
struct Accounts {
  std::span<DeviceTime> devices;  ///< of this stage and shard, by place
  Culprits* culprits = nullptr;
  TimelineSink* sink = nullptr;
};

class ShardWalk {
 public:
  /// `window_layer`: the window's layer of each routed layer of the timing.
  ShardWalk(const StepTiming& timing, const StepLoads& loads, std::span<const std::int32_t> window_layer,
            std::span<const SlotId> slots, ShardId shard, std::int32_t places);

  /// All devices begin at `begin`; when the last is done. They have met then.
  double run(Pass pass, std::int32_t row, const ChunkLayers& chunk, double begin, const Accounts& accounts);

 private:
  struct Context {
    Pass pass;
    std::int32_t row, layer;
    const Accounts& accounts;
  };
  void layer(const Context& at, Pass pass);
  void dense(const Context& at, const LayerTiming& timing, Pass pass);
  void experts(const Context& at, const LayerTiming& timing, Pass pass);
  /// A stretch that takes all devices equally long.
  void together(const Context& at, Activity activity, double seconds, double DeviceTime::* part);
  void meet(const Context& at);
  void emit(const Context& at, std::int32_t place, Activity activity, double begin, double end) const;

  [[nodiscard]] std::int32_t slot_of(std::int32_t place) const;
  [[nodiscard]] std::int32_t rank_of(std::int32_t place) const;

  const StepTiming& timing_;
  const StepLoads& loads_;
  std::span<const std::int32_t> window_layer_;
  std::span<const SlotId> slots_;
  ShardId shard_;
  std::int32_t places_;
  std::vector<double> clock_;  // [slots of the shard]
  std::vector<double> busy_;   // [P], of the experts of one layer
};

}  // namespace routepack
