// SPDX-License-Identifier: Apache-2.0
// Placement that stays: the fewest swaps from where experts are until ranks are balanced over the whole window.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "exec/executor.h"
#include "routepack/moves.h"
#include "routepack/placement.h"

namespace routepack {

struct StickyParams {
  double epsilon = 0.01;      ///< stop at max/mean ≤ 1 + epsilon
  double start_above = 0.01;  ///< leave layers alone whose max/mean is at most 1 + start_above (hysteresis)
  /// Value in units of J of one routed token less on the busiest rank of each layer, [L] (w_l/(C·G)): compares layers
  /// with each other and with the price of moves. Empty: 1 each.
  std::span<const double> token_value = {};
};

struct StickyLayer {
  LayerEnd end = LayerEnd::Kept;
  std::int64_t peak_before = 0, peak_after = 0;  ///< busiest rank, routed tokens of the whole window
  std::int64_t target = 0;                       ///< the peak that was aimed at
  std::int64_t swaps = 0;                        ///< used
  /// Lower bound on the swaps that reach the target; absent when none do. 0 when the layer was kept.
  std::optional<std::int64_t> swaps_needed = 0;
  bool operator==(const StickyLayer&) const = default;
};

struct StickyResult {
  Placement placement;
  std::vector<StickyLayer> layers;
};

/// Swaps between the hottest rank of a layer and another, the most peak less per moved expert first over all layers,
/// while the ledger allows it and the gain exceeds the price. The ledger's home is where experts are now; it must be
/// settled there and comes back with the result's moves. `demand` is [L, E] as from aggregate_demand. H experts per
/// rank always. A swap is found in O(E). The executor, or its team, looks ahead in all layers side by side; which of
/// these swaps are taken is decided by everybody alike, in O(L log L) and what they cost.
/// @throws InvalidInput for a negative or unordered epsilon, or token values of another shape
StickyResult place_sticky(std::span<const std::int64_t> demand, MoveLedger& ledger, const StickyParams& params,
                          Executor& executor);
/// The same in the calling thread.
StickyResult place_sticky(std::span<const std::int64_t> demand, MoveLedger& ledger, const StickyParams& params = {});

}  // namespace routepack
