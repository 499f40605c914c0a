// SPDX-License-Identifier: Apache-2.0
#include "placement/row_aware.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <utility>
#include <vector>

#include "core/assert.h"
#include "core/bytes.h"
#include "cost/row_cost.h"
#include "placement/layer_descent.h"
#include "placement/layer_swaps.h"
#include "placement/slots.h"
#include "placement/swap_search.h"
#include "routepack/error.h"

namespace routepack {
namespace {

/// Between rounds under a budget the price of a move falls by this factor: swaps come nearly in the order of their
/// gain.
constexpr double kPriceStep = 0.6;
/// The first price, as a part of the most that an expert could gain by vanishing.
constexpr double kFirstPrice = 0.2;
/// Rounds at one price while swaps collide in the budget.
constexpr int kRepeats = 3;
/// Rounds without a better score before shards are no longer weighed anew.
constexpr int kPatience = 3;
constexpr int kMostRounds = 200;

struct Priced {
  Score score;
  double price = 0.0;
  friend bool operator<(const Priced& a, const Priced& b) {
    const double first = a.score.max_shard + a.price;
    const double second = b.score.max_shard + b.price;
    if (first != second) return first < second;
    if (a.score.total != b.score.total) return a.score.total < b.score.total;
    if (a.price != b.price) return a.price < b.price;
    return a.score.worst_row < b.score.worst_row;
  }
};

template <class Load>
class Refinement {
 public:
  Refinement(const RowLoads& rows, const Placement& start, MoveLedger& ledger, const RowAwareParams& params,
             Executor& executor, const Deadline& deadline)
      : rows_(rows),
        ledger_(ledger),
        executor_(executor),
        deadline_(deadline),
        over_(executor.over(deadline)),
        params_(params),
        steps_left_(params.most_steps),
        unit_(rows.weights.size()),
        proposals_(rows.weights.size()) {
    for (const LayerId l : IdRange<LayerId>(rows.layers)) {
      layers_.emplace_back(rows, l, ledger.home(), start.ranks_of_layer(l));
    }
    weigh_alike();
  }

  RowAwareResult run() {
    before_ = now();
    keep();
    if (!ledger_.unlimited()) {
      falling_prices();
    } else if (rows_.shards == 1) {
      // Layers that ended early leave their steps to the others.
      do {
        round(0.0, false);
      } while (cut_ && steps_left_ > params_.most_steps / 8 && !ended());
    } else {
      weighed_rounds();
    }
    if (rows_.shards > 1 && !ended()) exact_rounds();
    go_back_to_best();
    const Placement placement = fill_slots(ledger_.home(), best_rank_of_);
    ROUTEPACK_HEAVY_ASSERT(score_rows(rows_, best_rank_of_) == best_.score, "score differs from scratch");
    ROUTEPACK_ASSERT(best_.score <= before_.score, "a refined placement scores worse");
    return {placement, before_.score, best_.score, swaps_, steps_, rounds_, !cut_, !over_};
  }

 private:
  /// One round at a time, the price of a move falling, until the budget is spent or every gain is taken.
  void falling_prices() {
    double price = highest_price();
    double lowest = 0.0;
    for (const double unit : unit_) lowest = std::max(lowest, unit);
    lowest /= 4.0;  // a quarter of a routed token
    int repeats = 0;
    while (rounds_ < kMostRounds && !ended()) {
      const bool spent = ledger_.moved() >= ledger_.most_moved();
      if (price < lowest) price = 0.0;
      if (rows_.shards > 1) weigh();
      const Outcome outcome = round(price, false);
      if (outcome.refused > 0 && outcome.taken > 0 && ++repeats < kRepeats) continue;
      if (price == 0.0 || spent) return;
      repeats = 0;
      price *= kPriceStep;
    }
  }

  /// Shards are weighed anew while that leads anywhere.
  void weighed_rounds() {
    int fruitless = 0;
    while (fruitless < kPatience && rounds_ < kMostRounds && !ended()) {
      weigh();
      const Priced before = best_;
      const Outcome outcome = round(0.0, false);
      if (outcome.taken == 0) return;
      fruitless = best_ < before ? 0 : fruitless + 1;
    }
  }

