// SPDX-License-Identifier: Apache-2.0
// Moves synthetic state to and fro over a transport, checks every byte, and measures against copying without checks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "routepack/grid_layout.h"
#include "routepack/transfer_engine.h"
#include "routepack/transport.h"

namespace routepack {

struct SelfTestOptions {
  std::uint64_t seed = 0;
  std::int32_t moves = 4;  ///< to random placements, one after another; one more goes back to identity
  TransferOptions transfer = {};
};

/// The same on every rank, apart from a failure that ranks could not tell each other.
struct SelfTestReport {
  bool verified = false;               ///< every byte on every rank, after every move
  std::optional<std::string> problem;  ///< what was wrong first, one line
  bool problem_shared = false;         ///< all ranks report this problem
  std::int32_t moves = 0;              ///< that were made and verified
  std::int64_t state_bytes = 0;        ///< of all ranks
  std::int64_t bytes = 0;              ///< of state moved by all ranks in all moves, each hop and local copy counted
  std::int64_t bytes_sent = 0;         ///< the part of them that went to another rank
  std::int64_t staging_bytes = 0;      ///< most that a rank used
  std::int64_t staging_promised = 0;   ///< most that the forecasts said
  double seconds = 0.0;                ///< moving, from the first rank that began to the last that ended
  /// Of each phase of all moves, the slowest rank's.
  double prepare_seconds = 0.0, transfer_seconds = 0.0, verify_seconds = 0.0, commit_seconds = 0.0,
         confirm_seconds = 0.0;
  double bare_seconds = 0.0;   ///< for the same bytes: same schedule, chunks, transport and staging, but no check
  double check_seconds = 0.0;  ///< looking at every byte after the moves

  [[nodiscard]] double bytes_per_second() const;  ///< 0 when nothing was measured
  [[nodiscard]] double bare_share() const;        ///< speed over that of the bare copy; 0 when nothing was measured
};

/// Collective: all ranks of the transport call it with equal arguments, and each waits at most about twice the timeout
/// for what the others do. After each move it compares every byte on every rank with what must be there, and traffic
/// and staging with the forecast. Then it copies the state back and there again, without checks, and times the second.
/// Stops at the first problem; the state then stays in memory as long as the transport.
/// @throws InvalidInput for a grid of another size than the transport or fewer than one move
SelfTestReport self_test(Transport& transport, const GridLayout& layout, const SelfTestOptions& options);

}  // namespace routepack
