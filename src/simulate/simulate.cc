// SPDX-License-Identifier: Apache-2.0
#include "routepack/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/assert.h"
#include "routepack/error.h"
#include "simulate/schedule.h"
#include "simulate/shard_walk.h"
#include "simulate/step_loads.h"

namespace routepack {
namespace {

/// The window's layer of each routed layer. A window holds the MoE layers, or all decoder layers with zeros in the
/// dense ones.
std::vector<std::int32_t> window_layers(const StepTiming& timing, const Window& window) {
  const auto routed = std::ranges::count_if(timing.layers, &LayerTiming::routed);
  const auto decoder = std::ranges::count_if(timing.layers, [](const LayerTiming& l) { return l.stage != kHeadStage; });
  if (routed != window.layers() && decoder != window.layers()) {
    throw InvalidInput(
        fmt::format("timing: found {} MoE layers of {}, wanted the window's {}", routed, decoder, window.layers()));
  }
  std::vector<std::int32_t> numbers;
  std::int32_t next = 0;
  for (const LayerTiming& layer : timing.layers) {
    numbers.push_back(next);
    if (layer.routed || routed != window.layers()) ++next;
  }
  return numbers;
}

/// Decoder layers dealt evenly over the chunks.
std::vector<ChunkLayers> deal_layers(const StepTiming& timing, const PipelineShape& pipeline) {
  const auto layers = static_cast<std::int32_t>(timing.layers.size());
  if (pipeline.stages < 1 || pipeline.chunks < 1 || std::int64_t{pipeline.stages} * pipeline.chunks > layers) {
    throw InvalidInput(fmt::format("pipeline: found {} stages of {} chunks, wanted at least 1 and at most {} in all",
                                   pipeline.stages, pipeline.chunks, layers));
  }
  if (pipeline.stages == 1 && pipeline.chunks > 1) {
    throw InvalidInput(fmt::format("pipeline: found {} chunks on a single stage, wanted 1", pipeline.chunks));
  }
  const std::int32_t chunks = pipeline.stages * pipeline.chunks;
  std::vector<ChunkLayers> dealt;
  ChunkLayers next;
  for (std::int32_t c = 0; c < chunks; ++c) {
    next.last = next.first + layers / chunks + (c < layers % chunks ? 1 : 0);
    dealt.push_back(next);
    next.first = next.last;
  }
  return dealt;
}

/// Events of one step, on all stages and shards.
class Run {
 public:
  Run(const Instance& instance, const Placement& placement, const Layout& layout, const StepTiming& timing,
      const PipelineShape& pipeline, TimelineSink* sink)
      : topology_(instance.topology),
        timing_(timing),
        pipeline_(pipeline),
        sink_(sink),
        meet_in_rows_(instance.sync == Sync::Row),
        chunks_(deal_layers(timing, pipeline)),
        window_layer_(window_layers(timing, instance.window)),
        loads_(step_loads(instance, placement, layout, timing.tile)) {
    refuse_routes_of_dense_layers();
    result_.culprits.by_slot.resize(static_cast<std::size_t>(loads_.slots));
    result_.culprits.by_rank.resize(static_cast<std::size_t>(std::int64_t{loads_.shards} * loads_.ranks));
    result_.culprits.by_layer.resize(timing.layers.size());
    result_.culprits.by_row.resize(static_cast<std::size_t>(loads_.rows));
    for (const SampleId i : instance.window.sample_ids()) result_.tokens += instance.window.length(i);
    for (std::int32_t row = 0; row < loads_.rows; ++row) {
      double most = 0.0;
      for (const SlotId d : topology_.slot_ids()) most = std::max(most, loads_.cells[loads_.cell_index(row, d)].tokens);
      longest_cell_.push_back(most);
    }
    for (std::int32_t stage = 0; stage < pipeline.stages; ++stage) {
      for (const ShardId g : topology_.shard_ids()) {
        const auto slots = topology_.slots_of(g);
        const std::int32_t places = std::max(loads_.ranks, static_cast<std::int32_t>(slots.size()));
        first_device_.push_back(result_.devices.size());
        for (std::int32_t place = 0; place < places; ++place) {
          result_.devices.push_back({.device = {.stage = stage, .shard = g, .place = place}});
        }
        if (stage == 0) walks_.emplace_back(timing_, loads_, window_layer_, slots, g, places);
      }
    }
    first_device_.push_back(result_.devices.size());
  }

  StepTimes run() {
    pass_all();
    finish();
    return std::move(result_);
  }

 private:
  /// When a row has passed a chunk, [R, chunks, G]; NaN before.
  struct Done {
    std::vector<double> at;
    std::int32_t chunks = 0, shards = 0;
    Done(std::int32_t rows, std::int32_t chunk_count, std::int32_t shard_count)
        : at(static_cast<std::size_t>(std::int64_t{rows} * chunk_count * shard_count), std::nan("")),
          chunks(chunk_count),
          shards(shard_count) {}
    double& of(std::int32_t row, std::int32_t chunk, ShardId g) {
      return at[static_cast<std::size_t>((std::int64_t{row} * chunks + chunk) * shards + g.value())];
    }
  };

