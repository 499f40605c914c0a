// SPDX-License-Identifier: Apache-2.0
#include "simulate/shard_walk.h"

#include <algorithm>

namespace routepack {

ShardWalk::ShardWalk(const StepTiming& timing, const StepLoads& loads, std::span<const std::int32_t> window_layer,
                     std::span<const SlotId> slots, ShardId shard, std::int32_t places)
    : timing_(timing),
      loads_(loads),
      window_layer_(window_layer),
      slots_(slots),
      shard_(shard),
      places_(places),
      clock_(slots.size()),
      busy_(static_cast<std::size_t>(loads.ranks)) {}

std::int32_t ShardWalk::slot_of(std::int32_t place) const {
  return static_cast<std::int32_t>(std::int64_t{place} * static_cast<std::int64_t>(slots_.size()) / places_);
}

std::int32_t ShardWalk::rank_of(std::int32_t place) const {
  return static_cast<std::int32_t>(std::int64_t{place} * loads_.ranks / places_);
}

double ShardWalk::run(Pass pass, std::int32_t row, const ChunkLayers& chunk, double begin, const Accounts& accounts) {
  std::ranges::fill(clock_, begin);
  Context at{.pass = pass, .row = row, .layer = chunk.first, .accounts = accounts};
  if (pass == Pass::Forward) {
    if (chunk.first == 0) together(at, Activity::Row, timing_.row, &DeviceTime::fixed);
    for (; at.layer < chunk.last; ++at.layer) layer(at, Pass::Forward);
  } else {
    for (at.layer = chunk.last - 1; at.layer >= chunk.first; --at.layer) {
      if (timing_.recompute) layer(at, Pass::Forward);
      layer(at, Pass::Backward);
    }
    ++at.layer;
  }
  at.layer = std::min(at.layer, chunk.last - 1);
  meet(at);
  return clock_.empty() ? begin : clock_.front();
}

/// `pass` differs from that of the context in a forward pass that is done again.
void ShardWalk::layer(const Context& at, Pass pass) {
  const LayerTiming& timing = timing_.layers[static_cast<std::size_t>(at.layer)];
  if (pass == Pass::Forward) dense(at, timing, pass);
  if (timing.routed) experts(at, timing, pass);
  if (pass == Pass::Backward) dense(at, timing, pass);
}

void ShardWalk::dense(const Context& at, const LayerTiming& timing, Pass pass) {
  const double fixed = timing_.layer_fixed.of(pass);
  const auto work = [&](std::int32_t slot) {
    const CellLoad& cell = loads_.cells[loads_.cell_index(at.row, slots_[static_cast<std::size_t>(slot)])];
    return timing.token.of(pass) * cell.tokens + timing.pair.of(pass) * cell.squares;
  };
  for (std::int32_t place = 0; place < places_; ++place) {
    const std::int32_t slot = slot_of(place);
    const double seconds = work(slot);
    DeviceTime& device = at.accounts.devices[static_cast<std::size_t>(place)];
    device.dense += seconds;
    device.fixed += fixed;
    const double begin = clock_[static_cast<std::size_t>(slot)];
    emit(at, place, Activity::Dense, begin, begin + (fixed + seconds));  // to the bit where the clock will stand
  }
  for (std::size_t slot = 0; slot < clock_.size(); ++slot)
    clock_[slot] += fixed + work(static_cast<std::int32_t>(slot));
}

void ShardWalk::experts(const Context& at, const LayerTiming& timing, Pass pass) {
  meet(at);
  const std::int32_t routed = window_layer_[static_cast<std::size_t>(at.layer)];
  const RankWork* ranks = loads_.ranks_of(at.row, shard_, routed);
  // The same bytes go to the experts and come back.
  double busiest_link = 0.0;
  for (std::int32_t p = 0; p < loads_.ranks; ++p) {
    busiest_link = std::max(busiest_link, static_cast<double>(ranks[p].tokens) * loads_.ranks / places_);
  }
  for (const SlotId d : slots_) {
    const auto sent = loads_.sent[loads_.cell_index(at.row, d) * static_cast<std::size_t>(loads_.layers) +
                                  static_cast<std::size_t>(routed)];
    busiest_link = std::max(busiest_link, static_cast<double>(sent) * static_cast<double>(slots_.size()) / places_);
  }
  const double exchange = timing_.exchange.of(pass) * busiest_link + timing_.exchange_fixed.of(pass);
  together(at, pass == Pass::Forward ? Activity::Dispatch : Activity::Combine, exchange, &DeviceTime::exchange);

  double slowest = 0.0;
  std::int32_t culprit = 0;
  for (std::int32_t p = 0; p < loads_.ranks; ++p) {
    const auto active = static_cast<double>(ranks[p].active);
    const double seconds =
        timing.expert_weight *
        std::max(timing_.expert.of(pass) * static_cast<double>(ranks[p].computed) + timing_.active.of(pass) * active,
                 timing_.floor.of(pass) * active);
    busy_[static_cast<std::size_t>(p)] = seconds;
    if (seconds > slowest) {
      slowest = seconds;
      culprit = p;
    }
  }
  const double begin = clock_.front();
  double waiting = 0.0;
  for (std::int32_t place = 0; place < places_; ++place) {
    const double seconds = busy_[static_cast<std::size_t>(rank_of(place))];
    DeviceTime& device = at.accounts.devices[static_cast<std::size_t>(place)];
    device.experts += seconds;
    device.wait_combine += slowest - seconds;
    waiting += slowest - seconds;
    emit(at, place, Activity::Experts, begin, begin + seconds);
    emit(at, place, Activity::Wait, begin + seconds, begin + slowest);
  }
  Culprits& culprits = *at.accounts.culprits;
  culprits.by_rank[static_cast<std::size_t>(std::int64_t{shard_.value()} * loads_.ranks + culprit)] += waiting;
  culprits.by_layer[static_cast<std::size_t>(at.layer)] += waiting;
  culprits.by_row[static_cast<std::size_t>(at.row)] += waiting;
  for (double& clock : clock_) clock += slowest;
  together(at, pass == Pass::Forward ? Activity::Combine : Activity::Dispatch, exchange, &DeviceTime::exchange);
}

void ShardWalk::together(const Context& at, Activity activity, double seconds, double DeviceTime::* part) {
  if (seconds <= 0.0) return;
  for (std::int32_t place = 0; place < places_; ++place) {
    at.accounts.devices[static_cast<std::size_t>(place)].*part += seconds;
    const double begin = clock_[static_cast<std::size_t>(slot_of(place))];
    emit(at, place, activity, begin, begin + seconds);
  }
  for (double& clock : clock_) clock += seconds;
}

void ShardWalk::meet(const Context& at) {
  const auto slowest = std::ranges::max_element(clock_);
  const double time = *slowest;
  double waiting = 0.0;
  for (std::int32_t place = 0; place < places_; ++place) {
    const double since = clock_[static_cast<std::size_t>(slot_of(place))];
    at.accounts.devices[static_cast<std::size_t>(place)].wait_dispatch += time - since;
    waiting += time - since;
    emit(at, place, Activity::Wait, since, time);
  }
  Culprits& culprits = *at.accounts.culprits;
  culprits.by_slot[slots_[static_cast<std::size_t>(slowest - clock_.begin())]] += waiting;
  culprits.by_layer[static_cast<std::size_t>(at.layer)] += waiting;
  culprits.by_row[static_cast<std::size_t>(at.row)] += waiting;
  std::ranges::fill(clock_, time);
}

void ShardWalk::emit(const Context& at, std::int32_t place, Activity activity, double begin, double end) const {
  if (at.accounts.sink == nullptr || end <= begin) return;
  at.accounts.sink->interval({.device = at.accounts.devices[static_cast<std::size_t>(place)].device,
                              .activity = activity,
                              .pass = at.pass,
                              .row = at.row,
                              .layer = at.layer,
                              .begin = begin,
                              .end = end});
}

}  // namespace routepack
