// SPDX-License-Identifier: Apache-2.0
// Population annealing over layouts with fixed rows and fixed placement (paper algorithm 3).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "exec/deadline.h"
#include "exec/executor.h"
#include "packing/arrangement.h"
#include "packing/search/problem.h"
#include "routepack/params.h"
#include "routepack/plan.h"
#include "routepack/score.h"

namespace routepack::search {

/// The best layout met and how it was found.
struct Found {
  Arrangement arrangement;
  Score score;                ///< exact, in the row order of `arrangement`
  std::vector<double> joint;  ///< J[r, g] of `arrangement`, [R, G]
  Ending ending = Ending::Budget;
  bool cut = false;  ///< a deadline or a stop took something from it: another run may find another layout
  std::int64_t levels = 0;
  std::int64_t proposals = 0;  ///< priced
  std::int64_t accepted = 0;
};

/// Called after every level, by the calling thread.
using LevelObserver = std::function<void(const SearchProgress&)>;

/// Anneals a population that starts as `seeds`, the best one first; each must fit the problem. `bound` is proven for
/// the first component of the score: a search that comes within params.tolerance of it ends. The result never scores
/// worse than a seed. The same for any width of the executor; a deadline or a stop ends it with the best found so far.
Found anneal(const Problem& problem, std::span<const Arrangement> seeds, const SearchParams& params, std::int64_t seed,
             double bound, Executor& executor, const Deadline& deadline, const LevelObserver& observer);

/// Systematic resampling: `draws` members, member j expected draws · w_j / Σ w times, with one u0 ∈ [0, 1) for all.
std::vector<std::size_t> resample(std::span<const double> weights, std::size_t draws, double u0);

}  // namespace routepack::search
