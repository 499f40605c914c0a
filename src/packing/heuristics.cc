// SPDX-License-Identifier: Apache-2.0
#include "packing/heuristics.h"

#include <algorithm>
#include <functional>
#include <set>
#include <tuple>
#include <utility>

#include "core/integer.h"
#include "packing/free_space_tree.h"
#include "packing/slack_search.h"

namespace routepack {
namespace {

constexpr std::int64_t kStepsPerBin = 2000;
/// Bins that exchange units with a bin over the capacity are looked for among this many, emptiest first.
constexpr int kPartners = 48;
/// Bins that are emptied and packed anew together.
constexpr std::size_t kEmptiedAtLeast = 4;
constexpr std::size_t kEmptiedAtMost = 16;
constexpr std::uint64_t kEntrants = 8;

using KindBins = std::vector<std::vector<std::uint32_t>>;

/// Bins with what they hold, ordered by it.
class LevelBins {
 public:
  LevelBins(const BinProblem& problem, std::int64_t bins)
      : problem_(problem), bins_(static_cast<std::size_t>(bins)), load_(bins_.size(), 0), count_(bins_.size(), 0) {
    for (std::size_t b = 0; b < bins_.size(); ++b) order_.insert(key(b));
  }

  /// Emptiest first, whatever the capacity says.
  bool fill() {
    for (std::uint32_t u = 0; u < problem_.units.size(); ++u) {
      const auto found =
          std::ranges::find_if(order_, [&](const Key& k) { return has_room(std::get<2>(k), problem_.units[u]); });
      if (found == order_.end()) return false;
      put(u, std::get<2>(*found));
    }
    return true;
  }

  /// Fewest samples first, among these the emptiest: for limits on counts that leave little choice.
  bool fill_in_turn() {
    std::set<Key> by_count;  // samples, load, bin
    for (std::size_t b = 0; b < bins_.size(); ++b) by_count.emplace(0, 0, b);
    for (std::uint32_t u = 0; u < problem_.units.size(); ++u) {
      const std::size_t b = std::get<2>(*by_count.begin());
      if (!has_room(b, problem_.units[u])) return false;
      by_count.erase(by_count.begin());
      put(u, b);
      by_count.emplace(count_[b], load_[b], b);
    }
    return true;
  }

  /// Exchanges units until no bin is over the capacity.
  bool relieve(Work& work) {
    while (!order_.empty() && std::get<0>(*order_.rbegin()) > problem_.capacity) {
      const std::size_t over = std::get<2>(*order_.rbegin());
      const Exchange best = best_exchange(over, work);
      if (best.gain <= 0 || work.over()) return false;
      apply(over, best);
    }
    return true;
  }

  Packing take() {
    for (auto& bin : bins_) std::ranges::sort(bin);
    return std::move(bins_);
  }

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::size_t>;  // load, samples, bin
  static constexpr std::uint32_t kNothing = static_cast<std::uint32_t>(-1);
  struct Exchange {
    std::int64_t gain = 0;  ///< load over the capacity that disappears
    std::size_t with = 0;
    std::uint32_t out = kNothing;
    std::uint32_t in = kNothing;
  };

  [[nodiscard]] Key key(std::size_t b) const { return {load_[b], count_[b], b}; }
  [[nodiscard]] std::int64_t size(std::uint32_t u) const { return u == kNothing ? 0 : problem_.units[u].size; }
  [[nodiscard]] std::int64_t count(std::uint32_t u) const { return u == kNothing ? 0 : problem_.units[u].count; }

  [[nodiscard]] bool has_room(std::size_t b, const BinProblem::Unit& unit) const {
    return count_[b] + unit.count <= problem_.max_count;
  }

  void put(std::uint32_t u, std::size_t b) {
    change(b, [&](auto& bin, std::int64_t& load, std::int64_t& samples) {
      bin.push_back(u);
      load += size(u);
      samples += count(u);
    });
  }

  template <class Change>
  void change(std::size_t b, Change what) {
    order_.erase(key(b));
    what(bins_[b], load_[b], count_[b]);
    order_.insert(key(b));
  }

  /// A move or swap that takes the most load over the capacity away from `over` and brings no other bin over it.
  Exchange best_exchange(std::size_t over, Work& work) const {
    const std::int64_t excess = load_[over] - problem_.capacity;
    Exchange best;
    int looked_at = 0;
    for (const Key& k : order_) {
      const std::size_t with = std::get<2>(k);
      const std::int64_t slack = problem_.capacity - load_[with];
      if (slack <= best.gain || ++looked_at > kPartners) break;
      work.spend(static_cast<std::int64_t>(bins_[over].size()));
      for (const std::uint32_t out : bins_[over]) {
        consider(best, over, with, out, kNothing, excess, slack);
        work.spend(static_cast<std::int64_t>(bins_[with].size()));
        for (const std::uint32_t in : bins_[with]) consider(best, over, with, out, in, excess, slack);
        if (best.gain == excess || work.over()) return best;
      }
    }
    return best;
  }

