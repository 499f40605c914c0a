// SPDX-License-Identifier: Apache-2.0
// Good packings without proof. Deterministic: the random choices are hashes of counters.
#pragma once

#include <cstdint>
#include <optional>

#include "packing/bins.h"

namespace routepack {

/// First-fit decreasing into as many bins as it takes. O(units log units) without a limit on counts.
Packing first_fit_bins(const BinProblem& problem);

/// Best-fit decreasing: each unit to the fullest bin that takes it. Empty when `bins` do not suffice.
std::optional<Packing> best_fit(const BinProblem& problem, std::int64_t bins);

/// The balanced packing into exactly `bins` bins: falling sizes, each unit to the emptiest bin even if that goes over
/// the capacity; then bins over it exchange units with others until none is. With a limit on counts that gets stuck,
/// the bin with the fewest samples comes first instead. Empty when neither works. Bins may stay empty when there are
/// fewer units.
std::optional<Packing> level_bins(const BinProblem& problem, std::int64_t bins, Work& work);

/// Minimum bin slack (Gupta and Ho, as refined by Fleszar and Hindi): bin after bin takes the largest unit left and
/// the set of others that fills it best. `slack` is what a bin may leave free without further search; `seed` 0 is the
/// plain rule, others leave kinds out at random.
Packing minimum_slack(const BinProblem& problem, std::int64_t slack, std::uint64_t seed, Work& work);

/// Starts from `best` and gets closer to `target` bins: minimum slack with several tolerances, then again and again a
/// few bins, the emptiest among them, are emptied and packed anew. Ends at the target or with the work.
Packing fewer_bins(const BinProblem& problem, std::int64_t target, Packing best, Work& work);

}  // namespace routepack
