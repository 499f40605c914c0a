// SPDX-License-Identifier: Apache-2.0
// Laws of the search: every move's price is the score from scratch, no rule is ever broken, nothing gets worse.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "exec/thread_pool.h"
#include "packing/fill_rows.h"
#include "packing/search/anneal.h"
#include "packing/search/blocks.h"
#include "packing/search/chain.h"
#include "packing/search/state.h"
#include "packing/search/temperature.h"
#include "routepack/score.h"
#include "support/packing.h"
#include "support/problems.h"
#include "support/property.h"

namespace routepack::testing {
namespace {

using search::Index;
using search::Move;
using search::State;

/// Any mixture of rules; also such that no layout exists.
void add_rules(Problem& problem, std::mt19937_64& random) {
  const auto one_in = [&](std::int32_t n) { return below(random, n) == 0; };
  Constraints& rules = problem.constraints;
  if (one_in(4)) rules.min_rows = 1 + below(random, 3);
  if (one_in(4)) rules.row_multiple = 1 + below(random, 2);
  if (one_in(4)) rules.max_samples_per_cell = 2 + below(random, 4);
  if (one_in(3)) rules.equal_count = rules.add_dummies = true;
  if (one_in(3)) {
    for (std::int32_t i = 0; i < problem.samples(); ++i)
      problem.spec.atomic.push_back(std::max(below(random, 6) - 3, -1));
  }
  if (one_in(4)) {
    rules.oversized = Oversized::OwnCell;
    problem.capacity = std::max<std::int64_t>(rules.cell_multiple, problem.capacity * (2 + below(random, 8)) / 9);
  }
  if (one_in(3)) problem.sync = Sync::Row;
}

/// A problem that has a layout, with its filled rows.
struct Start {
  explicit Start(const Problem& problem, const Maps& maps, std::optional<double> rank_slack = {})
      : prepared(problem, maps) {
    if (!prepared.refusal.empty()) return;
    arrangement = fill_rows(prepared.scene.instance, *prepared.loads, prepared.pad_rates, prepared.fitted);
    if (!arrangement || !rank_slack) return;
    // A limit that the start just keeps.
    const auto peak = evaluate(prepared.scene.instance, prepared.placement,
                               to_layout(prepared.scene.instance, prepared.items, *arrangement))
                          .tail_peak;
    prepared.scene.instance.constraints.max_rank_tokens =
        std::max<std::int64_t>(1, peak + static_cast<std::int64_t>(*rank_slack * static_cast<double>(peak)));
  }
  Prepared prepared;
  std::optional<Arrangement> arrangement;
};

Shape shape() {
  return {.min_samples = 4, .max_samples = 24, .max_layers = 4, .max_slots = 4, .max_ranks = 4};
}

/// A start with any rules, or nothing to test.
std::unique_ptr<Start> draw_start() {
  Problem problem = draw_problem(shape());
  std::mt19937_64 random(draw_seed());
  add_rules(problem, random);
  const bool limited = draw(0, 3) == 0;
  auto start = std::make_unique<Start>(problem, random_maps(random, problem.spec.layers, problem.spec.experts),
                                       limited ? std::optional(0.1 * draw(0, 3)) : std::nullopt);
  if (!start->arrangement) start.reset();
  return start;
}

Move random_move(const search::Problem& problem, const State& state, std::mt19937_64& random) {
  const auto movable = static_cast<std::int32_t>(problem.movable.size());
  Move move{.item = problem.movable[static_cast<std::size_t>(below(random, movable))]};
  if (below(random, 3) == 0) {
    move.to = static_cast<Index>(below(random, static_cast<std::int32_t>(problem.cells())));
  } else {
    move.partner = problem.movable[static_cast<std::size_t>(below(random, movable))];
    move.to = state.cell_of(move.partner);
  }
  return move;
}

TEST(SearchLaws, the_price_of_every_move_is_the_score_from_scratch_and_no_rule_breaks) {
  std::int64_t priced = 0;
  for_all(2000, [&] {
    auto start = draw_start();
    if (!start) return;
    const Instance& instance = start->prepared.scene.instance;
    const search::Problem problem(instance, start->prepared.placement, start->prepared.items, *start->prepared.loads,
                                  start->arrangement->rows);
    if (problem.movable.empty()) return;
    State state(problem, *start->arrangement);
    search::Totals totals = state.totals();
    const search::EnergyWeights weights{0.5, 0.25, 0.0};
    std::mt19937_64 random(draw_seed());
    for (int k = 0; k < 60; ++k) {
      const Move move = random_move(problem, state, random);
      if (move.to == state.cell_of(move.item) || !state.fits(move)) continue;
      State::Outcome outcome;
      const auto estimate = state.estimate(move, totals);
      State after = state;
      search::Totals after_totals = totals;
      if (!state.price(move, true, totals, outcome)) {
        RC_ASSERT(instance.constraints.max_rank_tokens > 0);
        continue;
      }
      ++priced;
      after.apply(move, outcome, after_totals);
      const Layout layout = to_layout(instance, start->prepared.items, problem.arrangement(after.cells_of_items()));
      const Evaluation evaluation = evaluate(instance, start->prepared.placement, layout);
      // Bit for bit: J of every row-shard and the score.
      RC_ASSERT(std::ranges::equal(after.joint(), evaluation.joint));
      RC_ASSERT(after.exact_score() == evaluation.score);
      RC_ASSERT(after.agrees_with_scratch());
      RC_ASSERT(after_totals.score == after.totals().score);
      RC_ASSERT(after_totals.shard_totals == after.totals().shard_totals);
      const double change = weights(outcome.score) - weights(totals.score);
      const double estimated = state.energy_change(weights, move, estimate, totals);
      const double unit = std::max(1.0, 1e-9 * weights(totals.score));
      RC_ASSERT(std::abs(change - estimated) <= unit);
      // Every rule, as the tests write them.
      if (instance.constraints.max_rank_tokens > 0) {
        RC_ASSERT(evaluation.tail_peak <= instance.constraints.max_rank_tokens);
      }
      if (below(random, 2) == 0) {
        state = std::move(after);
        totals = std::move(after_totals);
      }
    }
  });
  EXPECT_GT(priced, 20'000);
}

TEST(SearchLaws, every_layout_on_the_way_is_feasible) {
  for_all(300, [&] {
    Problem problem = draw_problem(shape());
    std::mt19937_64 random(draw_seed());
    add_rules(problem, random);
    const Start start(problem, identity_maps(problem.spec.layers, problem.spec.experts));
    if (!start.arrangement) return;
    const Instance& instance = start.prepared.scene.instance;
    const search::Problem searched(instance, start.prepared.placement, start.prepared.items, *start.prepared.loads,
                                   start.arrangement->rows);
    if (searched.movable.empty()) return;
    State state(searched, *start.arrangement);
    search::Totals totals = state.totals();
    const auto dummies = static_cast<std::int32_t>(start.prepared.items.dummies);
    for (int k = 0; k < 40; ++k) {
      const Move move = random_move(searched, state, random);
      State::Outcome outcome;
      if (move.to == state.cell_of(move.item) || !state.fits(move)) continue;
      RC_ASSERT(state.price(move, false, totals, outcome));
      state.apply(move, outcome, totals);
      const Layout layout = to_layout(instance, start.prepared.items, searched.arrangement(state.cells_of_items()));
      RC_ASSERT(feasible_without_routes(problem, cells_of(layout), dummies));
    }
  });
}

SearchParams small_search(std::int64_t proposals) {
  SearchParams params;
  params.proposals_per_sample = proposals;
  params.levels = 4;
  params.rounds = 2;
  params.block_rows = 2;
  params.relocation_share = 0.2;
  params.near_share = 0.5;
  params.tolerance = 0.0;
  return params;
}

TEST(SearchLaws, no_search_ends_worse_than_it_began_and_threads_do_not_change_it) {
  for_all(60, [&] {
    auto start = draw_start();
    if (!start) return;
    const search::Problem problem(start->prepared.scene.instance, start->prepared.placement, start->prepared.items,
                                  *start->prepared.loads, start->arrangement->rows);
    const Score before = State(problem, *start->arrangement).exact_score();
    const std::int64_t seed = draw(0, 1000);
    const std::vector<Arrangement> population(3, *start->arrangement);
    SearchParams paper = search_of(Effort::Paper);
    paper.proposals_per_sample = 60;
    paper.levels = 4;
    std::optional<search::Found> blocks;
    std::optional<search::Found> chains;
    for (const std::size_t threads : {1U, 2U, 3U}) {
      ThreadPool pool(threads);
      const auto in_blocks =
          search::anneal_in_blocks(problem, *start->arrangement, small_search(60), seed, 0.0, pool, {}, {});
      const auto as_paper = search::anneal(problem, population, paper, seed, 0.0, pool, {}, {});
      RC_ASSERT(in_blocks.score <= before);
      RC_ASSERT(as_paper.score <= before);
      const auto same = [&](const search::Found& x, const search::Found& y) {
        return x.score == y.score && x.proposals == y.proposals && x.accepted == y.accepted && x.joint == y.joint;
      };
      if (!blocks) {
        blocks = in_blocks;
        chains = as_paper;
      }
      RC_ASSERT(same(*blocks, in_blocks));
      RC_ASSERT(same(*chains, as_paper));
    }
  });
}

TEST(SearchLaws, a_stop_ends_a_search_at_its_start_or_better) {
  for_all(40, [&] {
    auto start = draw_start();
    if (!start) return;
    const search::Problem problem(start->prepared.scene.instance, start->prepared.placement, start->prepared.items,
                                  *start->prepared.loads, start->arrangement->rows);
    std::stop_source stop;
    stop.request_stop();
    SerialExecutor executor;
    const auto found = search::anneal_in_blocks(problem, *start->arrangement, small_search(1000), 1, 0.0, executor,
                                                Deadline(stop.get_token(), std::nullopt), {});
    RC_ASSERT(found.score <= State(problem, *start->arrangement).exact_score());
    RC_ASSERT(found.ending == Ending::Stopped || found.ending == Ending::NothingToMove);
  });
}

TEST(SearchLaws, a_walk_that_ends_at_its_best_ends_at_the_score_it_names) {
  for_all(60, [&] {
    auto start = draw_start();
    if (!start) return;
    const search::Problem problem(start->prepared.scene.instance, start->prepared.placement, start->prepared.items,
                                  *start->prepared.loads, start->arrangement->rows);
    State state(problem, *start->arrangement);
    const auto cells_before = state.cells_of_items();
    search::Totals totals = state.totals();
    const search::Task task{
        .seed = draw(0, 1000), .temperature = 0.05, .steps = 400, .weights = {1.0, 1e-6, 0.0}, .end_at_best = true};
    const search::Trail trail = search::walk(state, search::whole(problem), task, small_search(1), totals, {});
    RC_ASSERT(state.exact_score() == trail.best_exact);
    RC_ASSERT(trail.best_cells(cells_before) == state.cells_of_items());
    RC_ASSERT(state.agrees_with_scratch());
    RC_ASSERT(trail.best.primary == state.totals().score.primary);
  });
}

TEST(Resampling, draws_exactly_as_many_members_as_asked_for_and_each_within_one_of_its_share) {
  for_all(500, [] {
    std::vector<double> weights;
    const std::int32_t members = draw(1, 12);
    double sum = 0.0;
    for (std::int32_t j = 0; j < members; ++j) {
      weights.push_back(draw(0, 5) == 0 && j > 0 ? 0.0 : 1e-3 * draw(1, 5000));
      sum += weights.back();
    }
    const auto draws = static_cast<std::size_t>(draw(1, 20));
    const auto chosen = search::resample(weights, draws, 0.001 * draw(0, 999));
    RC_ASSERT(chosen.size() == draws);
    RC_ASSERT(std::ranges::is_sorted(chosen));
    for (std::size_t j = 0; j < weights.size(); ++j) {
      const auto times = static_cast<double>(std::ranges::count(chosen, j));
      const double share = static_cast<double>(draws) * weights[j] / sum;
      RC_ASSERT(times > share - 1.0 - 1e-9);
      RC_ASSERT(times < share + 1.0 + 1e-9);
    }
  });
}

TEST(Resampling, has_the_right_expectation) {
  const std::vector<double> weights = {0.5, 1.25, 0.0, 3.0, 0.25};
  std::vector<double> times(weights.size());
  constexpr int kRuns = 20'000;
  for (int run = 0; run < kRuns; ++run) {
    for (const std::size_t j : search::resample(weights, 4, (run + 0.5) / kRuns)) times[j] += 1.0 / kRuns;
  }
  for (std::size_t j = 0; j < weights.size(); ++j) EXPECT_NEAR(times[j], 4.0 * weights[j] / 5.0, 1e-3);
}

}  // namespace
}  // namespace routepack::testing
