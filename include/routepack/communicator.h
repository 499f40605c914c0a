// SPDX-License-Identifier: Apache-2.0
// Processes that plan together: what the planner asks of MPI, torch.distributed or whatever carries its messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace routepack {

/// One member of a team. All members make the same calls in the same order, from one thread each.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual std::int32_t rank() const = 0;
  [[nodiscard]] virtual std::int32_t ranks() const = 0;
  /// What every member has, by rank, the same for all. Waits for the slowest, but not for ever.
  /// @throws PeerLost naming a rank that is gone or silent (routepack/transport.h)
  virtual std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) = 0;
  /// Adds up what the members have, in place, element by element; all get the sums, which must fit. As many values
  /// everywhere. These gather everything from everyone; a carrier that can do with less overrides them.
  /// @throws PeerLost
  virtual void sum(std::span<std::int64_t> values);
  virtual void sum(std::span<std::int32_t> values);
};

}  // namespace routepack
