// SPDX-License-Identifier: Apache-2.0
// One Markov chain at one temperature (paper algorithm 3, lines 4–12).
#pragma once

#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <vector>

#include "packing/search/problem.h"
#include "packing/search/state.h"
#include "routepack/params.h"
#include "routepack/score.h"

namespace routepack::search {

/// The part of a layout that a walk may change.
struct Region {
  std::vector<Index> movable;  ///< items, longest first
  std::vector<Index> cells;
  std::vector<Index> row_shards;  ///< that the cells make up
};

/// All of a layout.
Region whole(const Problem& problem);

/// What a walk is asked to do.
struct Task {
  std::int64_t seed = 0;
  Index level = 0;
  Index chain = 0;           ///< (seed, level, chain) names the random numbers
  double temperature = 0.0;  ///< relative to the energy
  std::int64_t steps = 0;    ///< proposals drawn, below 2^32
  EnergyWeights weights;
  bool end_at_best = false;  ///< go back to the best state passed
};

/// An accepted move and where its item came from.
struct Step {
  Move move;
  Index from = 0;
};

/// What a walk did, and the best state that it passed.
struct Trail {
  std::int64_t proposals = 0;  ///< estimated or priced: two cells that fit
  std::int64_t accepted = 0;
  FixedScore best;          ///< first two components
  Score best_exact;         ///< of the whole layout in the binding order; only when the region is all of it
  std::vector<Step> steps;  ///< accepted, in order; the best state is the start after the first `best_length`
  std::size_t best_length = 0;

  /// The cells of the items at the best state, from those at the start.
  [[nodiscard]] std::vector<Index> best_cells(std::vector<Index> start) const;
};

/// Walks `state` through task.steps proposals inside a region. Ends early when a stop is requested, and then at the
/// best state too. `totals` are those at the start and become those at the end, as this walk knows them. Walks over
/// regions without common row-shards may run at the same time.
Trail walk(State& state, const Region& region, const Task& task, const SearchParams& params, Totals& totals,
           const std::stop_token& stop);

}  // namespace routepack::search
