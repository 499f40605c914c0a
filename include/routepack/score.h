// SPDX-License-Identifier: Apache-2.0
// The exact reference score (paper equations 11–15) in the binding evaluation order, and the metrics beside it.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "routepack/communicator.h"
#include "routepack/instance.h"
#include "routepack/layout.h"
#include "routepack/placement.h"

namespace routepack {

/// Compared lexicographically, lower is better (paper equation 15).
struct Score {
  double max_shard = 0.0;  ///< sync step: max_g U_g; sync row: Σ_r max_g J[r, g]
  double total = 0.0;      ///< Σ_g U_g
  double worst_row = 0.0;  ///< max over r, g of J[r, g]
  friend auto operator<=>(const Score&, const Score&) = default;
};

/// A layout under a placement, priced from scratch.
struct Evaluation {
  Score score;
  double attention = 0.0;            ///< Σ A[r, g]
  std::int64_t expert_peak_sum = 0;  ///< Σ_{r,l} max_{g,p} W
  std::int64_t tail_peak = 0;        ///< max W
  double ep_efficiency = 1.0;        ///< equation 23: Σ_{r,l} max_g (1/P) Σ_p W / expert_peak_sum; 1 without load
  std::vector<double> joint;         ///< J[r, g], [R, G]
};

/// Σ over all rows, O(N·L·E) operations, at most 16 MiB beside the result and one row's loads. Loads are integers;
/// doubles are combined in the order of docs/mathematics.md, so that two implementations agree to the last bit. Padding
/// is charged when the window has pad_counts.
/// @throws InvalidInput when shapes disagree, Σ t² of a cell reaches 2⁵³, or counts are in another process.
Evaluation evaluate(const Instance& instance, const Placement& placement, const Layout& layout);
/// The same by processes that hold the counts of the window together, see load_window(); all of them get the result.
Evaluation evaluate(const Instance& instance, const Placement& placement, const Layout& layout, Communicator& team);

/// Demand on each rank, Σ_i q[i, l, p], [L, P], from the aggregate demand [L, E].
std::vector<std::int64_t> rank_demand(std::span<const std::int64_t> demand, const Placement& placement);

/// Equation 22: mean over the layers with load of (population sd over p of Σ_i q[i, l, p]) / mean; 0 without load.
double rank_demand_cv(std::span<const std::int64_t> rank_demand, std::int32_t ranks);

}  // namespace routepack
