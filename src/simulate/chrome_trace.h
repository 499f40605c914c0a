// SPDX-License-Identifier: Apache-2.0
// A timeline as a trace that chrome://tracing and Perfetto show: one track per device.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/file.h"
#include "routepack/simulate.h"

namespace routepack {

/// Writes events as they come, in the JSON of the Trace Event Format: complete events («X»), microseconds. A process is
/// a pipeline stage of a shard, a thread one of its devices.
class ChromeTrace final : public TimelineSink {
 public:
  /// Only rows below `rows` are written, and what belongs to no row.
  ChromeTrace(const StepTiming& timing, WriteSink write, std::int32_t rows = std::numeric_limits<std::int32_t>::max());

  void interval(const Interval& interval) override;
  /// Names the tracks and closes the document.
  void finish(const StepTimes& times);

  [[nodiscard]] std::int64_t events() const { return events_; }

 private:
  void put(const std::string& event);
  [[nodiscard]] static std::int64_t process_of(const DeviceId& device);

  const StepTiming& timing_;
  WriteSink write_;
  std::int32_t rows_;
  std::int64_t events_ = 0;
  std::string buffer_;
};

}  // namespace routepack