  /// From the best so far, swaps that make the exact score better, one by one.
  void exact_rounds() {
    go_back_to_best();
    for (int n = 0; n < kMostRounds && !ended(); ++n) {
      weigh();
      if (round(0.0, true).taken == 0) return;
    }
  }

  struct Outcome {
    std::int64_t taken = 0, refused = 0;
  };

  /// All layers propose, side by side and each for itself; then proposals are taken, the worthiest first.
  Outcome round(double at_least, bool exact) {
    ++rounds_;
    const std::int64_t quota = steps_left_ / static_cast<std::int64_t>(layers_.size());
    over_ = executor_.share(layers_.size(),
                            {.body = [&](std::size_t l) { propose(l, at_least, exact, quota); },
                             .give = [&](std::size_t l, std::vector<std::byte>& out) { give(l, out); },
                             .take = [&](std::size_t l, std::span<const std::byte> bytes) { take_over(l, bytes); }},
                            deadline_);
    cut_ = false;
    for (const Proposals& layer : proposals_) {
      steps_ += layer.steps;
      steps_left_ = std::max<std::int64_t>(steps_left_ - layer.steps, 0);
      cut_ = cut_ || layer.cut;
    }
    const Outcome outcome = take(exact);
    swaps_ += outcome.taken;
    if (outcome.taken > 0) keep();
    return outcome;
  }

  void propose(std::size_t l, double at_least, bool exact, std::int64_t quota) {
    Proposals& made = proposals_[l];
    made = {};
    if (unit_[l] <= 0.0) return;
    if (deadline_.over()) {
      made.cut = true;
      return;
    }
    const auto& budget = ledger_.budget();
    const AwayPrice price{std::max(budget.price, at_least) / unit_[l],
                          std::max(budget.price_between_nodes, at_least) / unit_[l]};
    made = descend(layers_[l], LayerId(l), ledger_, price,
                   {.most_steps = quota,
                    .kicks = exact ? 0 : params_.kicks,
                    .key = static_cast<std::uint64_t>(params_.seed),
                    .round = static_cast<std::uint32_t>(rounds_),
                    .with_peaks = rows_.shards > 1});
  }

  /// What another process needs to come to the same layer and proposals.
  void give(std::size_t l, std::vector<std::byte>& out) const {
    const Proposals& made = proposals_[l];
    put_list(out, std::span<const RowSwap>(made.swaps));
    put_list(out, std::span<const std::int64_t>(made.peaks));
    put(out, made.steps);
    put(out, made.cut);
    put_list(out, layers_[l].all_busiest());
  }

  void take_over(std::size_t l, std::span<const std::byte> bytes) {
    ByteReader reader(bytes);
    Proposals& made = proposals_[l];
    made.swaps = reader.get_list<RowSwap>();
    made.peaks = reader.get_list<std::int64_t>();
    made.steps = reader.get<std::int64_t>();
    made.cut = reader.get<bool>();
    for (const RowSwap& swap : made.swaps) layers_[l].apply(swap.a, swap.b);
    layers_[l].settle_ties(reader.get_list<typename LayerSwaps<Load>::Busiest>());
  }

  struct Entry {
    double worth;
    std::size_t layer;
    friend bool operator<(const Entry& a, const Entry& b) {
      return a.worth != b.worth ? a.worth < b.worth : a.layer > b.layer;
    }
  };

  Outcome take(bool exact) {
    Outcome outcome;
    std::vector<std::size_t> next(layers_.size(), 0);
    std::priority_queue<Entry> queue;
    const auto push = [&](std::size_t l) {
      if (next[l] == proposals_[l].swaps.size()) return;
      const RowSwap& swap = proposals_[l].swaps[next[l]];
      const double moved = static_cast<double>(swap.moved);
      const double gain = static_cast<double>(swap.gain) * unit_[l];
      queue.push({swap.moved > 0 ? gain / moved : std::numeric_limits<double>::infinity(), l});
    };
    for (std::size_t l = 0; l < layers_.size(); ++l) push(l);
    if (exact) joint_ = joint_cost(rows_, proposed_peaks());
    while (!queue.empty()) {
      const std::size_t l = queue.top().layer;
      queue.pop();
      const auto moves = relocations(proposals_[l].swaps[next[l]]);
      if (!ledger_.allows(LayerId(l), moves) || (exact && !improves(l, next[l], moves))) {
        ++outcome.refused;
        undo_from(l, next[l]);
        continue;
      }
      ledger_.record(LayerId(l), moves);
      ++outcome.taken;
      ++next[l];
      push(l);
    }
    return outcome;
  }

