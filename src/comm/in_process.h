// SPDX-License-Identifier: Apache-2.0
// Threads as ranks: the network for tests and simulation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "routepack/transport.h"

namespace routepack {

/// A network inside this process. One thread per end; the ends belong to the network, which must outlive every call
/// of theirs.
///
/// Who owns what: a bulk message stays where the sender has it. send() publishes the place, and the thread of the
/// receiving rank copies it in one of its poll() calls, outside all locks: one memcpy of the whole message, so senders
/// cut long ones. Until the sender's ticket is done the bytes are the network's to read. A rank that wants them back
/// earlier is killed, by itself if need be: what nobody has begun to copy is withdrawn, and a copy in progress, at most
/// one per receiver, is waited for. Destination bytes are written by the receiving rank's own calls alone. Notes are
/// copied by post().
class InProcessNetwork {
 public:
  /// @throws InvalidInput for less than one rank
  explicit InProcessNetwork(std::int32_t ranks);
  ~InProcessNetwork();
  InProcessNetwork(const InProcessNetwork&) = delete;
  InProcessNetwork& operator=(const InProcessNetwork&) = delete;

  [[nodiscard]] std::int32_t ranks() const;
  /// @throws InvalidInput for a rank that does not exist
  Transport& end(std::int32_t rank);
  /// Thread-safe. From now on the rank's own calls throw PeerLost(rank), nothing it sent and nobody began to copy
  /// arrives (notes posted before do), and the others see silence, not an error, as with a host that lost power. Once
  /// it has returned, no other rank reads the rank's memory.
  void kill(std::int32_t rank);

 private:
  class End;
  [[nodiscard]] End& at(std::int32_t rank) const;

  std::vector<std::unique_ptr<End>> ends_;  // [rank]
};

}  // namespace routepack
