// SPDX-License-Identifier: Apache-2.0
// Independent pieces of work, one after another or side by side. What they compute never depends on which.
#pragma once

#include <cstddef>
#include <functional>

namespace routepack {

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
