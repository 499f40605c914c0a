// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "routepack/plan.h"
#include "routepack/plan_file.h"
#include "routepack/verify.h"
#include "support/builders.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::make_window;
using testing::random_window;
using testing::refusal;

Topology shards(std::int32_t ranks, std::vector<std::vector<SlotId>> slots) {
  return Topology::from_shards(ranks, std::move(slots));
}

CostModel plain_cost() {
  return CostModel({{"full", 1.0, 1.0}}, 1.0);
}

const Plan& plan_of(const std::variant<Plan, Infeasible>& result) {
  if (const auto* why = std::get_if<Infeasible>(&result)) throw InternalError(why->reason);
  return std::get<Plan>(result);
}

std::vector<double> row_joints(const Plan& plan) {
  return plan.evaluation.joint;
}

/// Notes what the planner says, and may ask it to stop when a phase begins.
struct Notes : Observer {
  std::vector<Phase> seen;
  std::vector<SearchProgress> levels;
  std::vector<Placement> placements;
  std::stop_source stop;
  std::optional<Phase> stop_at;
  void phase_begins(Phase phase) override {
    seen.push_back(phase);
    if (phase == stop_at) stop.request_stop();
  }
  void level_ends(const SearchProgress& progress) override { levels.push_back(progress); }
  void placed(const Placement& placement) override { placements.push_back(placement); }
};

/// Experts 0 and 1 of rank 0 take half of all tokens each, so one swap halves the busiest rank of every layer.
Window two_hot_neighbours(std::int32_t layers, std::int64_t samples) {
  testing::WindowSpec spec;
  spec.samples = samples;
  spec.layers = layers;
  spec.experts = 4;
  spec.lengths.assign(static_cast<std::size_t>(samples), 8);
  for (std::int64_t k = 0; k < samples * layers; ++k) spec.counts.insert(spec.counts.end(), {4, 4, 0, 0});
  return make_window(std::move(spec));
}

std::string reason_of(const std::variant<Plan, Infeasible>& result) {
  return std::get<Infeasible>(result).reason;
}

TEST(Planner, goes_through_its_phases_in_order) {
  const Window window = make_window(random_window(1, 40, 2, 4, 2, 4, 30));
  const Instance instance(window, shards(2, {{SlotId(0), SlotId(1)}}), plain_cost(), 100);
  Notes notes;
  plan_of(make_plan(instance, {}, nullptr, {&notes, {}}));
  EXPECT_THAT(notes.seen, ElementsAre(Phase::Demand, Phase::Place, Phase::Loads, Phase::Rows, Phase::Seed,
                                      Phase::Search, Phase::Refine, Phase::Check));
}

TEST(Planner, tells_the_observer_about_every_level_and_the_placement_before_packing) {
  const Window window = make_window(random_window(1, 40, 2, 4, 2, 4, 30));
  const Instance instance(window, shards(2, {{SlotId(0), SlotId(1)}}), plain_cost(), 100);
  Notes notes;
  const auto result = make_plan(instance, {.placement = PlacementMode::Lpt}, nullptr, {&notes, {}});
  EXPECT_THAT(notes.placements, ElementsAre(plan_of(result).placement));
  ASSERT_EQ(static_cast<std::int64_t>(notes.levels.size()), plan_of(result).search.levels);
  ASSERT_GT(notes.levels.size(), 1U);
  for (std::size_t n = 0; n < notes.levels.size(); ++n) {
    EXPECT_EQ(notes.levels[n].level, static_cast<std::int64_t>(n) + 1);
    EXPECT_GE(notes.levels[n].gap, 0.0);
    if (n == 0) continue;
    EXPECT_LT(notes.levels[n].temperature, notes.levels[n - 1].temperature);
    EXPECT_LE(notes.levels[n].best, notes.levels[n - 1].best);
    EXPECT_GT(notes.levels[n].proposals, notes.levels[n - 1].proposals);
  }
  EXPECT_EQ(notes.levels.back().proposals, plan_of(result).search.proposals);
}

TEST(Planner, ends_between_phases_when_asked_to_stop) {
  const Window window = make_window(random_window(1, 40, 2, 4, 2, 4, 30));
  const Instance instance(window, shards(2, {{SlotId(0), SlotId(1)}}), plain_cost(), 100);
  std::stop_source source;
  source.request_stop();
  EXPECT_THROW(make_plan(instance, {}, nullptr, {nullptr, source.get_token()}), Cancelled);
}

