// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/watchdog.h"

#include <algorithm>
#include <utility>

namespace routepack {

Watchdog::Watchdog() : thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::set(std::chrono::milliseconds limit, std::function<void()> then) {
  {
    const std::scoped_lock lock(mutex_);
    limit_ = limit;
    then_ = std::move(then);
  }
  changed_.notify_all();
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    if (limit_.count() == 0 || !then_) {
      changed_.wait(lock);
      continue;
    }
    changed_.wait_for(lock, std::max(limit_ / 8, std::chrono::milliseconds(1)));
    const Clock::rep since = since_.load(std::memory_order_relaxed);
    if (ended_ || since == 0 || Clock::now().time_since_epoch() - Clock::duration(since) < limit_) continue;
    const auto then = std::exchange(then_, nullptr);
    lock.unlock();
    then();
    lock.lock();
  }
}

}  // namespace routepack
