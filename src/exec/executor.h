// SPDX-License-Identifier: Apache-2.0
// Independent pieces of work, one after another or side by side. What they compute never depends on which.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "exec/deadline.h"

namespace routepack {

/// Pieces of work that change what every process of a team keeps a copy of.
struct SharedWork {
  std::function<void(std::size_t)> body;
  /// Appends what body(i) has changed.
  std::function<void(std::size_t, std::vector<std::byte>&)> give;
  /// Changes the same where body(i) ran in another process. Calls for different i may run at the same time.
  std::function<void(std::size_t, std::span<const std::byte>)> take;
};

/// Runs pieces of work that do not depend on each other.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Calls body(0) … body(count − 1), in any order and possibly at the same time, and returns when all have returned.
  /// When calls throw, the exception of the least index is rethrown after the others have ended. Not to be called from
  /// inside a body.
  virtual void for_each(std::size_t count, const std::function<void(std::size_t)>& body) = 0;
  /// How many bodies may run at the same time; only good for cutting work into pieces, never for what they compute.
  [[nodiscard]] virtual std::size_t width() const = 0;

  // In a team of processes all call these in the same order; alone they are the plain thing.

  /// Whether there is no other process.
  [[nodiscard]] virtual bool alone() const { return true; }
  /// This process among all.
  [[nodiscard]] virtual std::size_t rank() const { return 0; }
  /// Runs each piece in one of the processes; then all have all changes. Whether the deadline was over, for anyone,
  /// when that was done: the same answer everywhere.
  virtual bool share(std::size_t count, const SharedWork& work, const Deadline& deadline) {
    for_each(count, work.body);
    return deadline.over();
  }
  /// Whether it is over for anyone.
  virtual bool over(const Deadline& deadline) { return deadline.over(); }
  /// The first process's number, for what clocks say.
  virtual double agree(double mine) { return mine; }
  /// Adds up what each process knows a part of, in place: then all know the whole.
  virtual void sum(std::span<std::int64_t> /*values*/) {}
  virtual void sum(std::span<std::int32_t> /*values*/) {}
  /// What each process has to say, by process.
  virtual std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) {
    return {{mine.begin(), mine.end()}};
  }
};

/// One piece after another, in the calling thread.
class SerialExecutor final : public Executor {
 public:
  void for_each(std::size_t count, const std::function<void(std::size_t)>& body) override {
    for (std::size_t i = 0; i < count; ++i) body(i);
  }
  [[nodiscard]] std::size_t width() const override { return 1; }
};

}  // namespace routepack
