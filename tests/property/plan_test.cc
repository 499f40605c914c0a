// SPDX-License-Identifier: Apache-2.0
// Laws of the whole pipeline: what it returns is feasible, and where it gives up there is nothing to find.
#include "routepack/plan.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "routepack/moves.h"
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

constexpr std::int64_t kExpertBytes = 3;

/// The ways of an effort at little cost.
SearchParams cheap(Effort effort) {
  SearchParams search = search_of(effort);
  search.seeds = draw(1, 6);
  search.population = std::min<std::int64_t>(search.population, draw(1, 3));
  if (search.block_rows > 0) search.block_rows = draw(1, 3);
  search.rounds = draw(1, 2);
  search.levels = draw(1, 4);
  search.proposals_per_sample = draw(1, 40);
  search.refinements = std::min<std::int64_t>(search.refinements, draw(1, 2));
  if (draw(0, 2) == 0) search.guided_share = draw(0, 10) / 10.0;
  if (draw(0, 2) == 0) search.near_share = draw(0, 10) / 10.0;
  if (draw(0, 3) == 0) search.paper_energy = draw(0, 1) == 0;
  if (draw(0, 3) == 0) search.repack_share = draw(0, 4) / 4.0;
  if (draw(0, 3) == 0) search.kicks = draw(0, 3);
  search.refine_steps = draw(0, 1) == 0 ? draw(1, 2000) : 1 << 20;
  return search;
}

std::string draw_moves() {
  std::string moves;
  const auto add = [&](const std::string& value) { moves += (moves.empty() ? "" : " ") + value; };
  if (draw(0, 2) == 0) add("free");
  if (draw(0, 2) == 0) add("0." + std::to_string(draw(0, 9)));
  if (draw(0, 2) == 0) add(std::to_string(draw(0, 16)) + "B");
  if (draw(0, 2) == 0) add("price:0." + std::to_string(draw(0, 9)) + ",1." + std::to_string(draw(0, 9)));
  return moves;
}

PlanParams draw_params(const Problem& problem) {
  PlanParams params;
  params.placement = choices(PlacementMode{})[static_cast<std::size_t>(draw(0, 3))].value;
  params.effort = choices(Effort{})[static_cast<std::size_t>(draw(0, 3))].value;
  params.search = cheap(params.effort);
  params.sticky_eps = draw(0, 20) / 100.0;
  params.moves = draw_moves();
  params.expert_bytes = kExpertBytes;
  params.ranks_per_node =
      problem.ranks % 2 == 0 ? std::array{0, 1, 2, problem.ranks}[static_cast<std::size_t>(draw(0, 3))] : draw(0, 1);
  params.two_batches = draw(0, 3) == 0;
  params.row_order = draw(0, 1) == 0 ? RowOrder::Pipeline : RowOrder::Keep;
  params.threads = draw(1, 2);
  params.seed = draw(0, 1000);
  return params;
}

