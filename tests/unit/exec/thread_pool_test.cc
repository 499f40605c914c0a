// SPDX-License-Identifier: Apache-2.0
#include "exec/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "exec/deadline.h"

namespace routepack {
namespace {

TEST(ThreadPool, runs_every_piece_exactly_once) {
  for (const std::size_t threads : {1U, 2U, 5U}) {
    ThreadPool pool(threads);
    for (const std::size_t count : {0U, 1U, 3U, 1000U}) {
      std::vector<std::atomic<int>> runs(count);
      pool.for_each(count, [&](std::size_t i) { ++runs[i]; });
      for (const auto& run : runs) EXPECT_EQ(run, 1);
    }
  }
}

TEST(ThreadPool, serves_many_calls_one_after_another) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> sum = 0;
  for (int call = 0; call < 2000; ++call) pool.for_each(4, [&](std::size_t i) { sum += static_cast<std::int64_t>(i); });
  EXPECT_EQ(sum, 2000 * 6);
}

TEST(ThreadPool, rethrows_the_exception_of_the_least_index_and_works_on) {
  ThreadPool pool(2);
  std::atomic<int> ran = 0;
  try {
    pool.for_each(50, [&](std::size_t i) {
      ++ran;
      if (i % 20 == 7) throw std::runtime_error(std::to_string(i));
    });
    FAIL() << "no exception came through";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "7");
  }
  EXPECT_EQ(ran, 50);
  pool.for_each(1, [&](std::size_t) { ++ran; });
  EXPECT_EQ(ran, 51);
}

TEST(ThreadPool, counts_the_calling_thread) {
  EXPECT_EQ(ThreadPool(1).width(), 1U);
  EXPECT_EQ(ThreadPool(3).width(), 3U);
  EXPECT_EQ(thread_count(7), 7U);
  EXPECT_GE(thread_count(0), 1U);
}

TEST(Deadline, fires_when_the_time_is_up) {
  const Deadline deadline({}, Deadline::Clock::now() + std::chrono::milliseconds(1));
  while (!deadline.token().stop_requested()) std::this_thread::yield();
  EXPECT_GE(Deadline::Clock::now().time_since_epoch().count(), 0);
}

TEST(Deadline, has_fired_when_the_time_was_up_before) {
  const Deadline deadline({}, Deadline::Clock::now() - std::chrono::milliseconds(1));
  EXPECT_TRUE(deadline.token().stop_requested());
}

TEST(Deadline, passes_somebody_elses_wish_on) {
  std::stop_source source;
  const Deadline deadline(source.get_token(), std::nullopt);
  EXPECT_FALSE(deadline.token().stop_requested());
  source.request_stop();
  EXPECT_TRUE(deadline.token().stop_requested());
}

TEST(Deadline, ends_at_once_when_nobody_waits_any_more) {
  const auto before = Deadline::Clock::now();
  {
    const Deadline deadline({}, before + std::chrono::hours(1));
  }
  EXPECT_LT(Deadline::Clock::now() - before, std::chrono::minutes(1));
}

}  // namespace
}  // namespace routepack