TEST(Planner, stopped_once_there_is_a_layout_gives_a_valid_plan_that_is_not_complete) {
  const Window window = make_window(random_window(1, 40, 2, 4, 2, 4, 30));
  const Instance instance(window, shards(2, {{SlotId(0), SlotId(1)}}), plain_cost(), 100);
  for (const Phase phase : {Phase::Seed, Phase::Search}) {
    Notes notes;
    notes.stop_at = phase;
    const auto result = make_plan(instance, {}, nullptr, {&notes, notes.stop.get_token()});
    EXPECT_FALSE(plan_of(result).complete);
    EXPECT_EQ(plan_of(result).search.ending, Ending::Stopped);
    const auto verdict = verify(window, make_record(instance, {}, plan_of(result)));
    EXPECT_TRUE(verdict.accepted()) << verdict.violations.front().message;
  }
}

TEST(Planner, ends_early_when_there_is_nothing_to_gain) {
  // One sample per cell and one cell per row and shard: every layout is as good as any other.
  const Window window = make_window(random_window(1, 4, 1, 4, 2, 8, 8));
  const Instance instance(window, shards(2, {{SlotId(0)}}), plain_cost(), 8);
  const auto result = make_plan(instance, {.placement = PlacementMode::Keep});
  EXPECT_NE(plan_of(result).search.ending, Ending::Budget);
  EXPECT_NE(plan_of(result).search.ending, Ending::Stopped);
  EXPECT_EQ(plan_of(result).search.proposals, 0);
  EXPECT_TRUE(plan_of(result).complete);
}

TEST(Planner, has_a_plan_at_every_effort) {
  const Window window = make_window(random_window(1, 24, 2, 4, 2, 4, 30));
  const Instance instance(window, shards(2, {{SlotId(0)}, {SlotId(1)}}), plain_cost(), 100);
  for (const auto& effort : choices(Effort{})) {
    PlanParams params{.effort = effort.value, .search = search_of(effort.value)};
    params.search->proposals_per_sample = 64;  // the effort's ways, at little cost
    const auto result = make_plan(instance, params);
    const auto verdict = verify(window, make_record(instance, params, plan_of(result)));
    EXPECT_TRUE(verdict.accepted()) << effort.name << ": " << verdict.violations.front().message;
    EXPECT_LE(plan_of(result).evaluation.score.max_shard, plan_of(result).search.seed * (1.0 + 1e-12)) << effort.name;
  }
}

TEST(Planner, moves_the_one_pair_per_layer_that_balances_the_window) {
  const Window window = two_hot_neighbours(3, 16);
  const Instance instance(window, shards(2, {{SlotId(0), SlotId(1)}}), plain_cost(), 32);
  for (const PlacementMode mode : {PlacementMode::Sticky, PlacementMode::Joint}) {
    const auto result = make_plan(instance, {.placement = mode});
    const Plan& plan = plan_of(result);
    EXPECT_EQ(plan.moves.experts, 6);
    EXPECT_EQ(plan.placing.sticky_swaps, 3);
    EXPECT_EQ(plan.placing.swaps_needed, 3);
    EXPECT_THAT(plan.placing.layers, ElementsAre(LayerEnd::Balanced, LayerEnd::Balanced, LayerEnd::Balanced));
    EXPECT_EQ(plan.placing.moves.cycles.size(), 3U);
    EXPECT_DOUBLE_EQ(plan.cv_global, 0.0);
  }
}

TEST(Planner, keeps_a_budget_of_moves_and_says_that_it_was_the_limit) {
  const Window window = two_hot_neighbours(3, 16);
  const Instance instance(window, shards(2, {{SlotId(0), SlotId(1)}}), plain_cost(), 32);
  // A sixth of 12 experts is one pair.
  const auto result = make_plan(instance, {.placement = PlacementMode::Joint, .moves = "0.17"});
  EXPECT_EQ(plan_of(result).moves.experts, 2);
  EXPECT_EQ(std::ranges::count(plan_of(result).placing.layers, LayerEnd::Budget), 2);
  const auto none = make_plan(instance, {.placement = PlacementMode::Joint, .moves = "free 0 price:0"});
  EXPECT_EQ(plan_of(none).moves.experts, 0);
  const auto dear = make_plan(instance, {.placement = PlacementMode::Joint, .moves = "price:1000"});
  EXPECT_EQ(plan_of(dear).moves.experts, 0);
}

TEST(Planner, says_where_experts_are_between_two_batches) {
  const Window window = make_window(random_window(4, 40, 3, 8, 2, 4, 30));
  const Instance instance(window, shards(4, {{SlotId(0), SlotId(1)}}), plain_cost(), 100);
  Notes notes;
  const auto result = make_plan(instance, {.moves = "free", .two_batches = true}, nullptr, {&notes, {}});
  ASSERT_TRUE(plan_of(result).placing.first_batch.has_value());
  EXPECT_THAT(notes.placements, ElementsAre(*plan_of(result).placing.first_batch));
  EXPECT_FALSE(plan_of(make_plan(instance, {})).placing.first_batch.has_value());
}

