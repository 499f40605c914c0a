// SPDX-License-Identifier: Apache-2.0
// The yardstick of the engine's speed: the same bytes over the same transport through staging, and nothing else.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "routepack/grid_layout.h"
#include "routepack/move_schedule.h"
#include "routepack/transfer_engine.h"
#include "routepack/transport.h"
#include "transfer/meeting.h"

namespace routepack {

/// Runs schedules without checksums, votes or canaries: per layer hop 1 and hop 2 into staging in the engine's chunks,
/// a barrier, and the copies from staging to live. Must live as long as the transport when a copy failed.
class BareCopy {
 public:
  BareCopy(Transport& transport, const GridLayout& layout, RankState& state, std::chrono::milliseconds patience)
      : transport_(transport), layout_(layout), state_(state), patience_(patience), meeting_(transport, patience) {}

  /// Collective. @throws as wait_for_all
  void run(const std::vector<LayerSchedule>& schedule);

 private:
  void run_hop(const LayerSchedule& layer, std::int32_t hop);
  void commit(const LayerSchedule& layer);
  [[nodiscard]] std::span<std::byte> live(const Copy& copy, bool source);

  Transport& transport_;
  const GridLayout& layout_;
  RankState& state_;
  std::chrono::milliseconds patience_;
  Meeting meeting_;
  std::shared_ptr<std::byte[]> staging_;
  std::size_t staging_size_ = 0;
  std::vector<Transport::Ticket> open_;
};

}  // namespace routepack
