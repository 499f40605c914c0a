// SPDX-License-Identifier: Apache-2.0
// Laws of seeds: each is a layout that keeps every rule, with its exact score, whatever runs the trials.
#include "packing/seeding/seeds.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <stop_token>
#include <vector>

#include "exec/executor.h"
#include "exec/thread_pool.h"
#include "packing/fill_rows.h"
#include "packing/seeding/canonical.h"
#include "packing/seeding/construct.h"
#include "routepack/score.h"
#include "support/packing.h"
#include "support/property.h"

namespace routepack::testing {
namespace {

/// Any mixture of constraints; most problems still have layouts.
Problem draw_constrained_problem(const Shape& shape) {
  Problem problem = draw_problem(shape);
  std::mt19937_64 random(draw_seed());
  const auto one_in = [&](std::int32_t n) { return below(random, n) == 0; };
  Constraints& limits = problem.constraints;
  if (one_in(4)) limits.min_rows = 1 + below(random, 3);
  if (one_in(4)) limits.row_multiple = 1 + below(random, 3);
  if (one_in(4)) limits.max_samples_per_cell = 1 + below(random, 4);
  if (one_in(3)) limits.equal_count = limits.add_dummies = true;
  if (one_in(3)) {
    for (std::int32_t i = 0; i < problem.samples(); ++i) {
      problem.spec.atomic.push_back(std::max(below(random, 12) - 8, -1));
    }
  }
  if (one_in(4)) {
    limits.oversized = Oversized::OwnCell;
    problem.capacity = std::max<std::int64_t>(limits.cell_multiple, problem.capacity * (3 + below(random, 6)) / 9);
  }
  return problem;
}

SeedBudget draw_budget() {
  SeedBudget budget;
  budget.candidates = static_cast<std::size_t>(draw(1, 12));
  budget.population = static_cast<std::size_t>(draw(1, 8));
  budget.choice = static_cast<std::size_t>(draw(1, 5));
  budget.pair_key = draw(0, 1) == 0 ? PairKey::Peaks : PairKey::Joint;
  budget.fit_rule = draw(0, 1) == 0 ? FitRule::Fullest : FitRule::Emptiest;
  budget.exchange_when_full = draw(0, 1) == 0;
  budget.settle_shards = draw(0, 1) == 0;
  return budget;
}

Seeds seeds_of(const Prepared& prepared, const Instance& instance, const SeedBudget& budget, std::uint64_t seed,
               Executor& executor, const std::stop_token& stop = {}) {
  return diverse_seeds(instance, *prepared.loads, prepared.pad_rates, prepared.items, prepared.fitted, budget, seed,
                       executor, stop);
}

std::size_t cells_with_quarantined_items(const Items& items, std::span<const Cell> cells) {
  return static_cast<std::size_t>(std::ranges::count_if(cells, [&](const Cell& cell) {
    return std::ranges::any_of(cell.items, [&](std::size_t index) { return items.items[index].without_routes; });
  }));
}

void assert_sound(const Problem& problem, const Prepared& prepared, const Seed& seed) {
  const Instance& instance = prepared.scene.instance;
  const Layout layout = to_layout(instance, prepared.items, seed.arrangement);
  const Cells cells = cells_of(layout);
  RC_ASSERT(seed.arrangement.rows == prepared.fitted.rows);
  RC_ASSERT(feasible_without_routes(problem, cells, static_cast<std::int32_t>(prepared.items.dummies)));
  const Evaluation evaluation = evaluate(instance, prepared.placement, layout);
  RC_ASSERT(evaluation.score == seed.score);
  const std::int64_t limit = problem.constraints.max_rank_tokens;
  RC_ASSERT(limit == 0 || evaluation.tail_peak <= limit);

  // Cells know what they hold.
  for (const Cell& cell : seed.arrangement.cells) {
    CellTotals totals;
    std::int64_t samples = 0;
    for (const std::size_t index : cell.items) {
      const Item& item = prepared.items.items[index];
      totals.tokens += item.totals.tokens;
      totals.squares += item.totals.squares;
      totals.aligned += item.totals.aligned;
      samples += item.count;
      RC_ASSERT(!item.oversized || (cell.closed && cell.items.size() == 1));
    }
    RC_ASSERT(totals.tokens == cell.totals.tokens && totals.squares == cell.totals.squares);
    RC_ASSERT(totals.aligned == cell.totals.aligned && samples == cell.samples);
  }
  // Samples without routes do not spread.
  if (!std::ranges::all_of(prepared.items.items, &Item::without_routes)) {
    RC_ASSERT(cells_with_quarantined_items(prepared.items, seed.arrangement.cells) <=
              cells_with_quarantined_items(prepared.items, prepared.fitted.cells));
  }
}

TEST(Seeds, keep_every_rule_and_know_their_exact_score) {
  int problems = 0;
  int several = 0;
  int equal = 0;
  for_all(1500, [&] {
    const Problem problem = draw_constrained_problem(Shape{.max_samples = 40, .max_slots = 6});
    std::mt19937_64 random(draw_seed());
    const Prepared prepared(problem, random_maps(random, problem.spec.layers, problem.spec.experts));
    if (!prepared.refusal.empty()) return;
    const SeedBudget budget = draw_budget();
    SerialExecutor executor;
    const Seeds seeds = seeds_of(prepared, prepared.scene.instance, budget, draw_seed(), executor);

    RC_ASSERT(seeds.population.size() == budget.population);
    RC_ASSERT(seeds.distinct.size() == std::min(budget.population, seeds.found));
    RC_ASSERT(seeds.population.front() == 0U);
    RC_ASSERT(seeds.not_tried == 0U);
    const std::size_t tried = budget.candidates < 2 ? 1 : budget.candidates + 2;
    RC_ASSERT(seeds.found + seeds.repeated + seeds.no_room + seeds.over_rank_limit == tried);
    std::set<std::uint64_t> forms;
    for (const Seed& seed : seeds.distinct) {
      assert_sound(problem, prepared, seed);
      RC_ASSERT(!(seed.score < seeds.distinct.front().score));
      forms.insert(seed.signature);
    }
    RC_ASSERT(forms.size() == seeds.distinct.size());
    ++problems;
    several += seeds.distinct.size() > 1 ? 1 : 0;
    equal += problem.constraints.equal_count && seeds.found > 2 ? 1 : 0;
  });
  EXPECT_GT(problems, 300);
  EXPECT_GT(several, 150);
  EXPECT_GT(equal, 30);
}

TEST(Seeds, keep_a_cap_on_rank_tokens_and_count_the_trials_that_could_not) {
  int problems = 0;
  std::size_t given_up = 0;
  for_all(600, [&] {
    Problem problem = draw_constrained_problem(Shape{.min_samples = 4, .max_samples = 30, .max_slots = 4});
    const Prepared prepared(problem);
    if (!prepared.refusal.empty()) return;
    // As tight as the filled rows just bear.
    const std::int64_t peak =
        coolest_peak(prepared.scene.instance, *prepared.loads, prepared.pad_rates, prepared.fitted);
    if (peak == 0) return;
    problem.constraints.max_rank_tokens = peak;
    const Prepared capped(problem);
    SerialExecutor executor;
    const Seeds seeds = seeds_of(capped, capped.scene.instance, draw_budget(), draw_seed(), executor);
    for (const Seed& seed : seeds.distinct) assert_sound(problem, capped, seed);
    given_up += seeds.over_rank_limit;
    ++problems;
  });
  EXPECT_GT(problems, 100);
  EXPECT_GT(given_up, 100U);
}

TEST(Seeds, never_lose_to_the_filled_fit) {
  for_all(300, [] {
    const Problem problem = draw_constrained_problem(Shape{.max_samples = 40, .max_slots = 6});
    const Prepared prepared(problem);
    if (!prepared.refusal.empty()) return;
    SerialExecutor executor;
    SeedBudget only_the_fit = draw_budget();
    only_the_fit.candidates = 1;
    const Seeds one = seeds_of(prepared, prepared.scene.instance, only_the_fit, 0, executor);
    const Seeds many = seeds_of(prepared, prepared.scene.instance, draw_budget(), draw_seed(), executor);
    RC_ASSERT(one.distinct.size() == 1U);
    RC_ASSERT(!(one.distinct.front().score < many.distinct.front().score));
  });
}

bool same(const Seeds& a, const Seeds& b) {
  const auto same_seed = [](const Seed& x, const Seed& y) {
    return x.signature == y.signature && x.score == y.score &&
           std::ranges::equal(x.arrangement.cells, y.arrangement.cells, {}, &Cell::items, &Cell::items);
  };
  return std::ranges::equal(a.distinct, b.distinct, same_seed) && a.population == b.population && a.found == b.found &&
         a.repeated == b.repeated && a.no_room == b.no_room && a.over_rank_limit == b.over_rank_limit;
}

TEST(Seeds, are_the_same_on_any_number_of_threads_and_for_the_same_seed_only) {
  ThreadPool one(1);
  ThreadPool two(2);
  ThreadPool three(3);
  int differ = 0;
  for_all(150, [&] {
    const Problem problem = draw_constrained_problem(Shape{.min_samples = 8, .max_samples = 40, .max_slots = 6});
    const Prepared prepared(problem);
    if (!prepared.refusal.empty()) return;
    const SeedBudget budget = draw_budget();
    const std::uint64_t seed = draw_seed();
    SerialExecutor serial;
    const Seeds expected = seeds_of(prepared, prepared.scene.instance, budget, seed, serial);
    for (Executor* executor : std::vector<Executor*>{&one, &two, &three}) {
      RC_ASSERT(same(expected, seeds_of(prepared, prepared.scene.instance, budget, seed, *executor)));
    }
    differ += same(expected, seeds_of(prepared, prepared.scene.instance, budget, seed + 1, serial)) ? 0 : 1;
  });
  EXPECT_GT(differ, 30);
}

TEST(Seeds, of_a_stopped_plan_are_the_filled_fit) {
  std::stop_source source;
  source.request_stop();
  int cut = 0;
  for_all(100, [&] {
    const Problem problem = draw_constrained_problem(Shape{.min_samples = 8, .max_samples = 40, .max_slots = 6});
    const Prepared prepared(problem);
    if (!prepared.refusal.empty()) return;
    SeedBudget budget = draw_budget();
    budget.candidates = 10;
    SerialExecutor executor;
    const Seeds seeds = seeds_of(prepared, prepared.scene.instance, budget, draw_seed(), executor, source.get_token());
    RC_ASSERT(seeds.distinct.size() == 1U);
    RC_ASSERT(seeds.not_tried == 11U);
    RC_ASSERT(seeds.population == std::vector<std::size_t>(budget.population, 0));
    assert_sound(problem, prepared, seeds.distinct.front());
    ++cut;
  });
  EXPECT_GT(cut, 20);
}

/// Permutes everything that a canonical form is blind to.
Arrangement permuted(const Instance& instance, Arrangement arrangement, std::mt19937_64& random) {
  const auto slots = static_cast<std::size_t>(instance.topology.slots());
  for (Cell& cell : arrangement.cells) std::shuffle(cell.items.begin(), cell.items.end(), random);
  std::vector<std::size_t> rows;
  for (std::size_t r = 0; r < static_cast<std::size_t>(arrangement.rows); ++r) {
    rows.push_back(r);
    if (instance.constraints.equal_count) continue;
    for (const ShardId g : instance.topology.shard_ids()) {
      const auto own = instance.topology.slots_of(g);
      for (std::size_t n = own.size(); n > 1; --n) {
        std::swap(
            arrangement.cells[r * slots + own[n - 1]],
            arrangement.cells[r * slots + own[static_cast<std::size_t>(below(random, static_cast<std::int32_t>(n)))]]);
      }
    }
  }
  std::shuffle(rows.begin(), rows.end(), random);
  return with_rows_in(std::move(arrangement), rows);
}

TEST(CanonicalForm, is_blind_to_the_permutations_it_claims_and_sees_others) {
  int moved = 0;
  for_all(500, [&] {
    const Problem problem = draw_constrained_problem(Shape{.min_samples = 4, .max_samples = 40, .max_slots = 6});
    const Prepared prepared(problem);
    if (!prepared.refusal.empty()) return;
    const Instance& instance = prepared.scene.instance;
    SerialExecutor executor;
    const Seeds seeds = seeds_of(prepared, instance, draw_budget(), draw_seed(), executor);
    std::mt19937_64 random(draw_seed());
    const Seed& seed = seeds.distinct.back();
    const Canonical again = canonicalize(instance, prepared.items, permuted(instance, seed.arrangement, random));
    RC_ASSERT(again.signature == seed.signature);
    RC_ASSERT(to_layout(instance, prepared.items, again.arrangement) ==
              to_layout(instance, prepared.items, seed.arrangement));
    RC_ASSERT(evaluate(instance, prepared.placement, to_layout(instance, prepared.items, again.arrangement)).score ==
              seed.score);

    // An item that changes its cell changes the form.
    Arrangement other = seed.arrangement;
    const auto donor = std::ranges::find_if(other.cells, [](const Cell& cell) { return cell.items.size() > 1; });
    if (donor == other.cells.end() || other.cells.size() < 2) return;
    Cell& taker = donor == other.cells.begin() ? other.cells.back() : other.cells.front();
    taker.items.push_back(donor->items.back());
    donor->items.pop_back();
    RC_ASSERT(canonicalize(instance, prepared.items, std::move(other)).signature != seed.signature);
    ++moved;
  });
  EXPECT_GT(moved, 50);
}

}  // namespace
}  // namespace routepack::testing
