// SPDX-License-Identifier: Apache-2.0
#include "packing/search/anneal.h"

#include <algorithm>
#include <utility>

#include "core/assert.h"
#include "core/bytes.h"
#include "core/philox.h"
#include "core/portable_math.h"
#include "packing/search/chain.h"
#include "packing/search/state.h"
#include "packing/search/temperature.h"

namespace routepack::search {
namespace {

constexpr std::uint32_t kResampleStream = 0x4e5a3b1e;
/// Boltzmann weights for the step from one temperature to the next.
std::vector<double> survival(std::span<const State> population, const EnergyWeights& weights, double now, double next,
                             double floor) {
  std::vector<double> energies;
  for (const State& member : population) energies.push_back(weights(member.totals().score));
  const double least = std::ranges::min(energies);
  std::vector<double> result;
  for (const double energy : energies) {
    const double normalized = (energy - least) / std::max(least, floor);
    result.push_back(portable::exp(std::max(-700.0, -(1.0 / next - 1.0 / now) * normalized)));
  }
  return result;
}

class Annealing {
 public:
  Annealing(const Problem& problem, std::span<const Arrangement> seeds, const SearchParams& params, std::int64_t seed,
            double bound, Executor& executor, const Deadline& deadline, const LevelObserver& observer)
      : problem_(problem),
        params_(params),
        seed_(seed),
        bound_(bound),
        executor_(executor),
        deadline_(deadline),
        observer_(observer),
        weights_(energy_weights(problem, params)),
        everything_(whole(problem)) {
    ROUTEPACK_ASSERT(!seeds.empty(), "a search without a seed");
    population_.reserve(seeds.size());
    for (const Arrangement& arrangement : seeds) population_.emplace_back(problem, arrangement);
    for (const State& member : population_) consider(member.exact_score(), member.cells_of_items());
    best_seed_ = best_;
  }

  Found run() {
    found_.ending = go();
    found_.cut = found_.ending == Ending::Stopped;
    ROUTEPACK_ASSERT(best_ <= best_seed_, "the search ends worse than its best seed");
    found_.arrangement = problem_.arrangement(best_cells_);
    const State state(problem_, found_.arrangement);
    ROUTEPACK_ASSERT(state.exact_score() == best_, "the best layout does not score what it was taken for");
    found_.score = best_;
    found_.joint.assign(state.joint().begin(), state.joint().end());
    return std::move(found_);
  }

 private:
  Ending go() {
    if (problem_.movable.size() < 2 || problem_.cells() < 2) return Ending::NothingToMove;
    if (bound_reached()) return Ending::BoundReached;
    const auto levels = temperatures(population_.front(), params_, seed_);
    if (levels.empty()) return Ending::NothingToMove;
    const std::int64_t steps = steps_per_level();
    for (std::size_t n = 0; n < levels.size(); ++n) {
      const bool over = run_level(static_cast<Index>(n), levels[n], steps);
      if (over) return Ending::Stopped;
      if (bound_reached()) return Ending::BoundReached;
      if (n + 1 < levels.size()) select(static_cast<Index>(n), levels[n], levels[n + 1]);
    }
    return Ending::Budget;
  }

  [[nodiscard]] std::int64_t steps_per_level() const {
    const auto movable = static_cast<std::int64_t>(problem_.movable.size());
    const std::int64_t per_sample = std::min(params_.proposals_per_sample, params_.most_proposals / movable);
    const std::int64_t all = std::max<std::int64_t>(1, per_sample * movable);
    const std::int64_t shares = params_.levels * static_cast<std::int64_t>(population_.size());
    return std::max<std::int64_t>(1, all / shares);
  }

