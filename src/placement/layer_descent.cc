// SPDX-License-Identifier: Apache-2.0
#include "placement/layer_descent.h"

#include <utility>

#include "core/philox.h"

namespace routepack {
namespace {

template <class Load>
class Descent {
 public:
  Descent(LayerSwaps<Load>& layer, LayerId l, const MoveLedger& ledger, const AwayPrice& price,
          const DescentLimits& limits)
      : layer_(layer),
        l_(l),
        ledger_(ledger),
        price_(price),
        limits_(limits),
        moved_left_(ledger.most_moved() - ledger.moved()),
        search_(layer, ledger, price, allowed()) {
    note_peaks();
  }

  Proposals run() {
    fall();
    if (ledger_.unlimited() && layer_.ranks() > 1) kick();
    made_.steps = search_.steps();
    return std::move(made_);
  }

 private:
  [[nodiscard]] typename SwapSearch<Load>::Allowed allowed() {
    if (ledger_.unlimited()) return {};
    return [this](const RowSwap& swap) {
      return (swap.moved <= 0 || swap.moved <= moved_left_) && ledger_.allows(l_, relocations(swap));
    };
  }

  void note_peaks() {
    if (!limits_.with_peaks) return;
    for (std::size_t i = 0; i < layer_.row_shards(); ++i) made_.peaks.push_back(layer_.peak(i));
  }

  [[nodiscard]] double away(ExpertId e, RankId rank) const {
    const RankId home(layer_.home_rank(e));
    if (home == rank) return 0.0;
    return ledger_.node_of(home) == ledger_.node_of(rank) ? price_.near : price_.far;
  }

  void apply(const RowSwap& swap) {
    const double costs = price_.far > 0.0 ? away(swap.a, swap.to) - away(swap.a, swap.from) + away(swap.b, swap.from) -
                                                away(swap.b, swap.to)
                                          : 0.0;
    net_ += static_cast<double>(swap.gain) - costs;
    layer_.apply(swap.a, swap.b);
    made_.swaps.push_back(swap);
    note_peaks();
    moved_left_ -= swap.moved;
  }

  void go_back_to(std::size_t size) {
    while (made_.swaps.size() > size) {
      const RowSwap& swap = made_.swaps.back();
      layer_.apply(swap.b, swap.a);
      moved_left_ += swap.moved;
      made_.swaps.pop_back();
    }
    if (limits_.with_peaks) made_.peaks.resize((size + 1) * layer_.row_shards());
  }

  void fall() {
    for (bool any = true; any;) {
      any = false;
      for (const RankId p : layer_.peak_ranks()) {
        if (search_.steps() >= limits_.most_steps) {
          made_.cut = true;
          return;
        }
        if (const auto swap = search_.best_from(p)) {
          apply(*swap);
          any = true;
        }
      }
    }
  }

  [[nodiscard]] std::array<std::uint32_t, 4> name(std::uint32_t kick, std::uint32_t draw) const {
    return {kick, draw, static_cast<std::uint32_t>(l_.value()), limits_.round};
  }

  void kick() {
    constexpr double kNoise = 1e-9;  // of sums of prices
    std::int64_t fruitless = 0;
    for (std::uint32_t n = 0; fruitless < limits_.kicks && !made_.cut; ++n) {
      const std::size_t size = made_.swaps.size();
      const double net = net_;
      const std::uint32_t swaps = 1 + scaled(philox(limits_.key, name(n, 0))[0], 3);
      for (std::uint32_t k = 1; k <= swaps; ++k) apply(random_swap(philox(limits_.key, name(n, k))));
      fall();
      // Out of steps on the way is no reason to keep less than there was.
      if (net_ > net + kNoise && within_limit()) {
        fruitless = 0;
      } else {
        go_back_to(size);
        net_ = net;
        ++fruitless;
      }
    }
  }

  [[nodiscard]] RowSwap random_swap(const std::array<std::uint32_t, 4>& bits) const {
    const auto below = [](std::uint32_t draw, std::size_t end) {
      return std::size_t{scaled(draw, static_cast<std::uint32_t>(end))};
    };
    const auto p = static_cast<std::size_t>(layer_.busiest(below(bits[0], layer_.row_shards())).first_rank);
    std::size_t q = below(bits[1], layer_.ranks() - 1);
    if (q >= p) ++q;
    const auto from = layer_.members(p);
    const auto to = layer_.members(q);
    RowSwap swap{from[below(bits[2], from.size())], to[below(bits[3], to.size())], RankId(p), RankId(q)};
    swap.gain = layer_.gain(swap.a, swap.b);
    swap.moved = ledger_.moved_change(l_, relocations(swap));
    return swap;
  }

  [[nodiscard]] bool within_limit() const {
    const std::int64_t limit = layer_.rows().max_rank_tokens;
    for (std::size_t i = 0; limit > 0 && i < layer_.row_shards(); ++i) {
      if (layer_.peak(i) > limit) return false;
    }
    return true;
  }

  LayerSwaps<Load>& layer_;
  LayerId l_;
  const MoveLedger& ledger_;
  AwayPrice price_;
  DescentLimits limits_;
  std::int64_t moved_left_;
  double net_ = 0.0;
  Proposals made_;
  SwapSearch<Load> search_;
};

}  // namespace

template <class Load>
Proposals descend(LayerSwaps<Load>& layer, LayerId l, const MoveLedger& ledger, const AwayPrice& price,
                  const DescentLimits& limits) {
  return Descent<Load>(layer, l, ledger, price, limits).run();
}

template Proposals descend(LayerSwaps<std::int32_t>&, LayerId, const MoveLedger&, const AwayPrice&,
                           const DescentLimits&);
template Proposals descend(LayerSwaps<std::int64_t>&, LayerId, const MoveLedger&, const AwayPrice&,
                           const DescentLimits&);

}  // namespace routepack
