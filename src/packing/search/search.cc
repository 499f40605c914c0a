// SPDX-License-Identifier: Apache-2.0
#include "packing/search/search.h"

#include <algorithm>
#include <vector>

#include "packing/search/blocks.h"

namespace routepack::search {

SeedBudget seed_budget(const SearchParams& params) {
  SeedBudget budget;
  budget.candidates = static_cast<std::size_t>(params.seeds);
  budget.population = static_cast<std::size_t>(params.population);
  budget.choice = static_cast<std::size_t>(params.choice_width);
  budget.price_of_gap = params.diversity;
  // The paper fills the fullest cell that fits, gives up a trial without room and leaves shards as they come.
  if (!params.paper_energy) budget.fit_rule = FitRule::Emptiest;
  budget.exchange_when_full = !params.paper_energy;
  budget.settle_shards = !params.paper_energy;
  return budget;
}

namespace {

LevelObserver teller(Observer* observer) {
  return [observer](const SearchProgress& progress) {
    if (observer != nullptr) observer->level_ends(progress);
  };
}

}  // namespace

Found find_layout(const Problem& problem, const Seeds& seeds, const SearchParams& params, std::int64_t seed,
                  double bound, Executor& executor, const Deadline& deadline, Observer* observer) {
  const LevelObserver tell = teller(observer);
  if (params.block_rows > 0) {
    return anneal_in_blocks(problem, seeds.distinct.front().arrangement, params, seed, bound, executor, deadline, tell);
  }
  std::vector<Arrangement> population;
  for (const std::size_t member : seeds.population) population.push_back(seeds.distinct[member].arrangement);
  return anneal(problem, population, params, seed, bound, executor, deadline, tell);
}

Found improve_layout(const Problem& problem, const Arrangement& start, const SearchParams& params, std::int64_t seed,
                     double bound, Executor& executor, const Deadline& deadline, Observer* observer) {
  SearchParams shorter = params;
  shorter.hot = std::max(params.cold, params.hot * params.repack_hot);
  const double proposals = static_cast<double>(params.proposals_per_sample) * params.repack_share;
  shorter.proposals_per_sample = std::max<std::int64_t>(1, static_cast<std::int64_t>(proposals));
  shorter.block_rows = std::max<std::int64_t>(1, params.block_rows);
  return anneal_in_blocks(problem, start, shorter, seed, bound, executor, deadline, teller(observer));
}

SearchReport report(const Seeds& seeds, const Found& found) {
  SearchReport report;
  report.ending = found.ending;
  report.seed = seeds.distinct.front().score.max_shard;
  report.seeds = static_cast<std::int64_t>(seeds.found);
  report.failed_seeds = static_cast<std::int64_t>(seeds.no_room + seeds.over_rank_limit);
  report.levels = found.levels;
  report.proposals = found.proposals;
  report.accepted = found.accepted;
  return report;
}

}  // namespace routepack::search