  void consider(Exchange& best, std::size_t over, std::size_t with, std::uint32_t out, std::uint32_t in,
                std::int64_t excess, std::int64_t slack) const {
    const std::int64_t moved = size(out) - size(in);
    if (moved <= 0 || moved > slack) return;
    const std::int64_t samples = count(out) - count(in);
    if (count_[with] + samples > problem_.max_count || count_[over] - samples > problem_.max_count) return;
    if (const std::int64_t gain = std::min(moved, excess); gain > best.gain) best = {gain, with, out, in};
  }

  void apply(std::size_t over, const Exchange& exchange) {
    move(over, exchange.with, exchange.out);
    if (exchange.in != kNothing) move(exchange.with, over, exchange.in);
  }

  void move(std::size_t from, std::size_t to, std::uint32_t u) {
    change(from, [&](auto& bin, std::int64_t& load, std::int64_t& samples) {
      std::erase(bin, u);
      load -= size(u);
      samples -= count(u);
    });
    put(u, to);
  }

  const BinProblem& problem_;
  Packing bins_;
  std::vector<std::int64_t> load_;
  std::vector<std::int64_t> count_;
  std::set<Key> order_;
};

/// Bins of kinds that are emptied in parts and packed anew.
class Rebuilder {
 public:
  Rebuilder(const BinProblem& problem, const Kinds& kinds, KindBins bins)
      : problem_(problem), kinds_(kinds), bins_(std::move(bins)) {
    for (const auto& bin : bins_) load_.push_back(load_of(bin));
  }

  [[nodiscard]] std::int64_t bins() const { return static_cast<std::int64_t>(bins_.size()); }
  KindBins take() { return std::move(bins_); }

  /// Empties the emptiest bin and some others and packs their units anew; keeps the result unless it is worse.
  void step(std::uint64_t round, Work& work) {
    std::vector<std::size_t> emptied = choose(round);
    std::int64_t square_before = 0;
    units_.clear();
    for (const std::size_t b : emptied) {
      square_before += square(load_[b]);
      units_.insert(units_.end(), bins_[b].begin(), bins_[b].end());
    }
    std::ranges::sort(units_);
    SlackSearch supply(kinds_, units_, problem_.capacity, problem_.max_count);
    work.spend(static_cast<std::int64_t>(bins_.size() / 4 + 8 * units_.size()) + 100);
    KindBins packed;
    std::int64_t square_after = 0;
    while (!supply.empty() && packed.size() <= emptied.size()) {
      packed.push_back(supply.next_bin(0, kStepsPerBin / 4, mixed(round * 64 + packed.size()), work));
      square_after += square(load_of(packed.back()));
    }
    const bool better =
        packed.size() < emptied.size() || (packed.size() == emptied.size() && square_after >= square_before);
    if (!supply.empty() || !better) return;
    for (std::size_t n = 0; n < packed.size(); ++n) {
      load_[emptied[n]] = load_of(packed[n]);
      bins_[emptied[n]] = std::move(packed[n]);
    }
    std::ranges::sort(emptied.begin() + static_cast<std::ptrdiff_t>(packed.size()), emptied.end(), std::greater<>());
    for (std::size_t n = packed.size(); n < emptied.size(); ++n) {
      bins_.erase(bins_.begin() + static_cast<std::ptrdiff_t>(emptied[n]));
      load_.erase(load_.begin() + static_cast<std::ptrdiff_t>(emptied[n]));
    }
  }

 private:
  static std::int64_t square(std::int64_t load) { return load * load; }
  [[nodiscard]] std::int64_t load_of(const std::vector<std::uint32_t>& bin) const {
    std::int64_t load = 0;
    for (const std::uint32_t k : bin) load += kinds_.size[k];
    return load;
  }

  [[nodiscard]] std::vector<std::size_t> choose(std::uint64_t round) const {
    const std::size_t emptiest = static_cast<std::size_t>(std::ranges::min_element(load_) - load_.begin());
    std::vector<std::size_t> chosen = {emptiest};
    const std::size_t wanted =
        std::min(bins_.size(), kEmptiedAtLeast + mixed(round ^ 0x5eedULL) % (kEmptiedAtMost - kEmptiedAtLeast + 1));
    // Bins with room are worth more, but not always the same ones: each is the emptiest of one to eight drawn.
    const std::uint64_t entrants = 1 + mixed(round ^ 0xfaceULL) % kEntrants;
    for (std::uint64_t n = 0; chosen.size() < wanted; ++n) {
      std::size_t b = mixed((round << 20) + kEntrants * n) % bins_.size();
      // Full bins hardly ever win among few; later draws are plain, so that they end.
      for (std::uint64_t t = 1; t < entrants && n < 2 * wanted; ++t) {
        const std::size_t other = mixed((round << 20) + kEntrants * n + t) % bins_.size();
        if (load_[other] < load_[b]) b = other;
      }
      if (std::ranges::find(chosen, b) == chosen.end()) chosen.push_back(b);
    }
    return chosen;
  }