  void undo_from(std::size_t l, std::size_t first) {
    auto& swaps = proposals_[l].swaps;
    while (swaps.size() > first) {
      layers_[l].apply(swaps.back().b, swaps.back().a);
      swaps.pop_back();
    }
  }

  /// Peaks [L, R·G] before any proposal of this round.
  [[nodiscard]] std::vector<std::int64_t> proposed_peaks() const {
    std::vector<std::int64_t> peaks;
    const std::size_t width = rows_.row_shards();
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      for (std::size_t i = 0; i < width; ++i) {
        peaks.push_back(proposals_[l].peaks.empty() ? layers_[l].peak(i) : proposals_[l].peaks[i]);
      }
    }
    return peaks;
  }

  /// Whether proposal n of a layer betters (first component + price, total); if so, J is brought up to date.
  bool improves(std::size_t l, std::size_t n, std::span<const Relocation> moves) {
    const std::size_t width = rows_.row_shards();
    std::vector<double> joint = joint_;
    const std::int64_t* peaks = &proposals_[l].peaks[n * width];
    for (std::size_t i = 0; i < width; ++i) {
      joint[i] +=
          rows_.weights[l] * static_cast<double>(peaks[width + i] - peaks[i]) / static_cast<double>(rows_.capacity);
    }
    const Score was = combine_rows(joint_, rows_.rows, rows_.shards, rows_.sync);
    const Score is = combine_rows(joint, rows_.rows, rows_.shards, rows_.sync);
    const double first = is.max_shard - was.max_shard + ledger_.price_change(LayerId(l), moves);
    // Sums of doubles: below this a change is rounding.
    const double noise = 1e-12 * was.max_shard;
    if (first > noise || (first >= -noise && !(is.total < was.total * (1.0 - 1e-12)))) return false;
    joint_ = std::move(joint);
    return true;
  }

  [[nodiscard]] Priced now() const {
    std::vector<std::int64_t> peaks;
    for (const auto& layer : layers_) {
      for (std::size_t i = 0; i < rows_.row_shards(); ++i) peaks.push_back(layer.peak(i));
    }
    return {combine_rows(joint_cost(rows_, peaks), rows_.rows, rows_.shards, rows_.sync), ledger_.total_price()};
  }

  /// Remembers where experts are if that is better than all before.
  void keep() {
    const Priced found = now();
    if (!best_rank_of_.empty() && (!(found < best_) || found.score > before_.score)) return;
    best_ = found;
    best_rank_of_.clear();
    for (const auto& layer : layers_) {
      const auto ranks = layer.rank_of();
      best_rank_of_.insert(best_rank_of_.end(), ranks.begin(), ranks.end());
    }
  }

  void go_back_to_best() {
    const auto experts = static_cast<std::size_t>(rows_.experts);
    for (const LayerId l : IdRange<LayerId>(rows_.layers)) {
      const auto wanted = std::span<const std::int32_t>(best_rank_of_).subspan(l * experts, experts);
      if (!std::ranges::equal(layers_[l].rank_of(), wanted)) {
        layers_[l] = LayerSwaps<Load>(rows_, l, ledger_.home(), wanted);
      }
    }
    ledger_.recount(fill_slots(ledger_.home(), best_rank_of_));
  }

  /// What a routed token is worth in each layer when row-shards count by `shares` whose average over shards is `norm`.
  void set_units(double norm) {
    for (std::size_t l = 0; l < unit_.size(); ++l)
      unit_[l] = rows_.weights[l] / static_cast<double>(rows_.capacity) / norm;
  }

  void weigh_alike() { set_units(static_cast<double>(rows_.shards)); }