  /// Whether the deadline is over.
  bool run_level(Index level, double temperature, std::int64_t steps) {
    struct Walked {
      std::int64_t proposals = 0, accepted = 0;
      Score best;
    };
    std::vector<Walked> walked(population_.size());
    std::vector<std::vector<Index>> best_cells(population_.size());  // where a walk came below the best so far
    const SharedWork walks{.body =
                               [&](std::size_t j) {
                                 auto start = population_[j].cells_of_items();
                                 const Task task{.seed = seed_,
                                                 .level = level,
                                                 .chain = static_cast<Index>(j),
                                                 .temperature = temperature,
                                                 .steps = steps,
                                                 .weights = weights_};
                                 Totals totals = population_[j].totals();
                                 const Trail trail =
                                     walk(population_[j], everything_, task, params_, totals, deadline_.token());
                                 walked[j] = {trail.proposals, trail.accepted, trail.best_exact};
                                 if (trail.best_exact < best_) best_cells[j] = trail.best_cells(std::move(start));
                               },
                           .give =
                               [&](std::size_t j, std::vector<std::byte>& out) {
                                 put(out, walked[j]);
                                 put_list(out, std::span<const Index>(best_cells[j]));
                                 population_[j].give(everything_.row_shards, out);
                               },
                           .take =
                               [&](std::size_t j, std::span<const std::byte> bytes) {
                                 ByteReader reader(bytes);
                                 walked[j] = reader.get<Walked>();
                                 best_cells[j] = reader.get_list<Index>();
                                 population_[j].take(reader);
                               }};
    const bool over = executor_.share(population_.size(), walks, deadline_);
    std::int64_t proposals = 0;
    std::int64_t accepted = 0;
    for (std::size_t j = 0; j < walked.size(); ++j) {
      proposals += walked[j].proposals;
      accepted += walked[j].accepted;
      if (walked[j].best < best_) consider(walked[j].best, std::move(best_cells[j]));
    }
    found_.proposals += proposals;
    found_.accepted += accepted;
    ++found_.levels;
    if (observer_) {
      observer_({.level = found_.levels,
                 .levels = params_.levels,
                 .temperature = temperature,
                 .acceptance = proposals == 0 ? 0.0 : static_cast<double>(accepted) / static_cast<double>(proposals),
                 .best = best_.max_shard,
                 .gap = gap_to(best_.max_shard, bound_),
                 .proposals = found_.proposals});
    }
    return over;
  }

  /// Terminal states compete for the next level; a member may get several descendants.
  void select(Index level, double now, double next) {
    if (population_.size() < 2) return;
    const auto weights = survival(population_, weights_, now, next, problem_.fixed_scale);
    const auto bits = philox(static_cast<std::uint64_t>(seed_), {0, 0, level, kResampleStream});
    const double u0 = static_cast<double>(bits[0]) * 0x1p-32;
    const auto chosen = resample(weights, population_.size(), u0);
    // Survivors stay where they are, copies take the places of the others.
    std::vector<std::size_t> copies(population_.size(), 0);
    for (const std::size_t j : chosen) ++copies[j];
    std::size_t free = 0;
    for (std::size_t j = 0; j < copies.size(); ++j) {
      for (; copies[j] > 1; --copies[j]) {
        while (copies[free] != 0) ++free;
        population_[free] = population_[j];
        copies[free] = 1;
      }
    }
  }

  void consider(const Score& score, std::vector<Index> cells) {
    if (!best_cells_.empty() && !(score < best_)) return;
    best_ = score;
    best_cells_ = std::move(cells);
  }
  [[nodiscard]] bool bound_reached() const { return gap_to(best_.max_shard, bound_) <= params_.tolerance; }

  const Problem& problem_;
  const SearchParams& params_;
  std::int64_t seed_;
  double bound_;
  Executor& executor_;
  const Deadline& deadline_;
  const LevelObserver& observer_;
  EnergyWeights weights_;
  Region everything_;
  std::vector<State> population_;
  Score best_;
  Score best_seed_;
  std::vector<Index> best_cells_;
  Found found_;
};

}  // namespace

Found anneal(const Problem& problem, std::span<const Arrangement> seeds, const SearchParams& params, std::int64_t seed,
             double bound, Executor& executor, const Deadline& deadline, const LevelObserver& observer) {
  return Annealing(problem, seeds, params, seed, bound, executor, deadline, observer).run();
}

std::vector<std::size_t> resample(std::span<const double> weights, std::size_t draws, double u0) {
  double sum = 0.0;
  for (const double weight : weights) sum += weight;
  std::vector<std::size_t> chosen;
  double below = weights[0];  // cumulative weight up to and with member j
  std::size_t j = 0;
  for (std::size_t m = 0; m < draws; ++m) {
    const double at = (u0 + static_cast<double>(m)) / static_cast<double>(draws) * sum;
    while (j + 1 < weights.size() && below < at) below += weights[++j];
    chosen.push_back(j);
  }
  return chosen;
}

}  // namespace routepack::search
