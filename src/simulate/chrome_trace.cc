// SPDX-License-Identifier: Apache-2.0
#include "simulate/chrome_trace.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "core/json.h"

namespace routepack {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{1} << 20;
constexpr std::int64_t kMostShards = 1 << 20;

void flush(std::string& buffer, const WriteSink& write) {
  write(std::as_bytes(std::span(buffer)));
  buffer.clear();
}

}  // namespace

ChromeTrace::ChromeTrace(const StepTiming& timing, WriteSink write, std::int32_t rows)
    : timing_(timing),
      write_(std::move(write)),
      rows_(rows),
      buffer_("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n") {}

std::int64_t ChromeTrace::process_of(const DeviceId& device) {
  return device.stage * kMostShards + device.shard.value();
}

void ChromeTrace::put(const std::string& event) {
  if (events_++ > 0) buffer_ += ",\n";
  buffer_ += event;
  if (buffer_.size() >= kFlushBytes) flush(buffer_, write_);
}

void ChromeTrace::interval(const Interval& interval) {
  if (interval.row >= rows_) return;
  std::string name(name_of(interval.activity));
  if (interval.activity == Activity::Dense) name = timing_.layers[static_cast<std::size_t>(interval.layer)].stage;
  std::string arguments;
  if (interval.row >= 0) arguments = fmt::format("\"row\":{}", interval.row);
  if (interval.layer >= 0) {
    arguments += fmt::format(",\"layer\":{},\"pass\":\"{}\"", interval.layer,
                             interval.pass == Pass::Forward ? "forward" : "backward");
  }
  put(fmt::format(R"({{"name":{},"cat":"{}","ph":"X","ts":{:.3f},"dur":{:.3f},"pid":{},"tid":{},"args":{{{}}}}})",
                  Json(name).dump(), name_of(interval.activity), 1e6 * interval.begin,
                  1e6 * (interval.end - interval.begin), process_of(interval.device), interval.device.place,
                  arguments));
}

void ChromeTrace::finish(const StepTimes& times) {
  for (const DeviceTime& time : times.devices) {
    const DeviceId& device = time.device;
    if (device.place == 0) {
      put(fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"stage {}, shard {}"}}}})",
                      process_of(device), device.stage, device.shard.value()));
    }
    put(fmt::format(R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"device {}"}}}})",
                    process_of(device), device.place, device.place));
  }
  buffer_ += "\n]}\n";
  flush(buffer_, write_);
}

}  // namespace routepack