  /// The first score component is a maximum over shards (of sums, or in each row). Row-shards that are behind it by
  /// little count nearly as much as the slowest, or swaps would chase one shard to and fro.
  void weigh() {
    std::vector<std::int64_t> peaks;
    for (const auto& layer : layers_) {
      for (std::size_t i = 0; i < rows_.row_shards(); ++i) peaks.push_back(layer.peak(i));
    }
    const auto joint = joint_cost(rows_, peaks);
    const auto shards = static_cast<std::size_t>(rows_.shards);
    std::vector<std::int32_t> shares(joint.size());
    std::int64_t sum = 0;
    const auto share = [](double slack, double scale) {
      const double x = scale > 0.0 ? 1.0 + slack / scale : 1.0;
      const double most = static_cast<double>(RowLoads::kMostShare);
      return std::max(static_cast<std::int32_t>(most / (x * x)), 1);
    };
    if (rows_.sync == Sync::Step) {
      std::vector<double> cost(shards, 0.0);
      for (std::size_t i = 0; i < joint.size(); ++i) cost[i % shards] += joint[i];
      const double most = *std::ranges::max_element(cost);
      for (std::size_t i = 0; i < joint.size(); ++i) shares[i] = share(most - cost[i % shards], kStepSlack * most);
    } else {
      for (std::size_t r = 0; r < joint.size(); r += shards) {
        const double most = *std::max_element(joint.begin() + static_cast<std::ptrdiff_t>(r),
                                              joint.begin() + static_cast<std::ptrdiff_t>(r + shards));
        for (std::size_t g = 0; g < shards; ++g) shares[r + g] = share(most - joint[r + g], kRowSlack * most);
      }
    }
    for (const std::int32_t s : shares) sum += s;
    set_units(static_cast<double>(sum) / static_cast<double>(rows_.rows));
    executor_.for_each(layers_.size(), [&](std::size_t l) { layers_[l].set_shares(shares); });
  }

  [[nodiscard]] double highest_price() {
    std::vector<double> most(layers_.size(), 0.0);
    executor_.for_each(layers_.size(), [&](std::size_t l) {
      SwapSearch<Load> search(layers_[l], ledger_, {});
      for (const RankId p : layers_[l].peak_ranks()) {
        most[l] = std::max(most[l], static_cast<double>(search.potential(p)) * unit_[l]);
      }
    });
    return *std::ranges::max_element(most) * kFirstPrice;
  }

  [[nodiscard]] bool ended() {
    if (steps_left_ < static_cast<std::int64_t>(layers_.size())) cut_ = true;
    return over_ || steps_left_ < static_cast<std::int64_t>(layers_.size());
  }

  static constexpr double kStepSlack = 0.002;
  static constexpr double kRowSlack = 0.01;

  const RowLoads& rows_;
  MoveLedger& ledger_;
  Executor& executor_;
  const Deadline& deadline_;
  bool over_;  // as all processes know it
  RowAwareParams params_;
  std::int64_t steps_left_;
  std::vector<LayerSwaps<Load>> layers_;
  std::vector<double> unit_;  // J for one routed token less in a peak of share 1, [L]
  std::vector<Proposals> proposals_;
  std::vector<double> joint_;  // of exact rounds, [R·G]
  Priced before_, best_;
  std::vector<std::int32_t> best_rank_of_;
  std::int64_t swaps_ = 0, steps_ = 0, rounds_ = 0;
  bool cut_ = false;  // in the last round a layer ran out of steps
};

}  // namespace

RowAwareResult refine_placement(const RowLoads& rows, const Placement& start, MoveLedger& ledger,
                                const RowAwareParams& params, Executor& executor, const Deadline& deadline) {
  if (start.layers() != rows.layers || start.experts() != rows.experts || start.ranks() != rows.ranks) {
    throw InvalidInput(fmt::format("placement: found {} layers of {} experts on {} ranks, wanted {} of {} on {}",
                                   start.layers(), start.experts(), start.ranks(), rows.layers, rows.experts,
                                   rows.ranks));
  }
  if (std::holds_alternative<std::vector<std::int32_t>>(rows.loads)) {
    return Refinement<std::int32_t>(rows, start, ledger, params, executor, deadline).run();
  }
  return Refinement<std::int64_t>(rows, start, ledger, params, executor, deadline).run();
}

}  // namespace routepack