  const BinProblem& problem_;
  const Kinds& kinds_;
  KindBins bins_;
  std::vector<std::int64_t> load_;
  std::vector<std::uint32_t> units_;  // of the bins emptied
};

KindBins slack_bins(const BinProblem& problem, const Kinds& kinds, std::int64_t slack, std::uint64_t seed, Work& work) {
  SlackSearch supply(kinds, problem.capacity, problem.max_count);
  KindBins bins;
  while (!supply.empty()) {
    // With the work used up bins still get filled, each by its first try.
    const std::int64_t limit = work.over() ? 1 + problem.capacity / problem.units.back().size : kStepsPerBin;
    bins.push_back(supply.next_bin(slack, std::min(limit, kStepsPerBin), seed, work));
  }
  return bins;
}

std::vector<std::uint32_t> kind_of_units(const Kinds& kinds) {
  std::vector<std::uint32_t> kind;
  for (std::size_t k = 0; k < kinds.kinds(); ++k) {
    kind.insert(kind.end(), static_cast<std::size_t>(kinds.copies[k]), static_cast<std::uint32_t>(k));
  }
  return kind;
}

}  // namespace

Packing first_fit_bins(const BinProblem& problem) {
  FreeSpaceTree free_space(problem.units.size(), problem.capacity);
  std::vector<std::int64_t> load(problem.units.size(), 0);
  std::vector<std::int64_t> count(problem.units.size(), 0);
  Packing packing;
  for (std::uint32_t u = 0; u < problem.units.size(); ++u) {
    const auto& unit = problem.units[u];
    std::size_t b = free_space.first_with(unit.size, 0);
    while (count[b] + unit.count > problem.max_count) b = free_space.first_with(unit.size, b + 1);
    if (b == packing.size()) packing.emplace_back();
    packing[b].push_back(u);
    load[b] += unit.size;
    count[b] += unit.count;
    // A bin without room for another sample has no room for tokens either.
    free_space.set(b, count[b] == problem.max_count ? -1 : problem.capacity - load[b]);
  }
  return packing;
}

std::optional<Packing> best_fit(const BinProblem& problem, std::int64_t bins) {
  std::set<std::tuple<std::int64_t, std::int64_t, std::size_t>> by_free;  // free, samples, bin
  for (std::size_t b = 0; b < static_cast<std::size_t>(bins); ++b) by_free.emplace(problem.capacity, 0, b);
  Packing packing(static_cast<std::size_t>(bins));
  for (std::uint32_t u = 0; u < problem.units.size(); ++u) {
    const auto& unit = problem.units[u];
    auto at = by_free.lower_bound({unit.size, 0, 0});
    while (at != by_free.end() && std::get<1>(*at) + unit.count > problem.max_count) ++at;
    if (at == by_free.end()) return std::nullopt;
    const auto [free, count, b] = *at;
    by_free.erase(at);
    packing[b].push_back(u);
    by_free.emplace(free - unit.size, count + unit.count, b);
  }
  return packing;
}

std::optional<Packing> level_bins(const BinProblem& problem, std::int64_t bins, Work& work) {
  if (bins < 1) return problem.units.empty() ? std::optional<Packing>(Packing()) : std::nullopt;
  LevelBins level(problem, bins);
  if (level.fill() && level.relieve(work)) return level.take();
  if (problem.max_count >= problem.total_count()) return std::nullopt;
  LevelBins in_turn(problem, bins);
  if (in_turn.fill_in_turn() && in_turn.relieve(work)) return in_turn.take();
  return std::nullopt;
}

Packing minimum_slack(const BinProblem& problem, std::int64_t slack, std::uint64_t seed, Work& work) {
  if (problem.units.empty()) return {};
  const Kinds kinds(problem);
  return kinds.deal(slack_bins(problem, kinds, slack, seed, work));
}

Packing fewer_bins(const BinProblem& problem, std::int64_t target, Packing best, Work& work) {
  if (static_cast<std::int64_t>(best.size()) <= target || problem.units.empty()) return best;
  const Kinds kinds(problem);
  const auto kind = kind_of_units(kinds);
  KindBins bins;
  for (const auto& bin : best) {
    auto& of_kinds = bins.emplace_back();
    for (const std::uint32_t u : bin) of_kinds.push_back(kind[u]);
  }
  const std::int64_t spare = std::max<std::int64_t>(0, target * problem.capacity - problem.total_size()) / target;
  for (const std::int64_t slack : {std::int64_t{0}, spare, spare / 2}) {
    if (work.over()) break;
    KindBins packed = slack_bins(problem, kinds, slack, 0, work);
    if (packed.size() < bins.size()) bins = std::move(packed);
    if (static_cast<std::int64_t>(bins.size()) <= target) return kinds.deal(bins);
  }
  Rebuilder rebuilder(problem, kinds, std::move(bins));
  for (std::uint64_t round = 1; !work.over() && rebuilder.bins() > target; ++round) rebuilder.step(round, work);
  return kinds.deal(rebuilder.take());
}

}  // namespace routepack
