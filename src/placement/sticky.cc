// SPDX-License-Identifier: Apache-2.0
#include "placement/sticky.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>
#include <ranges>
#include <utility>

#include "core/assert.h"
#include "core/bytes.h"
#include "placement/balance_layer.h"
#include "placement/slots.h"
#include "routepack/bounds.h"
#include "routepack/error.h"

namespace routepack {
namespace {

std::array<Relocation, 2> relocations(const BalanceSwap& swap) {
  return {Relocation{swap.hot, swap.hot_rank, swap.cold_rank}, Relocation{swap.cold, swap.cold_rank, swap.hot_rank}};
}

/// The swaps of one layer on its way to the target, and how many of them were taken.
class LayerPlan {
 public:
  LayerPlan(std::span<const std::int64_t> loads, const Placement& home, LayerId layer, double token_value)
      : layer_(layer), token_value_(token_value), balance_(loads, home, layer) {}

  /// Finds all swaps without looking at limits; they stand ready but are not taken.
  void look_ahead(std::int64_t target) {
    std::vector<BalanceSwap> found;
    peaks_ = {balance_.peak()};
    while (peaks_.back() > target) {
      const auto swap = balance_.best(target);
      if (!swap) break;
      balance_.apply(*swap);
      found.push_back(*swap);
      peaks_.push_back(balance_.peak());
    }
    for (const BalanceSwap& swap : found | std::views::reverse) balance_.undo(swap);
    ahead_ = std::move(found);
    taken_ = 0;
  }

  /// The stretch of swaps ahead with the most peak less per moved expert, in objective units; the end of the list ahead
  /// and a worth of −1 when there is nothing. One swap may gain nothing where several ranks are equally hot, so single
  /// swaps cannot be compared.
  struct Stretch {
    double worth = -1.0;
    std::size_t end = 0;
  };
  [[nodiscard]] Stretch best_stretch() const {
    Stretch best{-1.0, taken_};
    std::int64_t moved = 0;
    for (std::size_t k = taken_; k < ahead_.size(); ++k) {
      moved += ahead_[k].moved;
      const auto less = static_cast<double>(peaks_[taken_] - peaks_[k + 1]) * token_value_;
      if (less <= 0.0) continue;
      const double worth = moved > 0 ? less / static_cast<double>(moved) : std::numeric_limits<double>::infinity();
      if (worth > best.worth) best = {worth, k + 1};
    }
    return best;
  }

  /// Takes the swaps up to `end` as far as the ledger allows and what was taken is worth its price. False when not all
  /// were.
  bool take(std::size_t end, MoveLedger& ledger) {
    const std::size_t start = taken_;
    std::size_t worth_it = start;
    double price = 0.0;
    while (taken_ < end) {
      const auto moves = relocations(ahead_[taken_]);
      if (!ledger.allows(layer_, moves)) break;
      price += ledger.price_change(layer_, moves);
      ledger.record(layer_, moves);
      balance_.apply(ahead_[taken_++]);
      const std::int64_t less = peaks_[start] - peaks_[taken_];
      if (less > 0 && static_cast<double>(less) * token_value_ > price) worth_it = taken_;
    }
    const bool all = taken_ == end;
    while (taken_ > worth_it) {
      const BalanceSwap& swap = ahead_[--taken_];
      balance_.undo(swap);
      auto back = relocations(swap);
      for (Relocation& move : back) std::swap(move.from, move.to);
      ledger.record(layer_, back);
    }
    swaps_ += static_cast<std::int64_t>(taken_ - start);
    return all;
  }

  [[nodiscard]] double price_of(std::size_t end, const MoveLedger& ledger) const {
    double price = 0.0;
    for (std::size_t k = taken_; k < end; ++k) price += ledger.price_change(layer_, relocations(ahead_[k]));
    return price;
  }
  [[nodiscard]] double gain_of(std::size_t end) const {
    return static_cast<double>(peaks_[taken_] - peaks_[end]) * token_value_;
  }

