// SPDX-License-Identifier: Apache-2.0
#include "placement/balance_layer.h"

#include <algorithm>
#include <tuple>

#include "core/integer.h"

namespace routepack {

BalanceLayer::BalanceLayer(std::span<const std::int64_t> loads, const Placement& home, LayerId layer)
    : loads_(loads),
      home_rank_(home.ranks_of_layer(layer)),
      per_rank_(static_cast<std::size_t>(home.slots_per_rank())),
      rank_of_(home_rank_.begin(), home_rank_.end()),
      rank_load_(static_cast<std::size_t>(home.ranks()), 0),
      members_(home.physical_to_logical()[layer]) {
  for (const ExpertId e : IdRange<ExpertId>(home.experts())) {
    home_index_.push_back(home.slot_of(layer, e) % home.slots_per_rank());
    rank_load_[static_cast<std::size_t>(rank_of_[e])] += loads_[e];
  }
  for (auto begin = members_.begin(); begin != members_.end(); begin += home.slots_per_rank()) {
    std::sort(begin, begin + home.slots_per_rank(), [&](ExpertId a, ExpertId b) { return hotter(a, b); });
  }
}

std::size_t BalanceLayer::hottest() const {
  return static_cast<std::size_t>(std::ranges::max_element(rank_load_) - rank_load_.begin());
}

std::int64_t BalanceLayer::peak() const {
  return rank_load_[hottest()];
}

std::optional<BalanceSwap> BalanceLayer::best(std::int64_t target,
                                              const std::function<bool(const BalanceSwap&)>& allowed) const {
  using Key = std::tuple<std::int64_t, std::int64_t, bool, std::int64_t, ExpertId, ExpertId>;
  const std::size_t hot = hottest();
  const std::int64_t hot_load = rank_load_[hot];
  std::optional<BalanceSwap> found;
  Key found_key{};

  const auto consider = [&](ExpertId a, ExpertId b, std::size_t cold) {
    const std::int64_t less = loads_[a] - loads_[b];
    const std::int64_t peak = std::max(hot_load - less, rank_load_[cold] + less);
    if (less <= 0 || peak >= hot_load) return;
    const auto away = [&](ExpertId e, std::size_t rank) {
      return static_cast<std::size_t>(home_rank_[e]) != rank ? 1 : 0;
    };
    const std::int64_t moved = away(a, cold) - away(a, hot) + away(b, hot) - away(b, cold);
    const Key key{std::max(peak, target), moved, home_index_[a] != home_index_[b], peak, a, b};
    if (found && !(key < found_key)) return;
    const BalanceSwap swap{a, b, RankId(hot), RankId(cold), peak, moved};
    if (allowed && !allowed(swap)) return;
    found = swap;
    found_key = key;
  };

  for (std::size_t cold = 0; cold < rank_load_.size(); ++cold) {
    if (cold == hot) continue;
    // No swap leaves the two below their mean.
    const std::int64_t mean = ceil_div(hot_load + rank_load_[cold], 2);
    if (mean >= hot_load || (found && std::max(mean, target) > std::get<0>(found_key))) continue;
    const ExpertId* from = &members_[hot * per_rank_];
    const ExpertId* to = &members_[cold * per_rank_];
    // The best partner of each hot expert is the one next to «half the difference less»; as the hot experts get
    // colder, so do their partners. With `allowed`, neighbours are no longer enough.
    std::size_t next = 0;
    for (std::size_t i = 0; i < per_rank_; ++i) {
      if (allowed) {
        for (std::size_t j = 0; j < per_rank_; ++j) consider(from[i], to[j], cold);
        continue;
      }
      while (next < per_rank_ && 2 * (loads_[from[i]] - loads_[to[next]]) < hot_load - rank_load_[cold]) ++next;
      if (next < per_rank_) consider(from[i], to[next], cold);
      if (next > 0) consider(from[i], to[next - 1], cold);
    }
  }
  return found;
}

void BalanceLayer::replace(std::size_t rank, ExpertId leaves, ExpertId arrives) {
  const auto begin = members_.begin() + static_cast<std::ptrdiff_t>(rank * per_rank_);
  const auto end = begin + static_cast<std::ptrdiff_t>(per_rank_);
  auto at = std::find(begin, end, leaves);
  *at = arrives;
  for (; at != begin && hotter(arrives, *(at - 1)); --at) std::swap(*at, *(at - 1));
  for (; at + 1 != end && hotter(*(at + 1), arrives); ++at) std::swap(*at, *(at + 1));
  rank_load_[rank] += loads_[arrives] - loads_[leaves];
  rank_of_[arrives] = static_cast<std::int32_t>(rank);
}

void BalanceLayer::exchange(ExpertId a, ExpertId b) {
  const auto rank_a = static_cast<std::size_t>(rank_of_[a]);
  const auto rank_b = static_cast<std::size_t>(rank_of_[b]);
  replace(rank_a, a, b);
  replace(rank_b, b, a);
}

}  // namespace routepack
