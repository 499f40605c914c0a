// SPDX-License-Identifier: Apache-2.0
// Good plans are accepted; a plan that differs from a good one in one thing breaks the rule for that thing, and no
// other.
#include "routepack/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "routepack/error.h"
#include "unit/verify/plans.h"

namespace routepack::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// What one change does to a good plan.
class Verify : public ::testing::Test {
 protected:
  using Change = std::function<void(PlanRecord&)>;

  std::set<std::string> after(const Change& change) const { return changed(hand_, hand_plan(hand_), change); }
  std::set<std::string> grid_after(const Change& change) const { return changed(grid_, grid_plan(grid_), change); }
  static std::set<std::string> changed(const Window& window, PlanRecord plan, const Change& change) {
    change(plan);
    return broken_rules(window, plan);
  }

  const Window hand_ = make_window(hand_spec());
  const Window grid_ = make_window(grid_spec());
};

TEST_F(Verify, accepts_a_plan_that_was_worked_out_by_hand) {
  const Verdict verdict = verify(hand_, hand_plan(hand_));
  for (const Violation& violation : verdict.violations) ADD_FAILURE() << violation.rule << ": " << violation.message;
  EXPECT_TRUE(verdict.accepted());
  EXPECT_THAT(verdict.checked, Contains("every-sample-once"));
  EXPECT_THAT(verdict.checked, Contains("score"));
}

TEST_F(Verify, accepts_two_shards_with_layer_weights_and_permuted_experts_in_both_scopes) {
  EXPECT_THAT(broken_rules(grid_, grid_plan(grid_)), IsEmpty());
  EXPECT_THAT(grid_after([](auto& plan) {
                plan.sync = Sync::Row;
                plan.score->max_shard = 4.8;
                plan.metrics.back().second = 4.8;
              }),
              IsEmpty());
  EXPECT_THAT(grid_after([](auto& plan) { plan.sync = Sync::Row; }), ElementsAre("metrics", "score"));
}

TEST_F(Verify, accepts_a_plan_that_states_only_what_must_be_there) {
  EXPECT_THAT(after([](auto& plan) {
                PlanRecord bare;
                bare.ep = plan.ep;
                bare.shards = plan.shards;
                bare.capacity = plan.capacity;
                bare.rows = plan.rows;
                bare.physical_to_logical = plan.physical_to_logical;
                bare.layout = plan.layout;
                plan = bare;
              }),
              IsEmpty());
}

