// SPDX-License-Identifier: Apache-2.0
// A team over the point-to-point messages of a transport: threads of a process, or MPI.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "routepack/communicator.h"
#include "routepack/transport.h"

namespace routepack {

/// Everyone sends to everyone. Who misses a member tells the others by a note, so that all end with the same name.
/// Teams are as large as the hosts of a job, not as its accelerators.
class TeamLink final : public Communicator {
 public:
  /// @param limit how long a call waits for a silent member; longer than the longest piece of work between two calls
  TeamLink(Transport& transport, std::chrono::milliseconds limit) : transport_(transport), limit_(limit) {}

  [[nodiscard]] std::int32_t rank() const override { return transport_.rank(); }
  [[nodiscard]] std::int32_t ranks() const override { return transport_.ranks(); }
  /// To each other member 8 bytes, the size, and `mine`.
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override;
  /// Each member adds up one part of the values and tells the others: 2·(m − 1)/m of the values' bytes, of m members.
  void sum(std::span<std::int64_t> values) override;
  void sum(std::span<std::int32_t> values) override;

  /// Bytes that this member has sent.
  [[nodiscard]] std::int64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Mail;
  template <class T>
  void sum_in_parts(std::span<T> values);
  void exchange(Mail& mail);
  void tell_of_lost(std::int32_t lost);
  std::optional<PeerLost> heard_of_lost();

  Transport& transport_;
  std::chrono::milliseconds limit_;
  std::int64_t sent_bytes_ = 0;
};

}  // namespace routepack
