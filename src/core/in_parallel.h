// SPDX-License-Identifier: Apache-2.0
// Independent items side by side, for work that has no pool.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace routepack {

/// Calls `work(item, thread)` for every item below `items`; the first exception ends the rest and is thrown here.
template <class Work>
void in_parallel(std::int64_t items, std::size_t threads, const Work& work) {
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  const auto run = [&](std::size_t thread) {
    try {
      for (std::int64_t item = next++; item < items; item = next++) work(item, thread);
    } catch (...) {
      next = items;
      const std::scoped_lock lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
    run(0);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace routepack
