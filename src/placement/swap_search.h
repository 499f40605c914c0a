// SPDX-License-Identifier: Apache-2.0
// The best swap of one layer under a fixed layout, found without looking at most of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "placement/layer_swaps.h"

namespace routepack {

struct RowSwap {
  ExpertId a, b;  ///< `a` leaves `from`, `b` leaves `to`
  RankId from, to;
  std::int64_t gain = 0;   ///< how much lower Σ share · peak becomes
  std::int64_t moved = 0;  ///< change of experts away from home
};

/// Price of an expert away from home in a layer's own unit, one routed token less in a peak of share 1.
struct AwayPrice {
  double near = 0.0;  ///< in its node
  double far = 0.0;   ///< in another; ≥ near
};

/// Searches one layer at one price. Follows the swaps that are applied to the layer between calls and remembers what
/// they cannot have changed.
template <class Load>
class SwapSearch {
 public:
  using Allowed = std::function<bool(const RowSwap&)>;

  /// Refers to the layer. `ledger` says which ranks share a node; `allowed` (may be empty) can forbid a swap.
  SwapSearch(const LayerSwaps<Load>& layer, const MoveLedger& ledger, const AwayPrice& price, Allowed allowed = {});

  /// The swap of an expert of rank p that gains most beyond the price of the experts it moves, if that is positive, the
  /// gain is not negative, no rank passes max_rank_tokens and `allowed` agrees. Of equals, the one that moves fewer,
  /// then one between equal local slots, then the first. Exact: what is passed over cannot be better.
  std::optional<RowSwap> best_from(RankId p);

  /// Vectors of R·G loads that were looked at.
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  /// The most that any expert of a rank could gain by vanishing.
  [[nodiscard]] std::int64_t potential(RankId p);

 private:
  struct Giver {
    ExpertId expert;
    std::int64_t most = 0;  // its gain if it vanished; a swap may gain more by what it relieves the partner of
    double leaves = 0.0;    // the least that its own move may cost
    std::size_t loads = 0;  // where its rank's loads without it stand in gives_
  };
  struct Partner {
    double most = 0.0;  // the gain of exchanging with this rank at best, less what its expert costs at least
    std::size_t rank = 0;
  };

  [[nodiscard]] std::int64_t touched(std::size_t p) const;
  void look_at_givers(std::size_t p);
  void look_at_partners(std::size_t p, std::int64_t changed_after);
  void key_experts(std::size_t p);
  void try_rank(const Giver& giver, std::size_t p, std::size_t q);
  void consider(ExpertId a, ExpertId b, std::size_t p, std::size_t q, std::int64_t gain, double costs);
  void exchange(ExpertId a, ExpertId b, std::size_t p, std::size_t q);
  [[nodiscard]] std::int64_t peaks_after(ExpertId a, ExpertId b, std::size_t p, std::size_t q);
  [[nodiscard]] bool within_limit(ExpertId a, ExpertId b, std::size_t p, std::size_t q);
  [[nodiscard]] double away(ExpertId e, std::size_t rank) const {
    const auto home = static_cast<std::size_t>(layer_.home_rank(e));
    if (home == rank) return 0.0;
    return node_[home] == node_[rank] ? price_.near : price_.far;
  }
  [[nodiscard]] double least_return(std::size_t p) const;

  const LayerSwaps<Load>& layer_;
  AwayPrice price_;
  bool priced_;
  Allowed allowed_;
  std::int64_t steps_ = 0;
  std::size_t stride_;
  std::vector<std::int32_t> node_;     // of each rank, [P]
  std::vector<std::int64_t> settled_;  // the layer's clock when a rank was found without a swap, −1 before; [P]

  std::optional<RowSwap> found_;
  double found_net_ = 0.0;
  std::pair<std::int64_t, bool> found_tie_{0, false};  // experts moved, local index changes

  std::vector<Load> rival_, rival2_;  // the two largest loads beside rank p, [stride]
  std::vector<std::int32_t> rival_rank_;
  std::vector<std::int64_t> relief_;  // how far a rank is ahead of the second where it is busiest, [P]
  std::int64_t most_relief_ = 0;      // of a rank beside p
  std::vector<Giver> givers_;
  std::vector<Partner> partners_;
  std::vector<Load> gives_;              // [H, stride]
  std::vector<Load> rest_, floor_;       // [P, stride]: the largest beside p and q; what no swap of the two goes below
  std::vector<Load> takes_, x_, y_;      // [stride]
  std::vector<const Load*> at_peak_;     // per rank an expert's load where that rank is busiest, [E]; or null; [P]
  std::vector<std::int32_t> sum_place_;  // where a rank's sum stands in peak_sums_, or −1; [P]
  std::vector<Load> peak_sums_;          // room for those of ranks that are busiest more than once, [·, E]
  std::vector<Load> key_;                // by rank and member, [P, H]
  std::vector<double> return_cost_;      // what a member costs when it goes to p, [P, H]
  std::vector<double> lowest_key_, lowest_cost_;  // the least key + cost, and cost, of a rank's members, [P]
  std::vector<std::int32_t> tries_, which_;       // members of a rank and their numbers, [H]
  std::vector<Load> sums_;                        // [H]
};

extern template class SwapSearch<std::int32_t>;
extern template class SwapSearch<std::int64_t>;

}  // namespace routepack
