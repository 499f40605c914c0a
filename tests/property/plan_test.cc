// SPDX-License-Identifier: Apache-2.0
// Laws of the whole pipeline: what it returns is feasible, and where it gives up there is nothing to find.
#include "routepack/plan.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "routepack/plan_file.h"
#include "routepack/verify.h"
#include "support/problems.h"
#include "support/property.h"

namespace routepack::testing {
namespace {

/// Puts random constraints on a problem; any mixture, also ones that exclude each other. Atomic groups and dummies are
/// drawn too. max_rank_tokens only when asked for.
void add_constraints(Problem& problem, std::mt19937_64& random, bool rank_tokens) {
  const auto one_in = [&](std::int32_t n) { return below(random, n) == 0; };
  Constraints& limits = problem.constraints;
  if (one_in(4)) limits.min_rows = 1 + below(random, 3);
  if (one_in(4)) limits.row_multiple = 1 + below(random, 3);
  if (one_in(4)) limits.max_samples_per_cell = 1 + below(random, 4);
  if (one_in(3)) {
    limits.equal_count = true;
    limits.add_dummies = one_in(2);
  }
  if (one_in(5)) problem.pipeline_stages = 1 + below(random, 2);
  if (one_in(3)) {
    for (std::int32_t i = 0; i < problem.samples(); ++i) problem.spec.atomic.push_back(below(random, 4) - 2);
    for (std::int32_t& group : problem.spec.atomic) group = std::max(group, -1);
  }
  if (one_in(4)) {
    // A lower cap: the longest samples may be over it.
    limits.oversized = one_in(2) ? Oversized::OwnCell : Oversized::Error;
    problem.capacity = std::max<std::int64_t>(limits.cell_multiple, problem.capacity * (1 + below(random, 9)) / 9);
  }
  if (rank_tokens) {
    std::int64_t routed = 0;
    for (const std::uint32_t count : problem.spec.counts) routed += count;
    limits.max_rank_tokens = 1 + below(random, static_cast<std::int32_t>(1 + routed / problem.spec.layers));
  }
}

PlanParams draw_params() {
  PlanParams params;
  params.placement = draw(0, 1) == 0 ? PlacementMode::Lpt : PlacementMode::Keep;
  params.row_order = draw(0, 1) == 0 ? RowOrder::Pipeline : RowOrder::Keep;
  params.seed = draw(0, 1000);
  return params;
}

Cells cells_of(const Layout& layout) {
  Cells cells;
  for (const auto& row : layout.cells()) {
    cells.emplace_back();
    for (const auto& cell : row) {
      cells.back().emplace_back();
      for (const SampleId i : cell) cells.back().back().push_back(i.value());
    }
  }
  return cells;
}

bool one_line(const std::string& text) {
  return !text.empty() && text.find('\n') == std::string::npos;
}

void assert_explained(const Infeasible& outcome) {
  RC_ASSERT(one_line(outcome.reason));
  RC_ASSERT(one_line(outcome.remedy));
}

/// Everything that a plan promises, looked at twice: by `verify`, and by the rules written in the test.
void assert_sound(const Problem& problem, const Scene& scene, const PlanParams& params, const Plan& plan) {
  RC_ASSERT(plan.complete);
  RC_ASSERT(plan.dummies == dummies_wanted(problem));
  const Cells cells = cells_of(plan.layout);
  RC_ASSERT(feasible_without_routes(problem, cells, static_cast<std::int32_t>(plan.dummies)));
  RC_ASSERT(plan.rows.rows == plan.layout.rows());
  RC_ASSERT(plan.rows.lower_bound <= plan.rows.rows);
  if (params.placement == PlacementMode::Keep) {
    RC_ASSERT(maps_of(plan.placement) == identity_maps(problem.spec.layers, problem.spec.experts));
  }

  const Maps maps = maps_of(plan.placement);
  std::int64_t peak = 0;
  for (std::size_t r = 0; r < cells.size(); ++r) {
    for (std::size_t g = 0; g < problem.shards.size(); ++g) {
      for (std::int64_t l = 0; l < problem.spec.layers; ++l) {
        for (std::int32_t p = 0; p < problem.ranks; ++p) {
          peak = std::max(peak, rank_load(problem, maps, cells, r, g, l, p));
        }
      }
    }
  }
  RC_ASSERT(plan.evaluation.tail_peak == peak);
  const std::int64_t limit = problem.constraints.max_rank_tokens;
  RC_ASSERT(limit == 0 || peak <= limit);

  const Evaluation again = evaluate(scene.instance, plan.placement, plan.layout);
  RC_ASSERT(again.score == plan.evaluation.score);
  RC_ASSERT(plan.evaluation.score.max_shard * (1 + 1e-12) >= plan.bounds.fixed_placement);

  const PlanRecord record = make_record(scene.instance, params, plan);
  const Verdict verdict = verify(scene.window, record);
  if (!verdict.accepted()) RC_FAIL(verdict.violations.front().rule + ": " + verdict.violations.front().message);
  RC_ASSERT(verify(scene.window, parse_plan(to_json(record), "again")).accepted());
}

std::optional<std::int32_t> fewest_rows(const Problem& problem) {
  const std::int32_t dummies = dummies_wanted(problem);
  for (std::int32_t rows = 1; rows <= (problem.samples() + dummies) / problem.slots(); ++rows) {
    if (!for_each_layout(problem, rows, dummies, [](const Cells&) { return false; })) return rows;
  }
  return std::nullopt;
}

TEST(Plan, of_a_tiny_problem_exists_exactly_when_a_layout_does_and_its_row_bound_is_true) {
  int plans = 0;
  int refusals = 0;
  int certified = 0;
  for_all(3000, [&] {
    Problem problem = draw_problem(Shape{.max_samples = 6, .max_layers = 1, .max_slots = 2, .max_ranks = 2});
    std::mt19937_64 random(draw_seed());
    add_constraints(problem, random, false);
    const PlanParams params = draw_params();
    const Scene scene(problem);
    const auto outcome = make_plan(scene.instance, params);
    const auto fewest = fewest_rows(problem);
    if (const auto* refusal = std::get_if<Infeasible>(&outcome)) {
      assert_explained(*refusal);
      if (fewest) RC_FAIL("a layout of " + std::to_string(*fewest) + " rows exists; refused with: " + refusal->reason);
      ++refusals;
      return;
    }
    const Plan& plan = std::get<Plan>(outcome);
    assert_sound(problem, scene, params, plan);
    RC_ASSERT(fewest.has_value());
    RC_ASSERT(plan.rows.lower_bound <= *fewest);
    if (plan.rows.certified()) RC_ASSERT(plan.rows.rows == *fewest);
    certified += plan.rows.certified() ? 1 : 0;
    ++plans;
  });
  EXPECT_GT(plans, 200);
  EXPECT_GT(refusals, 20);
  EXPECT_GT(certified, 100);
}

TEST(Plan, with_a_cap_on_rank_tokens_keeps_it_or_explains_itself) {
  int plans = 0;
  for_all(1500, [&] {
    Problem problem = draw_problem(Shape{.max_samples = 12});
    std::mt19937_64 random(draw_seed());
    add_constraints(problem, random, true);
    const PlanParams params = draw_params();
    const Scene scene(problem);
    const auto outcome = make_plan(scene.instance, params);
    if (const auto* refusal = std::get_if<Infeasible>(&outcome)) {
      assert_explained(*refusal);
      return;
    }
    assert_sound(problem, scene, params, std::get<Plan>(outcome));
    ++plans;
  });
  EXPECT_GT(plans, 30);
}

TEST(Plan, of_a_larger_problem_is_accepted_or_explains_itself) {
  int plans = 0;
  for_all(200, [&] {
    Problem problem = draw_problem(Shape{.min_samples = 8, .max_samples = 60, .max_slots = 6});
    std::mt19937_64 random(draw_seed());
    add_constraints(problem, random, false);
    const PlanParams params = draw_params();
    const Scene scene(problem);
    const auto outcome = make_plan(scene.instance, params);
    if (const auto* refusal = std::get_if<Infeasible>(&outcome)) {
      assert_explained(*refusal);
      return;
    }
    assert_sound(problem, scene, params, std::get<Plan>(outcome));
    ++plans;
  });
  EXPECT_GT(plans, 80);
}

TEST(Plan, takes_one_row_when_every_cell_could_hold_the_window) {
  for_all(1500, [] {
    Problem problem = draw_problem(Shape{.min_samples = 1, .max_samples = 60, .max_slots = 6});
    std::vector<std::int32_t> everything(static_cast<std::size_t>(problem.samples()));
    std::iota(everything.begin(), everything.end(), 0);
    problem.capacity = aligned_tokens(problem, everything);
    const PlanParams params = draw_params();
    const Scene scene(problem);
    const auto outcome = make_plan(scene.instance, params);
    if (const auto* refusal = std::get_if<Infeasible>(&outcome)) RC_FAIL("refused with: " + refusal->reason);
    assert_sound(problem, scene, params, std::get<Plan>(outcome));
    RC_ASSERT(std::get<Plan>(outcome).rows.rows == 1);
    RC_ASSERT(std::get<Plan>(outcome).rows.certified());
  });
}

TEST(Plan, is_the_same_for_the_same_seed_on_any_number_of_threads) {
  for_all(100, [] {
    Problem problem = draw_problem(Shape{.min_samples = 4, .max_samples = 40, .max_slots = 6});
    std::mt19937_64 random(draw_seed());
    add_constraints(problem, random, below(random, 3) == 0);
    PlanParams params = draw_params();
    params.threads = 1;
    const Scene scene(problem);
    const auto hash_of_a_run = [&]() -> std::string {
      const auto outcome = make_plan(scene.instance, params);
      if (const auto* refusal = std::get_if<Infeasible>(&outcome)) return refusal->reason + refusal->remedy;
      return plan_hash(to_json(make_record(scene.instance, params, std::get<Plan>(outcome))));
    };
    const std::string first = hash_of_a_run();
    RC_ASSERT(hash_of_a_run() == first);
    params.threads = 3;
    RC_ASSERT(hash_of_a_run() == first);
  });
}

TEST(Plan, never_takes_more_rows_than_first_fit) {
  int tight = 0;
  for_all(1500, [&] {
    Problem problem = draw_problem(Shape{.min_samples = 4, .max_samples = 40, .max_slots = 6});
    // Tight caps, where fits differ: little more than the tokens of one to three rows.
    std::int64_t tokens = 0;
    std::int64_t longest = 0;
    for (std::int32_t i = 0; i < problem.samples(); ++i) {
      tokens += problem.length(i);
      longest = std::max(longest, aligned_tokens(problem, {i}));
    }
    problem.capacity = std::max(longest, tokens / (problem.slots() * draw(1, 3)) + draw(0, 3));
    const Scene scene(problem);
    const auto yardstick = pack_first_fit_decreasing(scene.instance);
    if (!std::holds_alternative<Layout>(yardstick)) return;
    const auto outcome = make_plan(scene.instance, draw_params());
    RC_ASSERT(std::holds_alternative<Plan>(outcome));
    RC_ASSERT(std::get<Plan>(outcome).rows.rows <= std::get<Layout>(yardstick).rows());
    ++tight;
  });
  EXPECT_GT(tight, 100);
}

TEST(FirstFit, gives_a_feasible_layout_or_says_why_not) {
  int layouts = 0;
  for_all(200, [&] {
    const Problem problem = draw_problem(Shape{.max_samples = 40});
    const Scene scene(problem);
    const auto outcome = pack_first_fit_decreasing(scene.instance);
    if (const auto* refusal = std::get_if<Infeasible>(&outcome)) {
      assert_explained(*refusal);
      return;
    }
    RC_ASSERT(feasible_without_routes(problem, cells_of(std::get<Layout>(outcome)), 0));
    ++layouts;
  });
  EXPECT_GT(layouts, 100);
}

}  // namespace
}  // namespace routepack::testing