MoveBudget budget_of(const PlanParams& params) {
  MoveBudget budget;
  std::istringstream values(params.moves);
  for (std::string value; values >> value;) budget.add(value);
  return budget;
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

/// The map that the cycles make of `maps`: the expert in each slot of a cycle goes to the next one.
Maps cycled(Maps maps, const MoveList& moves) {
  for (const MoveCycle& cycle : moves.cycles) {
    auto& map = maps[cycle.layer];
    const auto last = map[static_cast<std::size_t>(cycle.slots.back())];
    for (std::size_t k = cycle.slots.size() - 1; k > 0; --k) {
      map[static_cast<std::size_t>(cycle.slots[k])] = map[static_cast<std::size_t>(cycle.slots[k - 1])];
    }
    map[static_cast<std::size_t>(cycle.slots.front())] = last;
  }
  return maps;
}

/// Experts on another rank than at home, and how many of them come to and leave each rank.
struct Away {
  std::int64_t experts = 0;
  std::vector<std::int64_t> in, out;
};
Away away(const Maps& home, const Maps& now, std::int32_t ranks) {
  Away result{0, std::vector<std::int64_t>(static_cast<std::size_t>(ranks)),
              std::vector<std::int64_t>(static_cast<std::size_t>(ranks))};
  for (std::size_t l = 0; l < home.size(); ++l) {
    const std::size_t per_rank = home[l].size() / static_cast<std::size_t>(ranks);
    for (std::size_t slot = 0; slot < now[l].size(); ++slot) {
      const auto at_home = static_cast<std::size_t>(std::ranges::find(home[l], now[l][slot]) - home[l].begin());
      if (at_home / per_rank == slot / per_rank) continue;
      ++result.experts;
      ++result.in[slot / per_rank];
      ++result.out[at_home / per_rank];
    }
  }
  return result;
}

/// Moves as the plan states them, and within every limit, also when both batches are counted apart.
void assert_moves(const Problem& problem, const PlanParams& params, const Plan& plan) {
  const Maps home = identity_maps(problem.spec.layers, problem.spec.experts);
  const Maps now = maps_of(plan.placement);
  const MoveList& moves = plan.placing.moves;
  RC_ASSERT(cycled(home, moves) == now);
  const Away all = away(home, now, problem.ranks);
  RC_ASSERT(plan.moves.experts == all.experts);
  RC_ASSERT(moves.ranks.size() == all.in.size());
  for (std::size_t p = 0; p < all.in.size(); ++p) {
    RC_ASSERT(moves.ranks[p].in == all.in[p] * kExpertBytes);
    RC_ASSERT(moves.ranks[p].out == all.out[p] * kExpertBytes);
  }
  RC_ASSERT(plan.placing.first_batch.has_value() == params.two_batches);
  if (params.placement != PlacementMode::Sticky && params.placement != PlacementMode::Joint) return;

  std::vector<Away> batches = {all};
  if (params.two_batches) {
    const Maps between = maps_of(*plan.placing.first_batch);
    batches = {away(home, between, problem.ranks), away(between, now, problem.ranks)};
  }
  const MoveBudget budget = budget_of(params);
  std::int64_t moved = 0;
  for (const Away& batch : batches) moved += batch.experts;
  RC_ASSERT(moved <= budget.most_experts(problem.spec.layers * problem.spec.experts));
  for (std::size_t p = 0; budget.rank_bytes && p < all.in.size(); ++p) {
    std::int64_t in = 0;
    std::int64_t out = 0;
    for (const Away& batch : batches) {
      in += batch.in[p] * kExpertBytes;
      out += batch.out[p] * kExpertBytes;
    }
    RC_ASSERT(in <= *budget.rank_bytes);
    RC_ASSERT(out <= *budget.rank_bytes);
  }
}

/// Everything that a plan promises, looked at twice: by `verify`, and by the rules written in the test.
void assert_sound(const Problem& problem, const Scene& scene, const PlanParams& params, const Plan& plan) {
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

  assert_moves(problem, params, plan);
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
    const PlanParams params = draw_params(problem);
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
    RC_ASSERT(plan.complete);
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
    const PlanParams params = draw_params(problem);
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
    const PlanParams params = draw_params(problem);
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
    const PlanParams params = draw_params(problem);
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
    PlanParams params = draw_params(problem);
    params.threads = 1;
    const Scene scene(problem);
    const auto hash_of_a_run = [&]() -> std::string {
      const auto outcome = make_plan(scene.instance, params);
      if (const auto* refusal = std::get_if<Infeasible>(&outcome)) return refusal->reason + refusal->remedy;
      return plan_hash(to_json(make_record(scene.instance, params, std::get<Plan>(outcome))));
    };
    const std::string first = hash_of_a_run();
    RC_ASSERT(hash_of_a_run() == first);
    for (const std::int64_t threads : {2, 3}) {
      params.threads = threads;
      RC_ASSERT(hash_of_a_run() == first);
    }
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
    const auto outcome = make_plan(scene.instance, draw_params(problem));
    RC_ASSERT(std::holds_alternative<Plan>(outcome));
    RC_ASSERT(std::get<Plan>(outcome).rows.rows <= std::get<Layout>(yardstick).rows());
    ++tight;
  });
  EXPECT_GT(tight, 100);
}