TEST_F(Verify, refuses_a_plan_for_another_window) {
  const auto refusal = [&](const Change& change) -> std::string {
    PlanRecord plan = hand_plan(hand_);
    plan.source = "step7.json";
    change(plan);
    try {
      verify(hand_, plan);
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal([](auto& plan) { plan.window->fingerprint = "xxh3:0123456789abcdef"; }),
              HasSubstr("step7.json: window.fingerprint: found xxh3:0123456789abcdef, wanted xxh3:"));
  EXPECT_THAT(refusal([](auto& plan) { plan.window->samples = 5; }), HasSubstr("window.samples: found 5, wanted 4"));
  EXPECT_THAT(refusal([](auto& plan) { plan.window->layers = 2; }), HasSubstr("window.layers: found 2, wanted 1"));
  EXPECT_THAT(refusal([](auto& plan) { plan.window->experts = 8; }), HasSubstr("window.experts: found 8, wanted 4"));
  EXPECT_THAT(refusal([](auto& plan) { plan.physical_to_logical = {{0, 1, 2, 3}, {0, 1, 2, 3}}; }),
              HasSubstr("found 2, wanted 1"));
  EXPECT_THAT(refusal([](auto& plan) { plan.physical_to_logical = {{0, 1, 2}}; }), HasSubstr("found 3, wanted 4"));
}

TEST_F(Verify, refuses_a_window_of_summed_demand) {
  WindowSpec spec = hand_spec();
  spec.samples = 1;
  spec.kind = WindowKind::Aggregate;
  spec.lengths.clear();
  spec.counts.resize(4);
  PlanRecord plan = hand_plan(hand_);
  plan.window.reset();
  EXPECT_THROW(verify(make_window(spec), plan), InvalidInput);
}

TEST_F(Verify, rows_must_match_the_layout) {
  EXPECT_THAT(after([](auto& plan) { plan.rows = 3; }), ElementsAre("rows-match-layout"));
}

TEST_F(Verify, every_row_has_a_cell_for_every_slot) {
  EXPECT_THAT(after([](auto& plan) { plan.layout = {{{0}, {2}}, {{1, 3}}}; }), ElementsAre("rectangular"));
  EXPECT_THAT(after([](auto& plan) { plan.shards = {{0, 1, 2}}; }), ElementsAre("rectangular"));
}

TEST_F(Verify, shards_partition_the_slots) {
  EXPECT_THAT(after([](auto& plan) { plan.shards = {{0, 0}}; }), ElementsAre("shards-partition"));
  EXPECT_THAT(after([](auto& plan) { plan.shards = {{0, 2}}; }), ElementsAre("shards-partition"));
  EXPECT_THAT(after([](auto& plan) { plan.shards = {{0, -1}}; }), ElementsAre("shards-partition"));
  EXPECT_THAT(after([](auto& plan) { plan.shards = {{0, 1}, {}}; }), ElementsAre("shards-partition"));
  EXPECT_THAT(after([](auto& plan) { plan.shards = {}; }), ElementsAre("shards-partition"));
}

TEST_F(Verify, ranks_divide_the_experts) {
  for (const std::int32_t ep : {3, 8, 0, -2}) {
    EXPECT_THAT(after([&](auto& plan) { plan.ep = ep; }), ElementsAre("experts-divide")) << ep;
  }
}

TEST_F(Verify, every_layer_is_a_permutation) {
  EXPECT_THAT(after([](auto& plan) { plan.physical_to_logical[0][3] = 0; }), ElementsAre("permutation"));
  EXPECT_THAT(after([](auto& plan) { plan.physical_to_logical[0][3] = 4; }), ElementsAre("permutation"));
  EXPECT_THAT(after([](auto& plan) { plan.physical_to_logical[0][3] = -1; }), ElementsAre("permutation"));
  EXPECT_THAT(grid_after([](auto& plan) { plan.physical_to_logical[1].pop_back(); }), ElementsAre("permutation"));
}

TEST_F(Verify, every_sample_is_in_exactly_one_cell) {
  EXPECT_THAT(grid_after([](auto& plan) { plan.layout[1][1] = {3}; }), ElementsAre("every-sample-once"));
  EXPECT_THAT(grid_after([](auto& plan) { plan.layout[1][1] = {3, 5, 3}; }), ElementsAre("every-sample-once"));
  EXPECT_THAT(grid_after([](auto& plan) { plan.layout[1][1] = {3, 5, 6}; }), ElementsAre("every-sample-once"));
  EXPECT_THAT(grid_after([](auto& plan) { plan.layout[1][1] = {3, 5, -1}; }), ElementsAre("every-sample-once"));
}

TEST_F(Verify, no_cell_is_empty) {
  EXPECT_THAT(after([](auto& plan) {
                plan.layout = {{{0}, {2, 3}}, {{1}, {}}};
                plan.score.reset();
                plan.bound.reset();
                plan.metrics.clear();
              }),
              ElementsAre("no-empty-cell"));
}

TEST_F(Verify, capacity_is_in_range) {
  for (const std::int64_t capacity : {std::int64_t{0}, std::int64_t{-10}, kMaxCapacity + 1}) {
    EXPECT_THAT(after([&](auto& plan) { plan.capacity = capacity; }), ElementsAre("capacity")) << capacity;
  }
}

TEST_F(Verify, costs_are_finite_and_not_negative) {
  EXPECT_THAT(after([](auto& plan) { plan.stages[0].alpha = -1.0; }), ElementsAre("cost-numbers"));
  EXPECT_THAT(after([](auto& plan) { plan.stages[1].beta = kNan; }), ElementsAre("cost-numbers"));
  EXPECT_THAT(after([](auto& plan) { plan.expert[0] = std::numeric_limits<double>::infinity(); }),
              ElementsAre("cost-numbers"));
  EXPECT_THAT(after([](auto& plan) { plan.expert = {}; }), ElementsAre("cost-numbers"));
  EXPECT_THAT(grid_after([](auto& plan) { plan.expert.push_back(1.0); }), ElementsAre("cost-numbers"));
}

TEST_F(Verify, cells_stay_under_the_cap_in_aligned_tokens) {
  // Cells of 6 + 3, 8, 4 and 2 + 1 tokens: with multiple 4 they count 12, 8, 4 and 8.
  EXPECT_THAT(grid_after([](auto& plan) { plan.constraints.sample_multiple = 3; }), IsEmpty());
  EXPECT_THAT(grid_after([](auto& plan) { plan.constraints.sample_multiple = 4; }), ElementsAre("token-cap"));
  EXPECT_THAT(grid_after([](auto& plan) { plan.constraints.cell_multiple = 5; }), IsEmpty());
  EXPECT_THAT(grid_after([](auto& plan) {
                plan.constraints.sample_multiple = 2;  // 6 + 4 = 10, and the next multiple of 4 is 12
                plan.constraints.cell_multiple = 4;
              }),
              ElementsAre("token-cap"));
}

TEST_F(Verify, a_sample_over_the_cap_needs_leave_and_a_cell_of_its_own) {
  // Multiple 7 makes the sample of 8 tokens 14 long.
  EXPECT_THAT(after([](auto& plan) { plan.constraints.sample_multiple = 7; }), ElementsAre("oversized"));
  EXPECT_THAT(after([](auto& plan) {
                plan.constraints.sample_multiple = 7;
                plan.constraints.oversized = Oversized::OwnCell;
              }),
              IsEmpty());
  EXPECT_THAT(grid_after([](auto& plan) {
                plan.constraints.sample_multiple = 11;
                plan.constraints.oversized = Oversized::OwnCell;
              }),
              ElementsAre("oversized"));
}

TEST_F(Verify, options_are_within_their_bounds) {
  EXPECT_THAT(after([](auto& plan) { plan.constraints.sample_multiple = 0; }), ElementsAre("constraint-values"));
  EXPECT_THAT(after([](auto& plan) { plan.constraints.cell_multiple = -3; }), ElementsAre("constraint-values"));
  EXPECT_THAT(after([](auto& plan) { plan.constraints.row_multiple = 0; }), ElementsAre("constraint-values"));
  EXPECT_THAT(after([](auto& plan) { plan.constraints.max_rank_tokens = -1; }), ElementsAre("constraint-values"));
  EXPECT_THAT(after([](auto& plan) { plan.constraints.oversized = static_cast<Oversized>(7); }),
              ElementsAre("constraint-values"));
}

TEST_F(Verify, row_counts_are_respected) {
  EXPECT_THAT(after([](auto& plan) { plan.constraints.min_rows = 2; }), IsEmpty());
  EXPECT_THAT(after([](auto& plan) { plan.constraints.min_rows = 3; }), ElementsAre("min-rows"));
  EXPECT_THAT(after([](auto& plan) { plan.constraints.row_multiple = 2; }), IsEmpty());
  EXPECT_THAT(after([](auto& plan) { plan.constraints.row_multiple = 4; }), ElementsAre("row-multiple"));
  EXPECT_THAT(after([](auto& plan) { plan.pipeline_stages = 2; }), IsEmpty());
  EXPECT_THAT(after([](auto& plan) { plan.pipeline_stages = 3; }), ElementsAre("pipeline-stages"));
  EXPECT_THAT(after([](auto& plan) { plan.pipeline_stages = 0; }), ElementsAre("pipeline-stages"));
}

TEST_F(Verify, sample_counts_are_respected) {
  EXPECT_THAT(grid_after([](auto& plan) { plan.constraints.equal_count = true; }), IsEmpty());
  EXPECT_THAT(grid_after([](auto& plan) {
                plan.constraints.equal_count = true;
                plan.layout = {{{0}, {2}}, {{1}, {3, 5, 4}}};
                plan.score.reset();
                plan.metrics.clear();
              }),
              ElementsAre("equal-count"));
  EXPECT_THAT(grid_after([](auto& plan) { plan.constraints.max_samples_per_cell = 2; }), IsEmpty());
  EXPECT_THAT(grid_after([](auto& plan) { plan.constraints.max_samples_per_cell = 1; }),
              ElementsAre("max-samples-per-cell"));
}

/// The hand window with one sample fewer, filled up with a dummy of one token at index 3: row 1 then has W = (4, 0).
PlanRecord plan_with_a_dummy(const Window& window) {
  PlanRecord plan = hand_plan(window);
  plan.dummies = 1;
  plan.constraints.equal_count = true;
  plan.constraints.add_dummies = true;
  plan.stages = {{"linear", 1.0, 1.0}};  // 0.8 + 0.64, then max(0.4 + 0.16, 0.1 + 0.01)
  plan.score = Score{3.2, 3.2, 2.24};    // experts 0.8, then 0.4
  plan.metrics.clear();
  plan.bound.reset();
  plan.bound_fixed_placement.reset();
  return plan;
}

TEST_F(Verify, dummies_are_one_token_samples_that_only_equal_counts_may_add) {
  WindowSpec spec = hand_spec();
  spec.samples = 3;
  spec.lengths.pop_back();
  spec.counts.resize(12);
  const Window window = make_window(spec);
  const auto after_change = [&](const Change& change) { return changed(window, plan_with_a_dummy(window), change); };
  EXPECT_THAT(after_change([](auto&) {}), IsEmpty());
  EXPECT_THAT(after_change([](auto& plan) { plan.constraints.add_dummies = false; }), ElementsAre("dummies"));
  EXPECT_THAT(after_change([](auto& plan) { plan.constraints.equal_count = false; }),
              ElementsAre("constraint-values", "dummies"));
  EXPECT_THAT(after_change([](auto& plan) { plan.dummies = 0; }), ElementsAre("every-sample-once"));
  EXPECT_THAT(after_change([](auto& plan) { plan.score->total = 3.4; }), ElementsAre("score"));
  EXPECT_THAT(after_change([](auto& plan) {
                plan.dummies = 3;  // as many as slots and one more
                plan.layout = {{{0, 4}, {2}}, {{1}, {3, 5}}};
                plan.score.reset();
              }),
              ElementsAre("dummies"));
  EXPECT_THAT(after_change([](auto& plan) { plan.dummies = std::numeric_limits<std::int64_t>::max(); }),
              ElementsAre("dummies", "every-sample-once"));
}

TEST_F(Verify, no_rank_gets_more_tokens_than_its_memory_holds) {
  EXPECT_THAT(after([](auto& plan) { plan.constraints.max_rank_tokens = 8; }), IsEmpty());
  EXPECT_THAT(after([](auto& plan) { plan.constraints.max_rank_tokens = 7; }), ElementsAre("max-rank-tokens"));
}

TEST_F(Verify, padding_counts_as_expert_load) {
  // Multiple 10 pads the cells by 4 and 2, then by 6 and 8 tokens. A padding token sends 0.5 to expert 0 and 1/65536 to
  // expert 3: row 0 has W = (6 + 3, 8 + 6/65536 → 8), row 1 W = (5 + 7, 1). E = 0.9, then 1.2.
  WindowSpec spec = hand_spec();
  spec.pad_counts = {32768, 0, 0, 1};
  const Window window = make_window(spec);
  PlanRecord plan = hand_plan(window);
  plan.constraints.sample_multiple = 10;
  plan.score = Score{4.96 + 0.9 + 1.84 + 1.2, 4.96 + 0.9 + 1.84 + 1.2, 5.86};
  plan.gap.reset();
  plan.metrics = {{"cv_global", 0.1}, {"expert_peak_sum", 21}, {"tail_peak", 12}, {"ep_efficiency", 15.0 / 21.0}};
  EXPECT_THAT(broken_rules(window, plan), IsEmpty());
  plan.constraints.max_rank_tokens = 11;
  EXPECT_THAT(broken_rules(window, plan), ElementsAre("max-rank-tokens"));
}

TEST_F(Verify, atomic_groups_share_a_cell) {
  WindowSpec spec = grid_spec();
  spec.atomic = {7, -1, -1, 0, 7, 0};
  const Window window = make_window(spec);
  PlanRecord plan = grid_plan(window);
  EXPECT_THAT(broken_rules(window, plan), IsEmpty());
  spec.atomic = {7, -1, 7, 0, -1, 0};
  const Window apart = make_window(spec);
  plan.window->fingerprint = apart.fingerprint();
  EXPECT_THAT(broken_rules(apart, plan), ElementsAre("atomic-groups"));
}

TEST_F(Verify, the_score_is_recomputed) {
  EXPECT_THAT(after([](auto& plan) { plan.score->max_shard += 1e-9; }), ElementsAre("score"));
  EXPECT_THAT(after([](auto& plan) { plan.score->total -= 1e-9; }), ElementsAre("score"));
  EXPECT_THAT(after([](auto& plan) { plan.score->worst_row = kNan; }), ElementsAre("score"));
  EXPECT_THAT(after([](auto& plan) { plan.score->worst_row *= 1 + 1e-14; }), IsEmpty());
}

TEST_F(Verify, bounds_are_below_the_score_and_the_gap_follows_from_them) {
  EXPECT_THAT(after([](auto& plan) { plan.bound_fixed_placement = 8.2; }), ElementsAre("bound"));
  EXPECT_THAT(after([](auto& plan) {
                plan.bound = 8.2;
                plan.gap.reset();
                plan.metrics.pop_back();
              }),
              ElementsAre("bound"));
  EXPECT_THAT(after([](auto& plan) { plan.bound_fixed_placement = -0.5; }), ElementsAre("bound"));
  EXPECT_THAT(after([](auto& plan) { plan.bound_fixed_placement = kNan; }), ElementsAre("bound"));
  EXPECT_THAT(after([](auto& plan) { plan.gap = 0.2; }), ElementsAre("gap"));
}

TEST_F(Verify, row_bounds_are_possible) {
  EXPECT_THAT(after([](auto& plan) { plan.rows_lower_bound = 3; }), ElementsAre("rows-lower-bound"));
  EXPECT_THAT(after([](auto& plan) { plan.rows_lower_bound = 0; }), ElementsAre("rows-lower-bound"));
  EXPECT_THAT(after([](auto& plan) { plan.rows_lower_bound = 1; }), ElementsAre("rows-lower-bound"));
  EXPECT_THAT(after([](auto& plan) {
                plan.rows_lower_bound = 1;
                plan.rows_certified = false;
              }),
              IsEmpty());
}

TEST_F(Verify, every_known_metric_is_recomputed) {
  for (std::size_t m = 0; m < 8; ++m) {
    std::string name;
    const auto broken = after([&](auto& plan) {
      name = plan.metrics[m].first;
      plan.metrics[m].second += 0.001;
    });
    if (name == "cv_global_before") {  // depends on a placement that the file does not hold
      EXPECT_THAT(broken, IsEmpty());
    } else {
      EXPECT_THAT(broken, ElementsAre("metrics")) << name;
    }
  }
  EXPECT_THAT(after([](auto& plan) { plan.metrics.emplace_back("of_a_later_version", kNan); }), IsEmpty());
}

TEST_F(Verify, moves_add_up) {
  EXPECT_THAT(after([](auto& plan) { plan.moves->experts = 5; }), ElementsAre("moves"));
  EXPECT_THAT(after([](auto& plan) { plan.moves->experts = -1; }), ElementsAre("moves"));
  EXPECT_THAT(after([](auto& plan) { plan.moves->local = 3; }), ElementsAre("moves"));
  EXPECT_THAT(after([](auto& plan) { plan.moves->fraction = 0.25; }), ElementsAre("moves"));
  EXPECT_THAT(after([](auto& plan) { plan.moves->bytes = 15; }), ElementsAre("moves"));
  EXPECT_THAT(after([](auto& plan) { plan.params->expert_bytes = std::numeric_limits<std::int64_t>::max(); }),
              ElementsAre("moves"));
  EXPECT_THAT(after([](auto& plan) { plan.moves->bytes.reset(); }), IsEmpty());
}

TEST_F(Verify, squares_that_a_double_cannot_hold_are_refused) {
  WindowSpec spec = hand_spec();
  spec.lengths[2] = std::numeric_limits<std::int32_t>::max();
  const Window window = make_window(spec);
  PlanRecord plan = hand_plan(window);
  plan.constraints.oversized = Oversized::OwnCell;
  EXPECT_THAT(broken_rules(window, plan), ElementsAre("exact-integers"));
}

TEST_F(Verify, shows_ten_violations_of_a_rule_and_counts_the_others) {
  PlanRecord plan = hand_plan(hand_);
  plan.layout[0][0] = std::vector<std::int32_t>(25, 0);
  const Verdict verdict = verify(hand_, plan);
  std::vector<std::string> messages;
  for (const Violation& violation : verdict.violations) {
    if (violation.rule == "every-sample-once") messages.push_back(violation.message);
  }
  ASSERT_EQ(messages.size(), 11U);
  EXPECT_EQ(messages.front(), "row 0, slot 0: found sample 0 again, wanted each once");
  EXPECT_EQ(messages.back(), "… and 14 more");
  EXPECT_THAT(verdict.checked, Not(Contains("score")));
}

}  // namespace
}  // namespace routepack::testing
