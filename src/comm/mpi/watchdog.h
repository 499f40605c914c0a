// SPDX-License-Identifier: Apache-2.0
// MPI promises that some calls return at once. This sees when one does not.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace routepack {

/// A thread that looks whether another one has been inside one call for too long.
class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;

  Watchdog();
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// From now on: `then` runs in the watchdog's thread, once, when a call has lasted for `limit`.
  void set(std::chrono::milliseconds limit, std::function<void()> then);

  /// Stands for one call; of one thread, not nested.
  class Call {
   public:
    explicit Call(Watchdog& dog) : dog_(dog) {
      dog_.since_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    }
    ~Call() { dog_.since_.store(0, std::memory_order_relaxed); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Watchdog& dog_;
  };

 private:
  void watch();

  std::atomic<Clock::rep> since_{0};  // 0: not inside a call
  std::mutex mutex_;
  std::condition_variable changed_;
  std::chrono::milliseconds limit_{0};  // 0: not set
  std::function<void()> then_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace routepack