/// Every placement that differs by more than slots inside ranks, of a problem with one layer.
void for_each_placement(const Problem& problem, const std::function<void(const Maps&)>& visit) {
  const auto experts = static_cast<std::size_t>(problem.spec.experts);
  const std::size_t per_rank = experts / static_cast<std::size_t>(problem.ranks);
  Maps maps(1, std::vector<std::int32_t>(experts));
  std::iota(maps[0].begin(), maps[0].end(), 0);
  do {
    bool sorted = true;
    for (std::size_t slot = 1; slot < experts; ++slot) {
      sorted = sorted && (slot % per_rank == 0 || maps[0][slot - 1] < maps[0][slot]);
    }
    if (sorted) visit(maps);
  } while (std::ranges::next_permutation(maps[0]).found);
}

double least_over_layouts(const Problem& problem, const Scene& scene, const Placement& placement, std::int32_t rows) {
  double least = std::numeric_limits<double>::infinity();
  for_each_layout(problem, rows, 0, [&](const Cells& cells) {
    least = std::min(least, evaluate(scene.instance, placement, to_layout(cells, problem)).score.max_shard);
    return true;
  });
  return least;
}

TEST(Plan, lies_between_its_bound_and_what_trying_every_placement_and_layout_finds) {
  int plans = 0;
  int optimal = 0;
  for_all(150, [&] {
    Problem problem = draw_problem(Shape{
        .min_samples = 2, .max_samples = 5, .max_layers = 1, .max_slots = 2, .max_ranks = 3, .max_slots_per_rank = 2});
    if (draw(0, 1) == 0) problem.sync = Sync::Row;
    PlanParams params = draw_params(problem);
    params.placement = PlacementMode::Joint;
    params.moves = "free";
    params.search = search_of(Effort::Fast);
    const Scene scene(problem);
    const auto outcome = make_plan(scene.instance, params);
    if (!std::holds_alternative<Plan>(outcome)) return;
    const Plan& plan = std::get<Plan>(outcome);
    const auto rows = static_cast<std::int32_t>(plan.rows.rows);
    double least = std::numeric_limits<double>::infinity();
    for_each_placement(problem, [&](const Maps& maps) {
      least = std::min(least, least_over_layouts(problem, scene, to_placement(maps, problem.ranks), rows));
    });
    const double here = least_over_layouts(problem, scene, plan.placement, rows);
    const double found = plan.evaluation.score.max_shard;
    constexpr double kRounding = 1.0 + 1e-12;
    RC_ASSERT(plan.bounds.any_placement <= least * kRounding);
    RC_ASSERT(plan.bounds.fixed_placement <= here * kRounding);
    RC_ASSERT(least <= here * kRounding);
    RC_ASSERT(here <= found * kRounding);
    optimal += found <= least * kRounding ? 1 : 0;
    ++plans;
  });
  EXPECT_GT(plans, 100);
  EXPECT_GT(optimal, plans / 2);
}

/// Rows and the first component of the score, when there is a plan.
std::optional<std::pair<std::int64_t, double>> rows_and_score(const Instance& instance, PlanParams params,
                                                              PlacementMode mode) {
  params.placement = mode;
  const auto outcome = make_plan(instance, params);
  if (!std::holds_alternative<Plan>(outcome)) return std::nullopt;
  const Plan& plan = std::get<Plan>(outcome);
  return std::pair(plan.rows.rows, plan.evaluation.score.max_shard);
}

TEST(Plan, joint_is_never_worse_than_sticky_under_the_same_budget_and_seed) {
  int better = 0;
  for_all(600, [&] {
    Problem problem = draw_problem(Shape{.min_samples = 4, .max_samples = 24, .max_slots = 4});
    std::mt19937_64 random(draw_seed());
    add_constraints(problem, random, below(random, 3) == 0);
    PlanParams params = draw_params(problem);
    const Scene scene(problem);
    const auto sticky = rows_and_score(scene.instance, params, PlacementMode::Sticky);
    const auto joint = rows_and_score(scene.instance, params, PlacementMode::Joint);
    RC_ASSERT(joint.has_value() || !sticky.has_value());
    if (!sticky) return;
    RC_ASSERT(joint->first <= sticky->first);
    if (joint->first < sticky->first) return;
    RC_ASSERT(joint->second <= sticky->second * (1.0 + 1e-12));
    better += joint->second < sticky->second * (1.0 - 1e-9) ? 1 : 0;
  });
  EXPECT_GT(better, 25);
}

