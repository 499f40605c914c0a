// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stop_token>
#include <vector>

#include "routepack/plan.h"
#include "routepack/plan_file.h"
#include "routepack/verify.h"
#include "support/builders.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::ElementsAre;
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

/// Notes the phases in the order they begin.
struct PhaseNotes : Observer {
  std::vector<Phase> seen;
  void phase_begins(Phase phase) override { seen.push_back(phase); }
};

TEST(Planner, goes_through_its_phases_in_order) {
  const Window window = make_window(random_window(1, 40, 2, 4, 2, 4, 30));
  const Instance instance(window, shards(2, {{SlotId(0), SlotId(1)}}), plain_cost(), 100);
  PhaseNotes notes;
  plan_of(make_plan(instance, {}, nullptr, {&notes, {}}));
  EXPECT_THAT(notes.seen, ElementsAre(Phase::Demand, Phase::Place, Phase::Rows, Phase::Pack, Phase::Check));
}

TEST(Planner, ends_between_phases_when_asked_to_stop) {
  const Window window = make_window(random_window(1, 40, 2, 4, 2, 4, 30));
  const Instance instance(window, shards(2, {{SlotId(0), SlotId(1)}}), plain_cost(), 100);
  std::stop_source source;
  source.request_stop();
  EXPECT_THROW(make_plan(instance, {}, nullptr, {nullptr, source.get_token()}), Cancelled);
}

TEST(Planner, refuses_what_is_not_built_yet) {
  const Window window = make_window(random_window(1, 8, 1, 4, 1, 4, 8));
  const Instance instance(window, shards(2, {{SlotId(0)}}), plain_cost(), 100);
  const auto with = [&](PlanParams params) { return refusal<InvalidInput>([&] { make_plan(instance, params); }); };
  EXPECT_THAT(with({.placement = PlacementMode::Joint}), ::testing::HasSubstr("\"joint\" is not built yet"));
  EXPECT_THAT(with({.effort = Effort::Paper}), ::testing::HasSubstr("\"paper\" is not built yet"));
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
  EXPECT_THAT(std::get<Infeasible>(refused).reason, ::testing::HasSubstr("2 dummy samples needed"));
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
    return std::get<Infeasible>(make_plan(instance, {})).reason;
  };
  EXPECT_THAT(reason(100, {.max_samples_per_cell = 2}),
              ::testing::AllOf(::testing::HasSubstr("atomic"), ::testing::HasSubstr("max_samples_per_cell 2")));
  EXPECT_THAT(reason(100, {.cell_multiple = 128}),
              ::testing::AllOf(::testing::HasSubstr("cell_multiple 128"), ::testing::HasSubstr("capacity 100")));
  EXPECT_THAT(reason(100, {.min_rows = 7}), ::testing::HasSubstr("min_rows 7"));
  EXPECT_THAT(reason(100, {.max_rank_tokens = 1}), ::testing::HasSubstr("max_rank_tokens 1"));
}

}  // namespace
}  // namespace routepack