  [[nodiscard]] std::size_t index_of(std::int32_t stage, ShardId g) const {
    return static_cast<std::size_t>(std::int64_t{stage} * loads_.shards + g.value());
  }

  /// What nobody would ever compute.
  void refuse_routes_of_dense_layers() const {
    std::vector<bool> computed(static_cast<std::size_t>(loads_.layers), false);
    for (std::size_t l = 0; l < timing_.layers.size(); ++l) {
      if (timing_.layers[l].routed) computed[static_cast<std::size_t>(window_layer_[l])] = true;
    }
    for (std::int32_t layer = 0; layer < loads_.layers; ++layer) {
      if (computed[static_cast<std::size_t>(layer)]) continue;
      for (std::int32_t row = 0; row < loads_.rows; ++row) {
        for (const ShardId g : topology_.shard_ids()) {
          const RankWork* ranks = loads_.ranks_of(row, g, layer);
          if (std::all_of(ranks, ranks + loads_.ranks, [](const RankWork& rank) { return rank.tokens == 0; })) continue;
          throw InvalidInput(fmt::format(
              "counts[:, {}]: found routed tokens in a layer that the timing has as dense, wanted none", layer));
        }
      }
    }
  }

  std::span<DeviceTime> devices_of(std::int32_t stage, ShardId g) {
    const std::size_t index = index_of(stage, g);
    return std::span(result_.devices).subspan(first_device_[index], first_device_[index + 1] - first_device_[index]);
  }

  /// The devices of a shard wait from `since` to `until`.
  void wait(std::int32_t stage, ShardId g, std::int32_t row, double since, double until, double DeviceTime::* part) {
    if (until <= since) return;
    for (DeviceTime& device : devices_of(stage, g)) {
      device.*part += until - since;
      emit(device.device, Activity::Wait, row, since, until);
    }
  }

  void emit(const DeviceId& device, Activity activity, std::int32_t row, double begin, double end) {
    if (sink_ == nullptr || end <= begin) return;
    sink_->interval({.device = device, .activity = activity, .row = row, .begin = begin, .end = end});
  }

  /// Stages take the next pass of their order as soon as its rows are there.
  void pass_all() {
    const auto chunk_count = static_cast<std::int32_t>(chunks_.size());
    Done forward(loads_.rows, chunk_count, loads_.shards), backward(loads_.rows, chunk_count, loads_.shards);
    free_.assign(static_cast<std::size_t>(std::int64_t{pipeline_.stages} * loads_.shards), 0.0);
    std::vector<std::vector<PassOfRow>> orders;
    for (std::int32_t stage = 0; stage < pipeline_.stages; ++stage) {
      orders.push_back(stage_order(pipeline_, stage, loads_.rows));
    }
    std::vector<std::size_t> next(orders.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (std::int32_t stage = 0; stage < pipeline_.stages; ++stage) {
        const auto s = static_cast<std::size_t>(stage);
        for (; next[s] < orders[s].size(); ++next[s]) {
          const PassOfRow& pass = orders[s][next[s]];
          if (!ready(pass, forward, backward)) break;
          pass_one(stage, pass, forward, backward);
          moved = true;
        }
      }
    }
    for (std::size_t s = 0; s < orders.size(); ++s) {
      ROUTEPACK_ASSERT(next[s] == orders[s].size(), fmt::format("stage {} stuck at pass {}", s, next[s]));
    }
  }

  /// Where the rows of a pass come from: null for the first chunk of all.
  static double* source(const PassOfRow& pass, ShardId g, Done& forward, Done& backward) {
    if (pass.pass == Pass::Forward) return pass.chunk == 0 ? nullptr : &forward.of(pass.row, pass.chunk - 1, g);
    if (pass.chunk == forward.chunks - 1) return &forward.of(pass.row, pass.chunk, g);
    return &backward.of(pass.row, pass.chunk + 1, g);
  }

  static bool ready(const PassOfRow& pass, Done& forward, Done& backward) {
    const double* from = source(pass, ShardId(0), forward, backward);
    return from == nullptr || !std::isnan(*from);
  }

