// SPDX-License-Identifier: Apache-2.0
// Carries out the schedules of all ranks of a grid on paper, by the words of move_schedule.h and nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "routepack/move_schedule.h"

namespace routepack::testing {

class MovedBytes {
 public:
  MovedBytes(const GridLayout& layout, const Placement& from, const Placement& to, Route route);
  /// The first thing that was wrong: a read of nothing, messages that do not match, staging that overlaps or ends too
  /// late, a byte that arrives twice, never, or in the wrong place. Empty when all is well.
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  using Bytes = std::vector<std::uint64_t>;  ///< one number names one byte of all expert state; 0 is none
  struct Message {
    Piece piece;
    Bytes bytes;
  };

  void run(std::size_t index);
  void hop(std::size_t index, std::int32_t which);
  void check_staging(std::int32_t rank, const LayerSchedule& layer);
  void check_arrival(std::int32_t rank, const LayerSchedule& layer);
  [[nodiscard]] Bytes live(std::int32_t rank, const Placement& now, LayerId layer, std::int32_t local_slot,
                           std::int32_t tensor) const;
  Bytes read(std::int32_t rank, const LayerSchedule& layer, const Copy& copy);
  void stage(std::int32_t rank, const LayerSchedule& layer, const Copy& copy, const Bytes& bytes);
  void fail(std::int32_t rank, const LayerSchedule& layer, const Copy* copy, const std::string& what);

  const GridLayout& layout_;
  const Placement &from_, &to_;
  std::vector<std::vector<LayerSchedule>> schedules_;                           // [rank]
  std::vector<Bytes> staging_;                                                  // [rank], of the layer being run
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Message>> sent_;  // by (from, to), in order
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> taken_;
  std::string problem_;
};

}  // namespace routepack::testing
