// SPDX-License-Identifier: Apache-2.0
#include "packing/search/temperature.h"

#include <algorithm>

#include "core/portable_math.h"
#include "packing/search/chain.h"
#include "packing/search/proposal.h"

namespace routepack::search {
namespace {

constexpr Index kProbeLevel = 0xffffffff;

/// The mean of what feasible random moves cost that do cost, relative to the energy. 0 when none does.
double typical_cost(const State& state, const SearchParams& params, std::int64_t seed) {
  const Problem& problem = state.problem();
  const Region region = whole(problem);
  if (region.movable.size() < 2) return 0.0;
  const EnergyWeights weights = energy_weights(problem, params);
  const Proposer proposer(problem, region, params, Task{.seed = seed, .level = kProbeLevel, .weights = weights});
  Totals totals = state.totals();
  double sum = 0.0;
  std::int64_t count = 0;
  for (std::int64_t step = 0; step < kProbes; ++step) {
    Move move;
    State::Outcome outcome;
    if (!proposer.draw(state, proposer.bits(step), move) || !state.fits(move)) continue;
    if (!state.price(move, false, totals, outcome)) continue;
    if (const double more = weights(outcome.score) - weights(totals.score); more > 0.0) {
      sum += more;
      ++count;
    }
  }
  if (count == 0) return 0.0;
  return sum / static_cast<double>(count) / std::max(weights(totals.score), problem.fixed_scale);
}

}  // namespace

EnergyWeights energy_weights(const Problem& problem, const SearchParams& params) {
  if (params.paper_energy) return {1.0, 1e-6, 1e-9};
  return {1.0 - params.mean_share, params.mean_share / static_cast<double>(problem.shards), 0.0};
}

std::vector<double> temperatures(const State& state, const SearchParams& params, std::int64_t seed) {
  const double unit = params.adaptive_temperatures ? typical_cost(state, params, seed) : 1.0;
  if (unit == 0.0) return {};
  const double fall = portable::log(params.cold / params.hot);
  std::vector<double> result;
  for (std::int64_t n = 0; n < params.levels; ++n) {
    const double share = params.levels == 1 ? 0.0 : static_cast<double>(n) / static_cast<double>(params.levels - 1);
    result.push_back(unit * params.hot * portable::exp(share * fall));
  }
  return result;
}

}  // namespace routepack::search
