// SPDX-License-Identifier: Apache-2.0
// One layer under aggregate loads: which swap relieves the hottest rank most.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "routepack/ids.h"
#include "routepack/placement.h"

namespace routepack {

struct BalanceSwap {
  ExpertId hot, cold;  ///< the hot one leaves the hottest rank
  RankId hot_rank, cold_rank;
  std::int64_t peak = 0;   ///< the larger of the two ranks afterwards
  std::int64_t moved = 0;  ///< change of experts away from home
};

/// Experts of one layer on their ranks. Members are kept sorted, so that a swap is found in O(E) instead of O(E·H).
class BalanceLayer {
 public:
  BalanceLayer(std::span<const std::int64_t> loads, const Placement& home, LayerId layer);

  [[nodiscard]] std::int64_t peak() const;
  [[nodiscard]] std::span<const std::int64_t> rank_loads() const { return rank_load_; }
  [[nodiscard]] std::span<const std::int32_t> rank_of() const { return rank_of_; }

  /// The swap that lowers the hottest rank (of several, the first) without making its partner as hot, with the lowest
  /// peak of the two; peaks below `target` count as equal. Then the fewest experts newly away from home, then equal
  /// local slots, then the lower peak, then the lowest numbers. `allowed` may forbid a swap.
  [[nodiscard]] std::optional<BalanceSwap> best(std::int64_t target,
                                                const std::function<bool(const BalanceSwap&)>& allowed = {}) const;
  void apply(const BalanceSwap& swap) { exchange(swap.hot, swap.cold); }
  void undo(const BalanceSwap& swap) { exchange(swap.cold, swap.hot); }

 private:
  [[nodiscard]] std::size_t hottest() const;
  void exchange(ExpertId a, ExpertId b);
  void replace(std::size_t rank, ExpertId leaves, ExpertId arrives);
  [[nodiscard]] bool hotter(ExpertId a, ExpertId b) const {
    return loads_[a] != loads_[b] ? loads_[a] > loads_[b] : a < b;
  }

  std::span<const std::int64_t> loads_;
  std::span<const std::int32_t> home_rank_;
  std::vector<std::int32_t> home_index_;  // local slot at home
  std::size_t per_rank_;
  std::vector<std::int32_t> rank_of_;
  std::vector<std::int64_t> rank_load_;
  std::vector<ExpertId> members_;  // [P, H], hottest first
};

}  // namespace routepack