TEST(Planner, gives_several_windows_one_placement_and_each_a_layout) {
  const Window first = make_window(random_window(4, 40, 3, 8, 2, 4, 30));
  const Window second = make_window(random_window(5, 30, 3, 8, 2, 4, 30));
  const auto topology = shards(4, {{SlotId(0), SlotId(1)}});
  const Instance one(first, topology, plain_cost(), 100);
  const Instance two(second, topology, plain_cost(), 100);
  const std::vector<const Instance*> both = {&one, &two};
  const auto result = make_plans(both, {});
  ASSERT_TRUE(std::holds_alternative<std::vector<Plan>>(result));
  const auto& plans = std::get<std::vector<Plan>>(result);
  ASSERT_EQ(plans.size(), 2U);
  EXPECT_EQ(plans[0].placement, plans[1].placement);
  for (std::size_t k = 0; k < 2; ++k) {
    const auto verdict = verify(both[k]->window, make_record(*both[k], {}, plans[k]));
    EXPECT_TRUE(verdict.accepted()) << verdict.violations.front().message;
  }
}

TEST(Planner, gives_windows_that_are_planned_together_what_the_slowest_needs) {
  // Only the second window has the hot pair; alone, the first would move nobody.
  testing::WindowSpec flat;
  flat.samples = 16;
  flat.layers = 1;
  flat.experts = 4;
  flat.lengths.assign(16, 8);
  for (int k = 0; k < 16; ++k) flat.counts.insert(flat.counts.end(), {2, 2, 2, 2});
  const Window first = make_window(std::move(flat));
  const Window second = two_hot_neighbours(1, 16);
  const auto topology = shards(2, {{SlotId(0), SlotId(1)}});
  const Instance one(first, topology, plain_cost(), 32);
  const Instance two(second, topology, plain_cost(), 32);
  EXPECT_EQ(plan_of(make_plan(one, {})).moves.experts, 0);
  const std::vector<const Instance*> both = {&one, &two};
  const auto result = make_plans(both, {});
  EXPECT_EQ(std::get<std::vector<Plan>>(result)[0].moves.experts, 2);
}

TEST(Planner, refuses_moves_that_it_cannot_read_or_price) {
  const Window window = make_window(random_window(1, 8, 1, 4, 1, 4, 8));
  const Instance instance(window, shards(2, {{SlotId(0)}}), plain_cost(), 100);
  const auto with = [&](const PlanParams& params) {
    return refusal<InvalidInput>([&] { make_plan(instance, params); });
  };
  EXPECT_THAT(with({.moves = "many"}), HasSubstr("moves: found \"many\""));
  EXPECT_THAT(with({.moves = "1MB"}), HasSubstr("wanted the bytes of one expert"));
  EXPECT_THAT(with({.expert_bytes = 5, .model = "gpt-oss-20b"}), AllOf(HasSubstr("expert_bytes"), HasSubstr("model")));
  EXPECT_THAT(with({.model = "no-such-model"}), HasSubstr("no-such-model"));
}

TEST(Planner, refuses_nodes_that_cut_through_communicators) {
  const Window window = make_window(random_window(1, 8, 1, 8, 1, 4, 8));
  const Instance instance(window, shards(4, {{SlotId(0)}}), plain_cost(), 100);
  for (const std::int64_t node : {3, 5, 6}) {
    EXPECT_THAT(refusal<InvalidInput>([&] { make_plan(instance, {.ranks_per_node = node}); }),
                HasSubstr(fmt::format("ranks_per_node: found {}, wanted a divisor or a multiple of the 4", node)));
  }
  for (const std::int64_t node : {0, 1, 2, 4, 8}) make_plan(instance, {.ranks_per_node = node});
}

TEST(Planner, takes_the_model_of_the_window_unless_told_otherwise) {
  testing::WindowSpec spec = random_window(1, 8, 1, 4, 1, 4, 8);
  spec.model = "openai/GPT-OSS-20b";
  const Window window = make_window(std::move(spec));
  const Instance instance(window, shards(2, {{SlotId(0)}}), plain_cost(), 100);
  const auto model_with = [&](const PlanParams& params) {
    const Plan plan = plan_of(make_plan(instance, params));
    const PlanRecord record = make_record(instance, params, plan);
    EXPECT_EQ(record.params->model, plan.placing.model);
    return record.params->model;
  };
  EXPECT_EQ(model_with({}), "gpt-oss-20b");
  EXPECT_EQ(model_with({.moves = "9GB"}), "gpt-oss-20b");  // bytes of an expert are known
  EXPECT_EQ(model_with({.model = "olmoe-1b-7b"}), "olmoe-1b-7b");
  EXPECT_EQ(model_with({.expert_bytes = 5}), "");
}

