// SPDX-License-Identifier: Apache-2.0
#include "exec/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <system_error>

namespace routepack {

ThreadPool::ThreadPool(std::size_t threads) {
  workers_.reserve(threads);
  try {
    for (std::size_t i = 1; i < threads; ++i) workers_.emplace_back([this] { serve(); });
  } catch (const std::system_error&) {
    return;  // a container's limit on threads costs speed, not the plan
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::for_each(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::unique_lock lock(mutex_);
  body_ = &body;
  count_ = count;
  next_ = 0;
  failure_ = nullptr;
  if (count > 1) work_ready_.notify_all();
  take_pieces(lock);
  work_done_.wait(lock, [this] { return running_ == 0; });
  body_ = nullptr;
  if (failure_) std::rethrow_exception(failure_);
}

void ThreadPool::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_ready_.wait(lock, [this] { return stopping_ || (body_ != nullptr && next_ < count_); });
    if (stopping_) return;
    take_pieces(lock);
    if (running_ == 0) work_done_.notify_one();
  }
}

void ThreadPool::take_pieces(std::unique_lock<std::mutex>& lock) {
  while (next_ < count_) {
    const std::size_t piece = next_++;
    ++running_;
    lock.unlock();
    std::exception_ptr thrown;
    try {
      (*body_)(piece);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    --running_;
    if (thrown && (!failure_ || piece < failed_at_)) {
      failure_ = thrown;
      failed_at_ = piece;
    }
  }
}

std::size_t thread_count(std::size_t wanted) {
  if (wanted > 0) return wanted;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    return static_cast<std::size_t>(std::max(1, CPU_COUNT(&allowed)));
  }
  return std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace routepack
