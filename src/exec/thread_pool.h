// SPDX-License-Identifier: Apache-2.0
// A pool that is started once per plan.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "exec/executor.h"

namespace routepack {

/// `threads` − 1 workers beside the calling thread, which works too. Workers sleep between calls.
class ThreadPool final : public Executor {
 public:
  /// @param threads at least 1. When the system gives fewer threads, the pool works with those it got.
  explicit ThreadPool(std::size_t threads);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  void for_each(std::size_t count, const std::function<void(std::size_t)>& body) override;
  [[nodiscard]] std::size_t width() const override { return workers_.size() + 1; }

 private:
  void serve();
  void take_pieces(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable work_ready_;
  std::condition_variable work_done_;
  const std::function<void(std::size_t)>* body_ = nullptr;  // of the call in progress
  std::size_t count_ = 0;                                   // its pieces
  std::size_t next_ = 0;                                    // the first not handed out
  std::size_t running_ = 0;                                 // handed out, not ended
  std::size_t failed_at_ = 0;
  std::exception_ptr failure_;  // of the piece failed_at_
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

/// Worker threads for a plan: `wanted`, or one per core that this process may use when 0.
std::size_t thread_count(std::size_t wanted);

}  // namespace routepack