  void pass_one(std::int32_t stage, const PassOfRow& pass, Done& forward, Done& backward) {
    const bool from_here = pass.pass == Pass::Backward && pass.chunk == forward.chunks - 1;
    const double travel = from_here || pipeline_.stages == 1
                              ? 0.0
                              : timing_.hand_over * longest_cell_[static_cast<std::size_t>(pass.row)];
    double last = 0.0;
    for (const ShardId g : topology_.shard_ids()) {
      double& free = free_[index_of(stage, g)];
      const double* from = source(pass, g, forward, backward);
      const double begin = from == nullptr ? free : std::max(free, *from + travel);
      wait(stage, g, pass.row, free, begin, &DeviceTime::wait_pipeline);
      free = walks_[g].run(pass.pass, pass.row, chunks_[static_cast<std::size_t>(pass.chunk)], begin,
                           {devices_of(stage, g), &result_.culprits, sink_});
      last = std::max(last, free);
    }
    const bool meet = meet_in_rows_ && (pipeline_.stages > 1 || pass.pass == Pass::Backward);
    for (const ShardId g : topology_.shard_ids()) {
      double& free = free_[index_of(stage, g)];
      if (meet) {
        wait(stage, g, pass.row, free, last, &DeviceTime::wait_shards);
        free = last;
      }
      (pass.pass == Pass::Forward ? forward : backward).of(pass.row, pass.chunk, g) = free;
    }
  }

  /// Stages of a shard meet, shards meet, gradients are reduced, the optimizer steps.
  void finish() {
    double all = 0.0;
    for (const ShardId g : topology_.shard_ids()) {
      double end = 0.0;
      for (std::int32_t stage = 0; stage < pipeline_.stages; ++stage) {
        end = std::max(end, free_[index_of(stage, g)]);
      }
      result_.shard_ends.push_back(end);
      all = std::max(all, end);
    }
    result_.seconds = all + timing_.reduce + timing_.optimizer;
    for (std::int32_t stage = 0; stage < pipeline_.stages; ++stage) {
      for (const ShardId g : topology_.shard_ids()) {
        const double free = free_[index_of(stage, g)];
        wait(stage, g, -1, free, result_.shard_ends[g], &DeviceTime::wait_pipeline);
        wait(stage, g, -1, result_.shard_ends[g], all, &DeviceTime::wait_shards);
        for (DeviceTime& device : devices_of(stage, g)) {
          device.fixed += timing_.reduce + timing_.optimizer;
          emit(device.device, Activity::Reduce, -1, all, all + timing_.reduce);
          emit(device.device, Activity::Optimizer, -1, all + timing_.reduce, result_.seconds);
        }
      }
    }
  }

  const Topology& topology_;
  const StepTiming& timing_;
  PipelineShape pipeline_;
  TimelineSink* sink_;
  bool meet_in_rows_;
  std::vector<ChunkLayers> chunks_;
  std::vector<std::int32_t> window_layer_;
  StepLoads loads_;
  std::vector<double> longest_cell_;       // [R]
  std::vector<ShardWalk> walks_;           // [G]
  std::vector<std::size_t> first_device_;  // [S·G + 1]
  std::vector<double> free_;               // [S, G]: since when
  StepTimes result_;
};

}  // namespace

StepTimes simulate_step(const Instance& instance, const Placement& placement, const Layout& layout,
                        const StepTiming& timing, const PipelineShape& pipeline, TimelineSink* sink) {
  if (timing.tile < 1) throw InvalidInput(fmt::format("timing: tile: found {}, wanted at least 1", timing.tile));
  if (layout.slots() != instance.topology.slots()) {
    throw InvalidInput(fmt::format("layout: slots: found {}, wanted {}", layout.slots(), instance.topology.slots()));
  }
  return Run(instance, placement, layout, timing, pipeline, sink).run();
}

double Admission::target() const {
  return std::max(place + pack, std::max(place, other) + state) + admit;
}

double Admission::exposed() const {
  return std::max(0.0, place + pack - (std::max(place, other) + state));
}

double state_move_seconds(const Placement& before, const Placement& after, std::int64_t expert_bytes,
                          const Device& device, std::int32_t ranks_per_node) {
  static_cast<void>(count_moves(before, after));  // the shapes agree
  struct Traffic {
    std::int64_t near_in = 0, near_out = 0, far_in = 0, far_out = 0;
  };
  const std::int32_t node = ranks_per_node > 0 ? ranks_per_node : after.ranks();
  std::vector<Traffic> traffic(static_cast<std::size_t>(after.ranks()));
  for (const LayerId l : IdRange<LayerId>(after.layers())) {
    for (const ExpertId e : IdRange<ExpertId>(after.experts())) {
      const RankId from = before.rank_of(l, e), to = after.rank_of(l, e);
      if (from == to) continue;
      const bool near = from.value() / node == to.value() / node;
      ++(near ? traffic[from].near_out : traffic[from].far_out);
      ++(near ? traffic[to].near_in : traffic[to].far_in);
    }
  }
  double slowest = 0.0;
  for (const Traffic& rank : traffic) {
    const auto bytes = [&](std::int64_t in, std::int64_t out) {
      return static_cast<double>(std::max(in, out)) * static_cast<double>(expert_bytes);
    };
    slowest = std::max({slowest, bytes(rank.near_in, rank.near_out) / device.near_rate,
                        bytes(rank.far_in, rank.far_out) / device.far_rate});
  }
  return slowest;
}

}  // namespace routepack
