// SPDX-License-Identifier: Apache-2.0
// Placement that knows the rows: swaps that lower what every row waits for, after packing has fixed who trains with
// whom.
#pragma once

#include <cstdint>
#include <limits>

#include "exec/deadline.h"
#include "exec/executor.h"
#include "placement/row_loads.h"
#include "placement/row_score.h"
#include "routepack/moves.h"
#include "routepack/placement.h"
#include "routepack/score.h"

namespace routepack {

struct RowAwareParams {
  /// Vectors of R·G loads that may be looked at, a few nanoseconds each. Split evenly over layers, so that the result
  /// does not depend on threads.
  std::int64_t most_steps = std::numeric_limits<std::int64_t>::max();
  /// Attempts in a row, per layer, to leave a local optimum by a few random swaps; only when nothing limits the moves.
  std::int64_t kicks = 0;
  std::int64_t seed = 0;  ///< names their random numbers
};

struct RowAwareResult {
  Placement placement;
  Score before, after;     ///< what evaluate() says, to the last bit
  std::int64_t swaps = 0;  ///< taken on the way to the result, some of them perhaps taken back
  std::int64_t steps = 0;  ///< spent
  std::int64_t rounds = 0;
  bool converged = true;  ///< false: steps ran out before nothing was left to gain; reproducible all the same
  bool complete = true;   ///< false: a stop was requested; valid, not reproducible
};

/// Swaps per layer, best gain per moved expert first, until none is left that pays. The ledger must be settled at
/// `start`, knows where home is, and comes back with the result's moves; gains must exceed the price of the moves that
/// they cause. The result never scores worse than `start`, nor does score plus price. With sync = step the slowest
/// shards count most, with sync = row the slowest shard of each row. The same for any executor, a team's too, which
/// shares the layers; the deadline is asked between layers and keeps what was reached.
/// @throws InvalidInput when shapes disagree
RowAwareResult refine_placement(const RowLoads& rows, const Placement& start, MoveLedger& ledger,
                                const RowAwareParams& params, Executor& executor,
                                const Deadline& deadline = Deadline());

}  // namespace routepack
