// SPDX-License-Identifier: Apache-2.0
// Laws of windows in parts: wherever a window is cut and whoever has which part, the score and the plan are those of
// the undivided window.
#include "support/window_parts.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "routepack/plan.h"
#include "routepack/plan_file.h"
#include "support/problems.h"
#include "support/property.h"
#include "support/team.h"

namespace routepack::testing {
namespace {

/// A problem, where its window is cut, and which member has which part.
struct Division {
  Problem problem;
  std::vector<WindowSpec> parts;
  std::vector<std::int32_t> holder;
  std::int32_t members = 1;
  std::mt19937_64 random;
};

Instance instance_of(const Division& division, const Window& window) {
  const Problem& problem = division.problem;
  std::vector<std::vector<SlotId>> shards;
  for (const auto& shard : problem.shards) shards.emplace_back(shard.begin(), shard.end());
  return Instance(window, Topology::from_shards(problem.ranks, std::move(shards), problem.pipeline_stages),
                  problem.expert.size() == 1 ? CostModel(problem.stages, problem.expert[0])
                                             : CostModel(problem.stages, problem.expert),
                  problem.capacity, problem.constraints, problem.sync);
}

Division draw_division(std::int32_t least_samples) {
  Division division;
  division.problem = draw_problem({.min_samples = least_samples, .max_samples = 24, .max_layers = 4});
  Problem& problem = division.problem;
  division.members = draw(1, 4);
  division.random.seed(draw_seed());
  std::mt19937_64& random = division.random;
  if (below(random, 3) == 0) {
    for (std::int32_t i = 0; i < problem.samples(); ++i) {
      problem.spec.atomic.push_back(std::max(below(random, 6) - 3, -1));
    }
  }
  std::vector<std::int64_t> cuts;
  const std::int32_t every = 1 + below(random, 8);
  for (std::int32_t i = 1; i < problem.samples(); ++i) {
    if (below(random, every) == 0) cuts.push_back(i);
  }
  division.parts = cut(problem.spec, cuts);
  const bool all_with_one = below(random, 4) == 0;
  const std::int32_t one = below(random, division.members);
  for (std::size_t k = 0; k < division.parts.size(); ++k) {
    division.holder.push_back(all_with_one ? one : below(random, division.members));
  }
  return division;
}

TEST(WindowInParts, is_scored_as_the_undivided_one) {
  for_all(60, [] {
    Division division = draw_division(1);
    const Problem& problem = division.problem;
    const Placement placement =
        to_placement(random_maps(division.random, problem.spec.layers, problem.spec.experts), problem.ranks);
    const std::int32_t rows = 1 + below(division.random, problem.samples() / problem.slots());
    const Cells cells = random_cells(division.random, problem.samples(), rows, problem.slots());
    const Layout layout = to_layout(cells, problem);
    const Window whole = make_window(problem.spec);
    const Evaluation wanted = evaluate(instance_of(division, whole), placement, layout);
    const auto same = [&](const Evaluation& found) {
      return found.score == wanted.score && found.joint == wanted.joint && found.attention == wanted.attention &&
             found.expert_peak_sum == wanted.expert_peak_sum && found.tail_peak == wanted.tail_peak &&
             found.ep_efficiency == wanted.ep_efficiency;
    };
    RC_ASSERT(same(evaluate(instance_of(division, join_parts(division.parts)), placement, layout)));
    for (const bool right : in_team(division.members, [&](TeamLink& link) {
           const Window mine = join_as_member(division.parts, division.holder, link.rank());
           return same(evaluate(instance_of(division, mine), placement, layout, link));
         })) {
      RC_ASSERT(right);
    }
  });
}

/// The plan without the window that it names.
std::string plan_text(const Instance& instance, const PlanParams& params, Communicator* team) {
  try {
    const auto made = make_plan(instance, params, nullptr, {.team = team});
    if (const auto* why = std::get_if<Infeasible>(&made)) return "infeasible: " + why->reason;
    PlanRecord record = make_record(instance, params, std::get<Plan>(made));
    record.window.reset();
    return to_json(record);
  } catch (const std::exception& error) {
    return std::string("error: ") + error.what();
  }
}

TEST(WindowInParts, is_planned_as_the_undivided_one) {
  int plans = 0;
  for_all(30, [&plans] {
    Division division = draw_division(4);
    std::mt19937_64& random = division.random;
    Constraints& rules = division.problem.constraints;
    if (below(random, 3) == 0) rules.equal_count = rules.add_dummies = true;
    if (below(random, 4) == 0) rules.max_samples_per_cell = 2 + below(random, 4);
    if (below(random, 4) == 0) rules.max_rank_tokens = 20 + below(random, 100);
    if (below(random, 4) == 0) rules.row_multiple = 2;
    if (below(random, 4) == 0) rules.oversized = Oversized::OwnCell;
    PlanParams params{.effort = below(random, 2) == 0 ? Effort::Paper : Effort::Fast, .threads = 1};
    params.seed = below(random, 100);
    params.placement = choices(PlacementMode{})[static_cast<std::size_t>(below(random, 4))].value;
    if (below(random, 2) == 0 && params.placement == PlacementMode::Joint) params.moves = "free";
    SearchParams search = params.effective_search();
    search.proposals_per_sample = 20;
    search.levels = 3;
    params.search = search;

    // The same atomic groups: those that were cut are two.
    const Window joined = join_parts(division.parts);
    WindowSpec undivided = division.problem.spec;
    undivided.atomic.assign(joined.arrays().atomic.begin(), joined.arrays().atomic.end());
    const Window whole = make_window(undivided);
    const std::string wanted = plan_text(instance_of(division, whole), params, nullptr);
    plans += wanted.starts_with("infeasible") ? 0 : 1;
    RC_ASSERT(!wanted.starts_with("error"));
    RC_ASSERT(plan_text(instance_of(division, joined), params, nullptr) == wanted);
    for (const std::string& found : in_team(division.members, [&](TeamLink& link) {
           const Window mine = join_as_member(division.parts, division.holder, link.rank());
           return plan_text(instance_of(division, mine), params, &link);
         })) {
      RC_ASSERT(found == wanted);
    }
  });
  EXPECT_GE(plans, 10);
}

}  // namespace
}  // namespace routepack::testing
