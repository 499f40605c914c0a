// SPDX-License-Identifier: Apache-2.0
#include "packing/search/blocks.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/assert.h"
#include "core/bytes.h"
#include "core/philox.h"
#include "packing/search/chain.h"
#include "packing/search/pace.h"
#include "packing/search/state.h"
#include "packing/search/temperature.h"

namespace routepack::search {
namespace {

constexpr double kWorthThreads = 8192.0;  // proposals of a round, from which on threads pay
constexpr std::uint32_t kDealStream = 0xb10c5dea;

class BlockAnnealing {
 public:
  BlockAnnealing(const Problem& problem, const Arrangement& start, const SearchParams& params, std::int64_t seed,
                 double bound, Executor& executor, const Deadline& deadline, const LevelObserver& observer)
      : problem_(problem),
        params_(params),
        seed_(seed),
        bound_(bound),
        executor_(executor),
        deadline_(deadline),
        observer_(observer),
        weights_(energy_weights(problem, params)),
        state_(problem, start),
        totals_(state_.totals()),
        best_(state_.exact_score()),
        best_cells_(state_.cells_of_items()) {
    // Shards that meet in every row stay together.
    const bool by_row = problem.instance.sync == Sync::Row;
    row_shards_of_unit_ = by_row ? problem.shards : 1;
    units_.resize(by_row ? problem.rows : problem.row_shards());
    std::iota(units_.begin(), units_.end(), Index{0});
    const auto fitting = static_cast<std::int64_t>(units_.size()) / params.block_rows;
    blocks_ = static_cast<std::size_t>(std::max<std::int64_t>(1, fitting));
    // No block sees the worst row-shard of the others.
    if (blocks_ > 1) weights_.worst = 0.0;
  }

  Found run() {
    const Score before = best_;
    found_.ending = go();
    found_.cut = found_.cut || found_.ending == Ending::Stopped;
    ROUTEPACK_ASSERT(best_ <= before, "the search ends worse than it began");
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
    const auto before = Deadline::Clock::now();
    const auto levels = temperatures(state_, params_, seed_);
    if (levels.empty()) return Ending::NothingToMove;
    const std::int64_t rounds = blocks_ == 1 ? 1 : params_.rounds;
    const auto all = static_cast<double>(problem_.movable.size());
    Pace pace(deadline_, static_cast<double>(steps_per_sample()) * all, params_.levels * rounds, kProbes,
              Deadline::Clock::now() - before);
    for (std::size_t n = 0; n < levels.size(); ++n) {
      std::int64_t proposals = 0;
      std::int64_t accepted = 0;
      bool over = false;
      for (std::int64_t k = 0; k < rounds; ++k) {
        const auto round = static_cast<Index>(static_cast<std::int64_t>(n) * rounds + k);
        const double share = pace.next(executor_);
        found_.cut = pace.cut();
        over = run_round(round, levels[n], share / static_cast<double>(params_.levels * rounds), n + 1 == levels.size(),
                         proposals, accepted);
        if (over) break;
      }
      report(levels[n], proposals, accepted);
      if (over) return Ending::Stopped;
      if (bound_reached()) return Ending::BoundReached;
    }
    return pace.cut() ? Ending::Stopped : Ending::Budget;
  }

  [[nodiscard]] std::int64_t steps_per_sample() const {
    const auto all = static_cast<std::int64_t>(problem_.movable.size());
    return std::min(params_.proposals_per_sample, std::max<std::int64_t>(1, params_.most_proposals / all));
  }

