// SPDX-License-Identifier: Apache-2.0
// Processes that plan together: each has all state, does its share of the work and takes over what the others did.
#pragma once

#include <cstddef>
#include <functional>

#include "exec/executor.h"
#include "routepack/communicator.h"

namespace routepack {

/// Pieces go to the processes in contiguous, equal runs, and inside a process to its own executor. Everything else
/// runs in every process, and must come out the same.
class Team final : public Executor {
 public:
  Team(Executor& local, Communicator& link) : local_(local), link_(link) {}

  /// In this process alone, whatever the others do.
  void for_each(std::size_t count, const std::function<void(std::size_t)>& body) override {
    local_.for_each(count, body);
  }
  [[nodiscard]] std::size_t width() const override { return local_.width(); }
  [[nodiscard]] bool alone() const override { return link_.ranks() == 1; }
  [[nodiscard]] std::size_t rank() const override { return static_cast<std::size_t>(link_.rank()); }

  /// Also PeerLost; Error with the message of a piece that failed elsewhere.
  bool share(std::size_t count, const SharedWork& work, const Deadline& deadline) override;
  bool over(const Deadline& deadline) override;
  double agree(double mine) override;
  void sum(std::span<std::int64_t> values) override { link_.sum(values); }
  void sum(std::span<std::int32_t> values) override { link_.sum(values); }
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) override {
    return link_.all_gather(mine);
  }

 private:
  Executor& local_;
  Communicator& link_;
};

}  // namespace routepack
