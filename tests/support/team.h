// SPDX-License-Identifier: Apache-2.0
// A team of threads, over the network of threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/in_process.h"
#include "comm/team_link.h"

namespace routepack::testing {

/// What `body(link)` comes to in each member, by rank. It must not throw.
template <class Body>
auto in_team(std::int32_t members, const Body& body,
             std::chrono::milliseconds limit = std::chrono::milliseconds(60'000)) {
  using Result = std::invoke_result_t<Body, TeamLink&>;
  InProcessNetwork network(members);
  std::vector<std::optional<Result>> made(static_cast<std::size_t>(members));  // bits of a vector<bool> share a word
  std::vector<std::thread> threads;
  for (std::int32_t r = 0; r < members; ++r) {
    threads.emplace_back([&, r] {
      TeamLink link(network.end(r), limit);
      made[static_cast<std::size_t>(r)] = body(link);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Result> results;
  for (std::optional<Result>& one : made) results.push_back(*std::move(one));
  return results;
}

/// A member that ends at the start of its `last`-th call, as one whose host lost power.
class DyingMember final : public Communicator {
 public:
  DyingMember(InProcessNetwork& network, Communicator& link, int last) : network_(network), link_(link), left_(last) {}
  [[nodiscard]] std::int32_t rank() const override { return link_.rank(); }
  [[nodiscard]] std::int32_t ranks() const override { return link_.ranks(); }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override {
    if (--left_ == 0) network_.kill(rank());
    return link_.all_gather(mine);
  }

 private:
  InProcessNetwork& network_;
  Communicator& link_;
  int left_;
};

}  // namespace routepack::testing