  /// `share` of all steps. Whether the deadline is over.
  bool run_round(Index round, double temperature, double share, bool last_level, std::int64_t& proposals,
                 std::int64_t& accepted) {
    auto regions = deal(round);
    struct Done {
      std::int64_t proposals = 0, accepted = 0;
    };
    std::vector<Done> done(regions.size());
    const double per_sample = static_cast<double>(steps_per_sample()) * share;
    const SharedWork walks{
        .body =
            [&](std::size_t b) {
              find_movable(regions[b]);
              const auto movable = static_cast<double>(regions[b].movable.size());
              const Task task{.seed = seed_,
                              .level = round,
                              .chain = static_cast<Index>(b),
                              .temperature = temperature,
                              .steps = std::max<std::int64_t>(1, static_cast<std::int64_t>(per_sample * movable)),
                              .weights = weights_,
                              .end_at_best = last_level};
              Totals totals = share_of_block();
              const Trail trail = walk(state_, regions[b], task, params_, totals, deadline_.token());
              done[b] = {trail.proposals, trail.accepted};
            },
        .give =
            [&](std::size_t b, std::vector<std::byte>& out) {
              put(out, done[b]);
              state_.give(regions[b].row_shards, out);
            },
        .take =
            [&](std::size_t b, std::span<const std::byte> bytes) {
              ByteReader reader(bytes);
              done[b] = reader.get<Done>();
              state_.take(reader);
            }};
    // Waking a thread takes about as long as a thousand proposals.
    SerialExecutor serial;
    const bool short_round = per_sample * static_cast<double>(problem_.movable.size()) < kWorthThreads;
    Executor& executor = short_round && executor_.alone() ? static_cast<Executor&>(serial) : executor_;
    const bool over = executor.share(regions.size(), walks, deadline_);
    totals_ = state_.totals();
    for (const Done& one : done) {
      proposals += one.proposals;
      accepted += one.accepted;
    }
    if (const Score score = state_.exact_score(); score < best_) {
      best_ = score;
      best_cells_ = state_.cells_of_items();
    }
    return over;
  }

  /// Cuts the units into blocks, each time others.
  std::vector<Region> deal(Index round) {
    if (blocks_ > 1) {
      for (std::size_t left = units_.size(); left > 1; --left) {
        const auto bits =
            philox(static_cast<std::uint64_t>(seed_), {static_cast<std::uint32_t>(left), round, 0, kDealStream});
        std::swap(units_[left - 1], units_[scaled(bits[0], static_cast<std::uint32_t>(left))]);
      }
    }
    std::vector<Region> regions(blocks_);
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const std::size_t block = u * blocks_ / units_.size();
      for (std::size_t k = 0; k < row_shards_of_unit_; ++k) {
        const auto rs = static_cast<Index>(units_[u] * row_shards_of_unit_ + k);
        regions[block].row_shards.push_back(rs);
        for (Index cell = problem_.first_cell(rs); cell < problem_.end_cell(rs); ++cell) {
          regions[block].cells.push_back(cell);
        }
      }
    }
    return regions;
  }

  /// The items of a block, in the order of all. By whoever walks it: others need not know.
  void find_movable(Region& region) const {
    for (const Index cell : region.cells) {
      for (const Index item : state_.items_in(cell)) {
        if (problem_.is_movable[item]) region.movable.push_back(item);
      }
    }
    std::ranges::sort(region.movable);
  }

  /// The totals as one of several blocks sees them: each mends its share of what the shards differ by. If all mended
  /// all of it, shards would swing.
  [[nodiscard]] Totals share_of_block() const {
    Totals totals = totals_;
    if (problem_.instance.sync == Sync::Row || problem_.shards == 1 || blocks_ == 1) return totals;
    const std::int64_t mean = totals.score.total / static_cast<std::int64_t>(problem_.shards);
    for (std::int64_t& total : totals.shard_totals) total = mean + (total - mean) / static_cast<std::int64_t>(blocks_);
    totals.score.primary = std::ranges::max(totals.shard_totals);
    return totals;
  }

  void report(double temperature, std::int64_t proposals, std::int64_t accepted) {
    found_.proposals += proposals;
    found_.accepted += accepted;
    ++found_.levels;
    if (!observer_) return;
    observer_({.level = found_.levels,
               .levels = params_.levels,
               .temperature = temperature,
               .acceptance = proposals == 0 ? 0.0 : static_cast<double>(accepted) / static_cast<double>(proposals),
               .best = best_.max_shard,
               .gap = gap_to(best_.max_shard, bound_),
               .proposals = found_.proposals});
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
  State state_;
  Totals totals_;
  Score best_;
  std::vector<Index> best_cells_;
  std::vector<Index> units_;  // row-shards, or rows
  std::size_t row_shards_of_unit_ = 1;
  std::size_t blocks_ = 1;
  Found found_;
};

}  // namespace

Found anneal_in_blocks(const Problem& problem, const Arrangement& start, const SearchParams& params, std::int64_t seed,
                       double bound, Executor& executor, const Deadline& deadline, const LevelObserver& observer) {
  return BlockAnnealing(problem, start, params, seed, bound, executor, deadline, observer).run();
}

}  // namespace routepack::search
