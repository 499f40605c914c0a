// SPDX-License-Identifier: Apache-2.0
// What one layer wants to do at one price: swaps until none pays, and kicks out of the hollow that they end in.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "placement/swap_search.h"

namespace routepack {

inline std::array<Relocation, 2> relocations(const RowSwap& swap) {
  return {Relocation{swap.a, swap.from, swap.to}, Relocation{swap.b, swap.to, swap.from}};
}

/// Swaps in the order in which they were applied to the layer.
struct Proposals {
  std::vector<RowSwap> swaps;
  std::vector<std::int64_t> peaks;  ///< max_p W, [swaps + 1, R·G], from before the first; when asked for
  std::int64_t steps = 0;
  bool cut = false;  ///< the steps ran out
};

struct DescentLimits {
  std::int64_t most_steps = 0;
  std::int64_t kicks = 0;  ///< in a row without gain; each costs a short descent. Not with a limited budget.
  std::uint64_t key = 0;   ///< with the round and the layer, names the random numbers of the kicks
  std::uint32_t round = 0;
  bool with_peaks = false;
};

/// Applies swaps to the layer, the busiest ranks in turn, until no swap gains more than its price or the steps run out.
/// Then kicks: one to three random swaps with a busiest rank, a descent, and back unless that was a gain. The sum of
/// gains minus prices never falls. Deterministic.
template <class Load>
Proposals descend(LayerSwaps<Load>& layer, LayerId l, const MoveLedger& ledger, const AwayPrice& price,
                  const DescentLimits& limits);

extern template Proposals descend(LayerSwaps<std::int32_t>&, LayerId, const MoveLedger&, const AwayPrice&,
                                  const DescentLimits&);
extern template Proposals descend(LayerSwaps<std::int64_t>&, LayerId, const MoveLedger&, const AwayPrice&,
                                  const DescentLimits&);

}  // namespace routepack
