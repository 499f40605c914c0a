// SPDX-License-Identifier: Apache-2.0
// Out of time and asked to stop are one thing to whoever does the work.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

namespace routepack {

/// A stop token that fires when another one does or when the time is up, whichever is first.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Never.
  Deadline() : Deadline({}, std::nullopt) {}
  /// @param asked somebody else's wish to stop
  /// @param at when the time is up; none: never
  Deadline(std::stop_token asked, std::optional<Clock::time_point> at);
  ~Deadline();
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  [[nodiscard]] std::stop_token token() const { return source_.get_token(); }
  [[nodiscard]] bool over() const { return source_.stop_requested(); }
  /// When the time is up; none: never.
  [[nodiscard]] std::optional<Clock::time_point> end() const { return end_; }

 private:
  std::optional<Clock::time_point> end_;
  std::stop_source source_;
  std::stop_callback<std::function<void()>> forward_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread timer_;
};

}  // namespace routepack
