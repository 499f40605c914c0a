// SPDX-License-Identifier: Apache-2.0
// Where the search starts: several good layouts that differ (paper section 4.1.1, Algorithm 2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stop_token>
#include <vector>

#include "exec/executor.h"
#include "packing/arrangement.h"
#include "packing/fit.h"
#include "packing/items.h"
#include "packing/seeding/construct.h"
#include "packing/seeding/pair.h"
#include "packing/unit_loads.h"
#include "routepack/instance.h"
#include "routepack/score.h"

namespace routepack {

struct SeedBudget {
  std::size_t candidates = 16;   ///< M: the fit, first fit decreasing, and M − 2 randomised trials
  std::size_t population = 8;    ///< P_pop
  std::size_t choice = 4;        ///< w: how many prospects a random choice is among
  std::size_t projections = 16;  ///< q: directions of the sketch of an arrangement
  double price_of_gap = 4.0;     ///< η: distance that a relative gap of 1 to the best seed outweighs
  FitRule fit_rule = FitRule::Fullest;
  /// A trial that finds no room exchanges units of like size in the fit (exchanged_cells); the paper gives it up.
  bool exchange_when_full = false;
  PairKey pair_key = PairKey::Peaks;
  bool settle_shards = false;  ///< row-shards change shards in the end (fill_rows.h); the paper leaves them
};

/// An arrangement in canonical form (canonical.h) with its exact score.
struct Seed {
  Arrangement arrangement;
  Score score;
  std::uint64_t signature = 0;
};

struct Seeds {
  std::vector<Seed> distinct;           ///< the selected ones, the best score first; at least one
  std::vector<std::size_t> population;  ///< P_pop entries of `distinct`, each at least once if there is room for all

  std::size_t found = 0;            ///< different candidates before the selection
  std::size_t repeated = 0;         ///< candidates that were found before
  std::size_t no_room = 0;          ///< candidates given up: a unit found no cell with room
  std::size_t exchanged = 0;        ///< trials that found no room either, but went on from the fit
  std::size_t over_rank_limit = 0;  ///< candidates given up: max_rank_tokens could not be kept
  std::size_t not_tried = 0;        ///< candidates that the stop token cut off; then the result depends on time
};

/// Every seed keeps every rule of docs/constraints.md. Candidates: the cells of `fitted` and those of first fit
/// decreasing when it needs no more rows, each as they come (the former through fill_rows) and paired anew without
/// chance; then `candidates` − 2 trials of WindowShuffle, a randomised fit and EDPAwarePair. No trial leaves a cell
/// empty. Trials are independent and their random numbers are named by (seed, purpose, trial, draw), so the result is
/// the same for every executor. A stop request ends it soon with what there is, at least the filled fit.
///
/// `fitted` must be one that fill_rows can fill; `pad_rates` [L, P] as from pad_rank_rates.
/// O(M · (N · (log cells + w + L·P) + cells · min(R·G, 256) · L·P) + P_pop · M · (N + q·R)) time in all;
/// O((cells + R·G) · L·P) memory per trial in progress.
Seeds diverse_seeds(const Instance& instance, const UnitLoads& loads, std::span<const std::int64_t> pad_rates,
                    const Items& items, const FittedCells& fitted, const SeedBudget& budget, std::uint64_t seed,
                    Executor& executor, const std::stop_token& stop);

}  // namespace routepack