TEST(Plan, joint_with_free_moves_is_never_worse_than_lpt) {
  int better = 0;
  for_all(250, [&] {
    Problem problem = draw_problem(Shape{.min_samples = 4, .max_samples = 24, .max_slots = 4});
    std::mt19937_64 random(draw_seed());
    add_constraints(problem, random, below(random, 3) == 0);
    PlanParams params = draw_params(problem);
    params.moves = "free";
    params.two_batches = false;  // the first batch is sticky's
    const Scene scene(problem);
    const auto lpt = rows_and_score(scene.instance, params, PlacementMode::Lpt);
    const auto joint = rows_and_score(scene.instance, params, PlacementMode::Joint);
    RC_ASSERT(joint.has_value() || !lpt.has_value());
    if (!lpt) return;
    RC_ASSERT(joint->first <= lpt->first);
    if (joint->first < lpt->first) return;
    RC_ASSERT(joint->second <= lpt->second * (1.0 + 1e-12));
    better += joint->second < lpt->second * (1.0 - 1e-9) ? 1 : 0;
  });
  EXPECT_GT(better, 20);
}

/// Lets the deadline pass before the first phase.
struct Late : Observer {
  void phase_begins(Phase phase) override {
    if (phase == Phase::Demand) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
};

TEST(Plan, after_an_expired_deadline_is_sound_and_explains_a_refusal_all_the_same) {
  int cut = 0;
  for_all(150, [&] {
    Problem problem = draw_problem(Shape{.min_samples = 4, .max_samples = 24, .max_slots = 4});
    std::mt19937_64 random(draw_seed());
    add_constraints(problem, random, below(random, 3) == 0);
    PlanParams params = draw_params(problem);
    params.deadline_ms = 1;
    const Scene scene(problem);
    Late late;
    const auto outcome = make_plan(scene.instance, params, nullptr, {&late, {}});
    if (const auto* refusal = std::get_if<Infeasible>(&outcome)) {
      assert_explained(*refusal);
      return;
    }
    assert_sound(problem, scene, params, std::get<Plan>(outcome));
    cut += std::get<Plan>(outcome).complete ? 0 : 1;
  });
  EXPECT_GT(cut, 20);
}

TEST(Plans, of_several_windows_share_a_placement_and_are_each_sound) {
  int together = 0;
  for_all(100, [&] {
    Problem first = draw_problem(Shape{.min_samples = 4, .max_samples = 16, .max_slots = 4});
    Problem second = first;
    std::mt19937_64 random(draw_seed());
    // The same samples in the order of another step, and half of them only.
    const auto width = static_cast<std::size_t>(first.spec.layers * first.spec.experts);
    const auto half = std::max<std::size_t>(static_cast<std::size_t>(first.samples()) / 2, 1);
    second.spec.samples = static_cast<std::int64_t>(half);
    second.spec.lengths.resize(half);
    second.spec.counts.resize(half * width);
    if (!second.spec.recorded.empty())
      second.spec.recorded.resize(half * (first.spec.recorded.size() / first.spec.lengths.size()));
    const PlanParams params = draw_params(first);
    const Scene one(first);
    const Scene two(second);
    const std::vector<const Instance*> both = {&one.instance, &two.instance};
    const auto outcome = make_plans(both, params);
    if (const auto* refusal = std::get_if<Infeasible>(&outcome)) {
      assert_explained(*refusal);
      return;
    }
    const auto& plans = std::get<std::vector<Plan>>(outcome);
    RC_ASSERT(plans.size() == std::size_t{2});
    RC_ASSERT(plans[0].placement == plans[1].placement);
    assert_sound(first, one, params, plans[0]);
    assert_sound(second, two, params, plans[1]);
    ++together;
  });
  EXPECT_GT(together, 30);
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
