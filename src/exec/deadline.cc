// SPDX-License-Identifier: Apache-2.0
#include "exec/deadline.h"

#include <utility>

namespace routepack {

Deadline::Deadline(std::stop_token asked, std::optional<Clock::time_point> at)
    : end_(at), forward_(std::move(asked), [this] { source_.request_stop(); }) {
  if (!at) return;
  if (*at <= Clock::now()) {
    source_.request_stop();
    return;
  }
  timer_ = std::thread([this, end = *at] {
    std::unique_lock lock(mutex_);
    if (!ended_.wait_until(lock, end, [this] { return over_; })) source_.request_stop();
  });
}

Deadline::~Deadline() {
  if (!timer_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ended_.notify_all();
  timer_.join();
}

}  // namespace routepack