TEST(Planner, says_which_budget_was_in_effect) {
  const Window window = make_window(random_window(1, 8, 1, 4, 1, 4, 8));
  const Instance instance(window, shards(2, {{SlotId(0)}}), plain_cost(), 100);
  const auto budget_with = [&](const PlanParams& params) {
    return plan_of(make_plan(instance, params)).placing.budget;
  };
  EXPECT_GT(budget_with({}).value().price, 0.0);
  const auto limited = budget_with({.moves = "0.5 3B price:1,2", .expert_bytes = 1}).value();
  EXPECT_EQ(limited.share, 0.5);
  EXPECT_EQ(limited.rank_bytes, 3);
  EXPECT_EQ(limited.price, 1.0);
  EXPECT_EQ(limited.price_between_nodes, 2.0);
  EXPECT_FALSE(budget_with({.placement = PlacementMode::Keep}).has_value());
  EXPECT_FALSE(budget_with({.placement = PlacementMode::Lpt}).has_value());
}

TEST(BytesOfExpert, come_from_the_widths_of_a_preset_and_what_the_trainer_keeps) {
  // gpt-oss-20b: three matrices of 2880 x 2880.
  const std::int64_t parameters = std::int64_t{3} * 2880 * 2880;
  EXPECT_EQ(bytes_of_expert({.model = "gpt-oss-20b"}), 14 * parameters);
  EXPECT_EQ(bytes_of_expert({.model = "gpt-oss-20b", .optimizer_shards = 4}), 5 * parameters);
  EXPECT_EQ(bytes_of_expert({.model = "gpt-oss-20b", .weight_bytes = 1, .optimizer_bytes = 0}), parameters);
  EXPECT_EQ(bytes_of_expert({.expert_bytes = 7}), 7);
  EXPECT_EQ(bytes_of_expert({}), 0);
}

TEST(Planner, keeps_experts_where_they_are_when_told_to) {
  const Window window = make_window(random_window(3, 40, 3, 6, 2, 4, 30));
  const Instance instance(window, shards(3, {{SlotId(0), SlotId(1)}}), plain_cost(), 100);
  const auto current = place_lpt(aggregate_demand(window), Placement::identity(3, 6, 3));
  const auto result = make_plan(instance, {.placement = PlacementMode::Keep}, &current);
  EXPECT_EQ(plan_of(result).placement, current);
  EXPECT_EQ(plan_of(result).moves.experts, 0);
}

TEST(Planner, refuses_a_current_placement_of_another_shape) {
  const Window window = make_window(random_window(3, 40, 3, 6, 2, 4, 30));
  const Instance instance(window, shards(3, {{SlotId(0), SlotId(1)}}), plain_cost(), 100);
  const auto foreign = Placement::identity(3, 6, 2);
  EXPECT_EQ(refusal<InvalidInput>([&] { make_plan(instance, {}, &foreign); }),
            "current placement: found 3 layers of 6 experts on 2 ranks, wanted 3 of 6 on 3");
}

TEST(Planner, puts_light_rows_at_both_ends_for_pipelines) {
  const Window window = make_window(random_window(5, 60, 2, 4, 2, 4, 40));
  const Instance instance(window, shards(2, {{SlotId(0), SlotId(1)}}), plain_cost(), 80, {.min_rows = 7});
  const auto joints = row_joints(plan_of(make_plan(instance, {})));
  ASSERT_GE(joints.size(), 7U);
  const auto heaviest = std::ranges::max_element(joints) - joints.begin();
  for (std::ptrdiff_t r = 1; r <= heaviest; ++r) {
    EXPECT_GE(joints[static_cast<std::size_t>(r)], joints[static_cast<std::size_t>(r - 1)]);
  }
  for (auto r = static_cast<std::size_t>(heaviest) + 1; r < joints.size(); ++r) EXPECT_LE(joints[r], joints[r - 1]);
}

Window two_long_and_two_short() {
  testing::WindowSpec spec;
  spec.samples = 4;
  spec.layers = 1;
  spec.experts = 2;
  spec.lengths = {10, 2, 10, 2};
  spec.counts = {5, 5, 1, 1, 5, 5, 1, 1};
  return make_window(std::move(spec));
}

