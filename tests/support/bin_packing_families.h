// SPDX-License-Identifier: Apache-2.0
// Bin-packing instances of known difficulty, and windows' lengths as trainers see them.
#pragma once

#include <cstdint>
#include <vector>

#include "packing/bins.h"

namespace routepack::testing {

/// Falkenauer's uniform class: `units` sizes from 20 to 100, bins of 150 (u120, u250, u500, u1000).
BinProblem uniform_class(std::uint64_t seed, std::int64_t units);

/// Falkenauer's triplets: three units fill each bin exactly, the first of 380 to 490 and the second of 250 up to half
/// of the rest, bins of 1000 (t60, t120, t249, t501). `units` is a multiple of 3; the optimum is units / 3.
BinProblem triplet_class(std::uint64_t seed, std::int64_t units);

/// One window of random size: log-normal lengths as measured on rollouts, slots, rows and the capacity that gives the
/// wanted share of filled tokens, 0.80 to 0.99, with about as many samples in a cell as asked for (log-uniform).
/// Lengths over the capacity are cut to it, as samplers do.
struct DrawnWindow {
  std::vector<std::int32_t> lengths;
  std::int32_t slots = 1;
  std::int64_t capacity = 1;
  double fill = 0.0;  ///< Σ lengths / (rows · slots · capacity)
  double samples_per_cell = 0.0;
};
DrawnWindow draw_window_lengths(std::uint64_t seed, double fewest_per_cell = 3.0, double most_per_cell = 40.0);

/// Lengths as bins know them.
BinProblem bins_of(const std::vector<std::int32_t>& lengths, std::int64_t capacity);

/// The fewest bins, by trying everything. For a dozen units at most.
std::int64_t fewest_bins_by_force(const BinProblem& problem);

}  // namespace routepack::testing
