// SPDX-License-Identifier: Apache-2.0
#include "packing/search/chain.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "core/assert.h"
#include "packing/search/proposal.h"

namespace routepack::search {
namespace {

constexpr std::int64_t kAhead = 8;          // steps whose operands are on their way
constexpr std::int64_t kBetweenAsks = 256;  // steps between two looks at the stop token

bool better(const FixedScore& x, const FixedScore& y) {
  return std::pair(x.primary, x.total) < std::pair(y.primary, y.total);
}

#ifdef ROUTEPACK_HEAVY_ASSERTS
/// What a move touched, priced from scratch; now and then everything, where no other walk is under way.
bool agrees(const State& state, const Move& move, Index from, std::int64_t accepted, bool alone) {
  constexpr std::int64_t kBetweenAll = 1024;
  const auto& row_shard_of = state.problem().row_shard_of;
  return state.agrees_with_scratch(row_shard_of[from]) && state.agrees_with_scratch(row_shard_of[move.to]) &&
         (!alone || accepted % kBetweenAll != 0 || state.agrees_with_scratch());
}
#endif

/// Takes back the steps after the best state.
void return_to_best(State& state, Trail& trail, bool exact, Totals& totals) {
  while (trail.steps.size() > trail.best_length) {
    const Step& step = trail.steps.back();
    const Move back{.item = step.move.item, .partner = step.move.partner, .to = step.from};
    State::Outcome outcome;
    const bool fits = state.price(back, exact, totals, outcome);
    ROUTEPACK_ASSERT(fits, "a step cannot be taken back");
    state.apply(back, outcome, totals);
    trail.steps.pop_back();
  }
}

}  // namespace

Region whole(const Problem& problem) {
  Region region{.movable = problem.movable,
                .cells = std::vector<Index>(problem.cells()),
                .row_shards = std::vector<Index>(problem.row_shards())};
  std::iota(region.cells.begin(), region.cells.end(), Index{0});
  std::iota(region.row_shards.begin(), region.row_shards.end(), Index{0});
  return region;
}

std::vector<Index> Trail::best_cells(std::vector<Index> start) const {
  for (std::size_t at = 0; at < best_length; ++at) {
    const Move& move = steps[at].move;
    if (move.partner != Move::kNobody) start[move.partner] = start[move.item];
    start[move.item] = move.to;
  }
  return start;
}

Trail walk(State& state, const Region& region, const Task& task, const SearchParams& params, Totals& totals,
           const std::stop_token& stop) {
  Trail trail;
  trail.best = totals.score;
  const bool all = region.cells.size() == state.problem().cells();
  if (region.movable.size() < 2) {
    if (all) trail.best_exact = state.exact_score();
    return trail;
  }
  const Proposer proposer(state.problem(), region, params, task);
  // The third component needs exact scores; without it an estimate decides, and what is accepted is priced exactly.
  const bool exact = task.weights.worst > 0.0;
  const double floor = state.problem().fixed_scale;  // an energy of 1
  double energy = task.weights(totals.score);
  double allowance = task.temperature * std::max(energy, floor);
  bool at_best = true;
  bool stopped = false;

  std::array<Bits, kAhead> ahead;
  for (std::int64_t step = 0; step < kAhead; ++step) {
    ahead[static_cast<std::size_t>(step)] = proposer.bits(step);
    proposer.prefetch(ahead[static_cast<std::size_t>(step)]);
  }
  for (std::int64_t step = 0; step < task.steps; ++step) {
    if (step % kBetweenAsks == 0 && stop.stop_requested()) {
      stopped = true;
      break;
    }
    Bits& slot = ahead[static_cast<std::size_t>(step % kAhead)];
    const Bits bits = std::exchange(slot, proposer.bits(step + kAhead));
    proposer.prefetch(slot);

    Move move;
    State::Outcome outcome;
    if (!proposer.draw(state, bits, move) || !state.fits(move)) continue;
    ++trail.proposals;
    // u < exp(−Δ/T), with the logarithm on the other side.
    const double tolerated = allowance * Proposer::exponential(bits);
    if (!exact && state.energy_change(task.weights, move, state.estimate(move, totals), totals) >= tolerated) continue;
    if (!state.price(move, exact, totals, outcome)) continue;
    const double after = task.weights(outcome.score);
    if (exact && !(outcome.score < totals.score) && after - energy >= tolerated) continue;

    const bool improves = better(outcome.score, trail.best);
    if (all && at_best && !improves) trail.best_exact = state.exact_score();
    at_best = improves;
    const Index from = state.cell_of(move.item);
    trail.steps.push_back({move, from});
    state.apply(move, outcome, totals);
    ++trail.accepted;
    ROUTEPACK_HEAVY_ASSERT(agrees(state, move, from, trail.accepted, all),
                           "an incremental quantity differs from its value from scratch");
    if (improves) {
      trail.best = totals.score;
      trail.best_length = trail.steps.size();
    }
    energy = after;
    allowance = task.temperature * std::max(energy, floor);
  }
  if (all && at_best) trail.best_exact = state.exact_score();
  if (task.end_at_best || stopped) return_to_best(state, trail, exact, totals);
  return trail;
}

}  // namespace routepack::search