// Four samples of 10, 10, 2 and 2 tokens on two one-slot shards, two rows: rows of equals wait for nobody.
//   sync row:  {10 | 10}, {2 | 2}      sync step:  {10 | 2}, {2 | 10} serves as well; both shards get 12 tokens
TEST(Planner, lets_equals_meet_when_shards_wait_in_every_row) {
  const Window window = two_long_and_two_short();
  const Instance instance(window, shards(2, {{SlotId(0)}, {SlotId(1)}}), plain_cost(), 10, {}, Sync::Row);
  const auto result = make_plan(instance, {});
  const auto& joint = plan_of(result).evaluation.joint;  // [R, G]
  ASSERT_EQ(joint.size(), 4U);
  EXPECT_DOUBLE_EQ(joint[0], joint[1]);
  EXPECT_DOUBLE_EQ(joint[2], joint[3]);
}

TEST(Planner, gives_both_shards_the_same_work_when_they_meet_once) {
  const Window window = two_long_and_two_short();
  const Instance instance(window, shards(2, {{SlotId(0)}, {SlotId(1)}}), plain_cost(), 10);
  const auto result = make_plan(instance, {});
  const Score& score = plan_of(result).evaluation.score;
  EXPECT_DOUBLE_EQ(score.max_shard * 2.0, score.total);
}

TEST(Planner, keeps_samples_without_routes_in_as_few_cells_as_they_need) {
  auto spec = random_window(7, 40, 1, 4, 1, 10, 10);
  for (std::size_t i = 0; i < 8; ++i) {  // eight samples of ten tokens: two cells of forty
    spec.recorded[i] = 0;
    for (std::size_t e = 0; e < 4; ++e) spec.counts[i * 4 + e] = 0;
  }
  const Window window = make_window(std::move(spec));
  const Instance instance(window, shards(2, {{SlotId(0), SlotId(1)}}), plain_cost(), 40);
  const auto result = make_plan(instance, {});
  const Layout& layout = plan_of(result).layout;
  std::int64_t touched = 0;
  for (const RowId r : layout.row_ids()) {
    for (const SlotId d : instance.topology.slot_ids()) {
      const auto cell = layout.cell(r, d);
      if (std::ranges::any_of(cell, [&](SampleId i) { return window.lacks_routes(i); })) ++touched;
    }
  }
  EXPECT_EQ(touched, 2);
}

TEST(Planner, says_how_many_dummies_equal_counts_need) {
  const Window window = make_window(random_window(9, 7, 1, 4, 1, 4, 8));
  const auto topology = shards(2, {{SlotId(0), SlotId(1), SlotId(2)}});
  const Instance strict(window, topology, plain_cost(), 100, {.equal_count = true});
  const auto refused = make_plan(strict, {});
  ASSERT_TRUE(std::holds_alternative<Infeasible>(refused));
  EXPECT_THAT(std::get<Infeasible>(refused).reason, HasSubstr("2 dummy samples needed"));
  EXPECT_EQ(std::get<Infeasible>(refused).remedy, "--add-dummies");

  const Instance padded(window, topology, plain_cost(), 100, {.equal_count = true, .add_dummies = true});
  const auto result = make_plan(padded, {});
  EXPECT_EQ(plan_of(result).dummies, 2);
  const auto verdict = verify(window, make_record(padded, {}, plan_of(result)));
  EXPECT_TRUE(verdict.accepted()) << verdict.violations.front().message;
}

TEST(Planner, names_both_rules_that_exclude_each_other) {
  auto spec = random_window(11, 6, 1, 4, 1, 4, 8);
  spec.atomic = {0, 0, 0, -1, -1, -1};
  const Window window = make_window(std::move(spec));
  const auto reason = [&](std::int64_t capacity, Constraints rules) {
    const Instance instance(window, shards(2, {{SlotId(0)}}), plain_cost(), capacity, rules);
    return reason_of(make_plan(instance, {}));
  };
  EXPECT_THAT(reason(100, {.max_samples_per_cell = 2}),
              AllOf(HasSubstr("atomic"), HasSubstr("max_samples_per_cell 2")));
  EXPECT_THAT(reason(100, {.cell_multiple = 128}), AllOf(HasSubstr("cell_multiple 128"), HasSubstr("capacity 100")));
  EXPECT_THAT(reason(100, {.min_rows = 7}), HasSubstr("min_rows 7"));
  EXPECT_THAT(reason(100, {.max_rank_tokens = 1}), HasSubstr("max_rank_tokens 1"));
}

}  // namespace
}  // namespace routepack
