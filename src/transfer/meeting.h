// SPDX-License-Identifier: Apache-2.0
// All ranks meet over bulk messages: for tests and measurements, not for the engine, which must survive who stays away.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "routepack/transport.h"

namespace routepack {

/// Polls until all tickets are done, and empties the list.
/// @throws PeerLost, or Error when none was done for as long as `patience`; the rest then stays in the list, and its
///         buffers must stay where they are
void wait_for_all(Transport& transport, std::vector<Transport::Ticket>& open, std::chrono::milliseconds patience);

/// What a rank brings to a meeting, equally long on all ranks, and where the others' arrive. Must live as long as the
/// transport when a meeting failed.
class Meeting {
 public:
  Meeting(Transport& transport, std::chrono::milliseconds patience) : transport_(transport), patience_(patience) {}

  /// Rank 0 folds the messages of ranks 1, 2, … into its own, in this order; all ranks get the result. A barrier, too:
  /// nobody leaves before all have come. @throws as wait_for_all
  using Fold = std::function<void(std::span<std::byte> into, std::span<const std::byte> other)>;
  void meet(std::span<std::byte> message, const Fold& fold);
  void barrier();

 private:
  Transport& transport_;
  std::chrono::milliseconds patience_;
  std::vector<std::vector<std::byte>> inbox_;  // of rank 0
  std::vector<std::byte> outbox_;
  std::vector<Transport::Ticket> open_;
};

}  // namespace routepack