  /// One swap that the ledger allows now, instead of what was ahead.
  void look_for_allowed(std::int64_t target, const MoveLedger& ledger) {
    ahead_.clear();
    taken_ = 0;
    peaks_ = {balance_.peak()};
    if (peaks_.back() <= target) return;
    const auto swap = balance_.best(
        target, [&](const BalanceSwap& candidate) { return ledger.allows(layer_, relocations(candidate)); });
    if (!swap) return;
    balance_.apply(*swap);
    peaks_.push_back(balance_.peak());
    balance_.undo(*swap);
    ahead_ = {*swap};
  }

  /// What another process needs to have the same ahead.
  void give(std::vector<std::byte>& out) const {
    put_list(out, std::span<const BalanceSwap>(ahead_));
    put_list(out, std::span<const std::int64_t>(peaks_));
  }
  void take_over(ByteReader& reader) {
    ahead_ = reader.get_list<BalanceSwap>();
    peaks_ = reader.get_list<std::int64_t>();
    taken_ = 0;
  }

  [[nodiscard]] const BalanceLayer& balance() const { return balance_; }
  [[nodiscard]] std::int64_t swaps() const { return swaps_; }

 private:
  LayerId layer_;
  double token_value_;
  BalanceLayer balance_;
  std::vector<BalanceSwap> ahead_;   // from where `taken_` = 0 was
  std::vector<std::int64_t> peaks_;  // before each of them, and after the last
  std::size_t taken_ = 0;
  std::int64_t swaps_ = 0;
};

std::int64_t stretched(double by, std::int64_t total, std::int64_t ranks) {
  return static_cast<std::int64_t>(std::floor((1.0 + by) * static_cast<double>(total) / static_cast<double>(ranks)));
}

void check(const StickyParams& params, const MoveLedger& ledger, std::size_t layers) {
  if (!(params.epsilon >= 0.0) || !(params.start_above >= params.epsilon) || !(params.start_above < 1e6)) {
    throw InvalidInput(fmt::format("sticky: found epsilon {} and start above {}, wanted 0 <= epsilon <= start above",
                                   params.epsilon, params.start_above));
  }
  if (!params.token_value.empty() && params.token_value.size() != layers) {
    throw InvalidInput(
        fmt::format("sticky: found {} token values, wanted {}, one per layer", params.token_value.size(), layers));
  }
  ROUTEPACK_ASSERT(ledger.moved() == 0, "sticky placement starts at home");
}

/// Layers that wait for it, each for itself: all swaps to its target, and how few could do.
void look_ahead(std::span<const std::int64_t> demand, const Placement& home, const std::vector<bool>& waits,
                std::vector<StickyLayer>& result, std::vector<LayerPlan>& plans, Executor& executor) {
  const auto experts = static_cast<std::size_t>(home.experts());
  const SharedWork looks{
      .body =
          [&](std::size_t l) {
            if (!waits[l]) return;
            result[l].swaps_needed = fewest_swaps(demand.subspan(l * experts, experts), home.ranks_of_layer(LayerId(l)),
                                                  home.ranks(), result[l].target);
            plans[l].look_ahead(result[l].target);
          },
      .give =
          [&](std::size_t l, std::vector<std::byte>& out) {
            if (!waits[l]) return;
            put(out, result[l].swaps_needed.value_or(-1));
            plans[l].give(out);
          },
      .take =
          [&](std::size_t l, std::span<const std::byte> bytes) {
            if (!waits[l]) return;
            ByteReader reader(bytes);
            const auto needed = reader.get<std::int64_t>();
            result[l].swaps_needed = needed < 0 ? std::nullopt : std::optional(needed);
            plans[l].take_over(reader);
          },
  };
  executor.share(plans.size(), looks, Deadline());  // milliseconds: not worth cutting
}

struct Entry {
  double worth;
  LayerId layer;
  /// For std::priority_queue: the worthiest on top, of equals the first layer.
  friend bool operator<(const Entry& a, const Entry& b) {
    return a.worth != b.worth ? a.worth < b.worth : a.layer > b.layer;
  }
};

/// Why a layer that was worked on ended.
LayerEnd reason(const StickyLayer& layer, std::int64_t balanced, bool refused) {
  if (layer.peak_after <= balanced) return LayerEnd::Balanced;
  if (layer.peak_after <= layer.target) return LayerEnd::HotExpert;
  return refused ? LayerEnd::Budget : LayerEnd::NoSwap;
}

}  // namespace

StickyResult place_sticky(std::span<const std::int64_t> demand, MoveLedger& ledger, const StickyParams& params) {
  SerialExecutor executor;
  return place_sticky(demand, ledger, params, executor);
}

StickyResult place_sticky(std::span<const std::int64_t> demand, MoveLedger& ledger, const StickyParams& params,
                          Executor& executor) {
  const Placement& home = ledger.home();
  const auto experts = static_cast<std::size_t>(home.experts());
  const auto layers = static_cast<std::size_t>(home.layers());
  ROUTEPACK_ASSERT(demand.size() == layers * experts, "demand has another shape");
  check(params, ledger, layers);
  const auto bounds = layer_bounds(demand, home);

  std::vector<StickyLayer> result(layers);
  std::vector<std::int64_t> balanced(layers);
  std::vector<LayerPlan> plans;
  std::vector<bool> waits(layers, false);  // for a look ahead
  for (const LayerId l : IdRange<LayerId>(home.layers())) {
    const auto loads = demand.subspan(l * experts, experts);
    const std::int64_t total = std::accumulate(loads.begin(), loads.end(), std::int64_t{0});
    plans.emplace_back(loads, home, l, params.token_value.empty() ? 1.0 : params.token_value[l]);
    StickyLayer& layer = result[l];
    balanced[l] = std::max(stretched(params.epsilon, total, home.ranks()), bounds[l].rank_mean);
    // Nothing reaches less than the bound; its last per mille would cost as many moves as all before.
    layer.target =
        bounds[l].any_placement <= balanced[l] ? balanced[l] : stretched(params.epsilon, bounds[l].any_placement, 1);
    layer.peak_before = layer.peak_after = bounds[l].placed_peak;
    if (layer.peak_before <= std::max(stretched(params.start_above, total, home.ranks()), layer.target)) continue;
    waits[l] = true;
  }
  look_ahead(demand, home, waits, result, plans, executor);

  std::priority_queue<Entry> queue;
  for (const LayerId l : IdRange<LayerId>(home.layers())) {
    if (waits[l]) queue.push({plans[l].best_stretch().worth, l});
  }

  std::vector<bool> tried(layers, false), refused(layers, false);
  while (!queue.empty()) {
    const LayerId l = queue.top().layer;
    queue.pop();
    LayerPlan& plan = plans[l];
    tried[l] = true;
    const auto stretch = plan.best_stretch();
    if (stretch.worth < 0.0) continue;
    if (!(plan.gain_of(stretch.end) > plan.price_of(stretch.end, ledger))) {
      refused[l] = true;
      continue;
    }
    if (!plan.take(stretch.end, ledger)) {
      refused[l] = true;
      plan.look_for_allowed(result[l].target, ledger);
    } else if (refused[l]) {
      plan.look_for_allowed(result[l].target, ledger);
    }
    queue.push({plan.best_stretch().worth, l});
  }

  std::vector<std::int32_t> rank_of;
  for (const LayerId l : IdRange<LayerId>(home.layers())) {
    StickyLayer& layer = result[l];
    layer.peak_after = plans[l].balance().peak();
    layer.swaps = plans[l].swaps();
    if (tried[l]) {
      layer.end = reason(layer, balanced[l], refused[l]);
    } else if (layer.peak_before > balanced[l] && layer.peak_before <= layer.target) {
      layer.end = LayerEnd::HotExpert;
    }
    const auto ranks = plans[l].balance().rank_of();
    rank_of.insert(rank_of.end(), ranks.begin(), ranks.end());
  }
  Placement placement = fill_slots(home, rank_of);
#ifdef ROUTEPACK_HEAVY_ASSERTS
  MoveLedger again = ledger;
  again.recount(placement);
  ROUTEPACK_ASSERT(again == ledger, "the ledger differs from a count from scratch");
#endif
  return {std::move(placement), std::move(result)};
}

}  // namespace routepack
