// SPDX-License-Identifier: Apache-2.0
// What no layout can beat: proven lower bounds on the first score component, in both synchronisation scopes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "routepack/instance.h"
#include "routepack/placement.h"

namespace routepack {

/// Why one layer cannot do with less than its bound. All figures are routed tokens over the whole window.
struct LayerBound {
  std::int64_t placed_peak = 0;    ///< max_p Σ_i q[i, l, p] under the placement: no packing goes below (equation 4)
  std::int64_t rank_mean = 0;      ///< total / P, rounded up
  std::int64_t any_placement = 0;  ///< the least peak that some placement might reach
  /// The hottest expert plus the H − 1 coldest exceed the rank mean: only copies of experts could help.
  bool replication_needed = false;
  /// Copies of hot experts, beside the experts themselves, without which no rank can get down to the mean: an expert
  /// of load x beside the H − 1 coldest needs ⌈x / (mean − coldest)⌉ of itself.
  std::int64_t copies_needed = 0;
};

struct Bounds {
  double fixed_placement = 0.0;  ///< over every packing under the given placement
  double any_placement = 0.0;    ///< over every packing and every placement
  double balanced = 0.0;  ///< the same if every rank could get the mean: any_placement less what hot experts cost
  std::vector<LayerBound> layers;

  [[nodiscard]] std::int32_t layers_that_need_replication() const;
  [[nodiscard]] std::int64_t copies_needed() const;  ///< over all layers
};

/// The expert side of the bounds, layer by layer. `demand` is [L, E] as from aggregate_demand. O(L·E log E).
std::vector<LayerBound> layer_bounds(std::span<const std::int64_t> demand, const Placement& placement);

/// Aggregate bounds (docs/mathematics.md has the proofs). `demand` is [L, E] as from aggregate_demand. O(L·E log E).
Bounds lower_bounds(const Instance& instance, const Placement& placement, std::span<const std::int64_t> demand);

/// score / bound − 1; 0 when both are 0, infinite when only the bound is (padding load that no bound counts).
double gap_to(double score, double bound);

}  // namespace routepack
