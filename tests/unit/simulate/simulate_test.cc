// SPDX-License-Identifier: Apache-2.0
// One step that can be followed by hand, what the simulator refuses, admission, and moving state.
#include "routepack/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "routepack/error.h"
#include "support/problems.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;

/// Two samples of 2 and 3 tokens in one row, a slot each, one shard of two ranks; one layer of two experts, top-1.
testing::Problem problem() {
  testing::Problem problem;
  problem.spec = {.samples = 2, .layers = 1, .experts = 2, .top_k = 1};
  problem.spec.lengths = {2, 3};
  problem.spec.counts = {2, 0, 2, 1};
  problem.ranks = 2;
  problem.shards = {{0, 1}};
  problem.expert = {1.0};
  problem.capacity = 4;
  return problem;
}

/// A dense layer, the MoE layer, the head.
StepTiming timing() {
  StepTiming timing;
  timing.layers = {{.stage = "d", .routed = false, .token = {1.0, 2.0}},
                   {.stage = "m", .routed = true, .token = {1.0, 2.0}, .pair = {0.5, 1.0}},
                   {.stage = "head", .routed = false, .token = {0.25, 0.5}}};
  timing.expert = {3.0, 6.0};
  timing.exchange = {0.125, 0.25};
  timing.layer_fixed = {0.5, 0.25};
  timing.row = 10.0;
  timing.reduce = 5.0;
  timing.optimizer = 7.0;
  return timing;
}

StepTimes simulate(const testing::Problem& problem, const testing::Cells& cells, const StepTiming& timing,
                   const PipelineShape& pipeline = {}) {
  const testing::Scene scene(problem);
  return simulate_step(scene.instance,
                       Placement::identity(scene.window.layers(), scene.window.experts(), problem.ranks),
                       testing::to_layout(cells, problem), timing, pipeline);
}

// Forward. Row: 10. Dense layer 0.5 + t, MoE layer 0.5 + t + t²/2: slot 0 takes 2.5 + 4.5 = 7, slot 1 3.5 + 8 = 11.5
// and lets the other wait for 4.5. Exchange: rank 0 gets 4 tokens, 0.5 s. Experts: rank 0 12 s, rank 1 3 s and 9 s of
// waiting. Exchange 0.5. Head 0.5 + t/4: slot 0 1.0, slot 1 1.25. In all 10 + 11.5 + 0.5 + 12 + 0.5 + 1.25 = 35.75.
// Backward. Head 0.25 + t/2: slot 1 1.75, slot 0 1.25. Exchange 1.0, experts 24 and 6, exchange 1.0, MoE layer
// 0.25 + 2t + t²: 8.25 and 15.25, dense layer 0.25 + 2t: 4.25 and 6.25. 1.75 + 1 + 24 + 1 + 21.5 = 49.25.
TEST(SimulateStep, can_be_followed_by_hand) {
  const StepTimes times = simulate(problem(), {{{0}, {1}}}, timing());
  EXPECT_DOUBLE_EQ(times.seconds, 35.75 + 49.25 + 5 + 7);
  EXPECT_EQ(times.tokens, 5);
  EXPECT_DOUBLE_EQ(times.tokens_per_second(), 5 / 97.0);
  EXPECT_THAT(times.shard_ends, ElementsAre(85.0));
  ASSERT_EQ(times.devices.size(), 2U);
  const DeviceTime& first = times.devices[0];
  EXPECT_EQ(first.device, (DeviceId{.stage = 0, .shard = ShardId(0), .place = 0}));
  EXPECT_DOUBLE_EQ(first.dense, 2 + 4 + 0.5 + 1 + 8 + 4);
  EXPECT_DOUBLE_EQ(first.experts, 12 + 24);
  EXPECT_DOUBLE_EQ(first.exchange, 1 + 2);
  EXPECT_DOUBLE_EQ(first.fixed, 10 + 3 * 0.5 + 3 * 0.25 + 5 + 7);
  EXPECT_DOUBLE_EQ(first.wait_dispatch, 4.5 + 0.25 + 0.5 + (15.25 + 6.25 - 8.25 - 4.25));
  EXPECT_DOUBLE_EQ(first.wait_combine, 0.0);
  const DeviceTime& second = times.devices[1];
  EXPECT_EQ(second.device.place, 1);
  EXPECT_DOUBLE_EQ(second.experts, 3 + 6);
  EXPECT_DOUBLE_EQ(second.wait_dispatch, 0.0);
  EXPECT_DOUBLE_EQ(second.wait_combine, 9 + 18);
  EXPECT_THAT(times.culprits.by_slot, ElementsAre(0.0, first.wait_dispatch));
  EXPECT_THAT(times.culprits.by_rank, ElementsAre(27.0, 0.0));
  EXPECT_THAT(times.culprits.by_row, ElementsAre(first.wait_dispatch + 27.0));
}

TEST(SimulateStep, takes_a_window_of_all_decoder_layers_as_one_of_the_moe_layers) {
  testing::Problem all = problem();
  all.spec.layers = 2;  // the dense one in front, without routes
  all.spec.counts = {0, 0, 2, 0, 0, 0, 2, 1};
  all.expert = {1.0, 1.0};
  EXPECT_DOUBLE_EQ(simulate(all, {{{0}, {1}}}, timing()).seconds, simulate(problem(), {{{0}, {1}}}, timing()).seconds);
}

// A shard of one slot whose two ranks have a device each: both work on the one cell.
TEST(SimulateStep, gives_a_shard_as_many_devices_as_ranks_or_slots) {
  testing::Problem apart = problem();
  apart.shards = {{0}, {1}};
  StepTimes times = simulate(apart, {{{0}, {1}}}, timing());
  ASSERT_EQ(times.devices.size(), 4U);
  EXPECT_EQ(times.devices[2].device, (DeviceId{.stage = 0, .shard = ShardId(1), .place = 0}));
  EXPECT_DOUBLE_EQ(times.devices[0].dense, times.devices[1].dense);
  EXPECT_EQ(times.devices[0].wait_dispatch, 0.0);
  EXPECT_GT(times.devices[1].wait_combine, 0.0);
  // The slot sends 2 tokens from two devices, rank 0 receives 2 on one: 2 on the busiest link.
  EXPECT_DOUBLE_EQ(times.devices[0].exchange, 2 * (0.125 + 0.25) * 2);
  EXPECT_THAT(times.culprits.by_rank, ::testing::SizeIs(4));

  testing::Problem single = problem();
  single.ranks = 1;
  times = simulate(single, {{{0}, {1}}}, timing());
  ASSERT_EQ(times.devices.size(), 2U);
  EXPECT_DOUBLE_EQ(times.devices[0].experts, times.devices[1].experts);
  // The rank's 5 tokens come to two devices; slot 1 sends 3.
  EXPECT_DOUBLE_EQ(times.devices[0].exchange, 2 * (0.125 + 0.25) * 3);
}

TEST(SimulateStep, counts_no_dummy_as_throughput) {
  EXPECT_EQ(simulate(problem(), {{{0, 2}, {1}}}, timing()).tokens, 5);
}

TEST(SimulateStep, of_no_time_has_no_throughput) {
  StepTiming nothing;
  nothing.layers = {{}};
  const StepTimes times = simulate(problem(), {{{0}, {1}}}, nothing);
  EXPECT_EQ(times.seconds, 0.0);
  EXPECT_EQ(times.tokens_per_second(), 0.0);
}

TEST(SimulateStep, refuses_shapes_that_disagree) {
  const testing::Cells cells = {{{0}, {1}}};
  const auto said = [&](const StepTiming& with, const PipelineShape& pipeline = {}) {
    return refusal<InvalidInput>([&] { simulate(problem(), cells, with, pipeline); });
  };
  StepTiming other = timing();
  other.layers[0].routed = true;
  EXPECT_THAT(said(other), HasSubstr("found 2 MoE layers of 2, wanted the window's 1"));
  other = timing();
  other.tile = 0;
  EXPECT_THAT(said(other), HasSubstr("tile: found 0, wanted at least 1"));
  EXPECT_THAT(said(timing(), {.stages = 0}), HasSubstr("found 0 stages"));
  EXPECT_THAT(said(timing(), {.stages = 2, .chunks = 0}), HasSubstr("of 0 chunks"));
  EXPECT_THAT(said(timing(), {.stages = 4}), HasSubstr("at most 3 in all"));
  EXPECT_THAT(said(timing(), {.stages = 1 << 16, .chunks = 1 << 16}), HasSubstr("at most 3 in all"));
  EXPECT_THAT(said(timing(), {.stages = 1, .chunks = 2}), HasSubstr("single stage"));

  testing::Problem of_one = problem();
  of_one.shards = {{0}};
  const testing::Scene scene(problem());
  const Placement placement = Placement::identity(1, 2, 2);
  EXPECT_THAT(refusal<InvalidInput>(
                  [&] { simulate_step(scene.instance, placement, testing::to_layout({{{0, 1}}}, of_one), timing()); }),
              HasSubstr("layout: slots: found 1, wanted 2"));
  EXPECT_THAT(refusal<InvalidInput>([&] {
                simulate_step(scene.instance, Placement::identity(1, 2, 1), testing::to_layout(cells, problem()),
                              timing());
              }),
              HasSubstr("placement"));
}

TEST(SimulateStep, refuses_to_interleave_rows_that_the_stages_do_not_divide) {
  testing::Problem three = problem();
  three.spec.samples = 3;
  three.spec.lengths = {2, 3, 1};
  three.spec.counts = {2, 0, 2, 1, 1, 0};
  three.shards = {{0}};
  StepTiming four = timing();
  four.layers.push_back({.stage = "more", .routed = false});
  EXPECT_THAT(refusal<InvalidInput>([&] { simulate(three, {{{0}}, {{1}}, {{2}}}, four, {.stages = 2, .chunks = 2}); }),
              HasSubstr("--row-multiple 2"));
}

// Equations 19 and 20 of the paper.
TEST(Admission, waits_for_packing_and_for_state) {
  Admission hidden{.place = 2.0, .pack = 3.0, .other = 1.0, .state = 4.0, .admit = 0.5};
  EXPECT_DOUBLE_EQ(hidden.target(), (2 + 4) + 0.5);  // state is ready at 6, rows at 5
  EXPECT_EQ(hidden.exposed(), 0.0);
  Admission late = hidden;
  late.pack = 10.0;
  EXPECT_DOUBLE_EQ(late.target(), (2 + 10) + 0.5);
  EXPECT_DOUBLE_EQ(late.exposed(), 12.0 - 6.0);
  Admission busy = late;
  busy.other = 7.0;  // state cannot move before the trainer is ready for it
  EXPECT_DOUBLE_EQ(busy.target(), 12.0 + 0.5);
  EXPECT_DOUBLE_EQ(busy.exposed(), 12.0 - (7.0 + 4.0));
  busy.other = 9.0;
  EXPECT_DOUBLE_EQ(busy.target(), 13.0 + 0.5);
  EXPECT_EQ(busy.exposed(), 0.0);
}

Device links(double near_rate, double far_rate) {
  Device device;
  device.near_rate = near_rate;
  device.far_rate = far_rate;
  return device;
}

// Four ranks of two experts; a cycle over ranks 0, 1, 2 and an exchange of 2 and 3. Nodes of two ranks: 0 → 1 and 2 ↔ 3
// stay near, 1 → 2 and 2 → 0 go far. Rank 2 sends one near and one far, and receives the same.
TEST(StateMove, takes_the_busiest_link_of_the_busiest_rank) {
  const auto placed = [](std::vector<std::int32_t> map) { return testing::to_placement({std::move(map)}, 4); };
  const Placement before = placed({0, 1, 2, 3, 4, 5, 6, 7});
  const Placement after = placed({4, 1, 0, 3, 2, 6, 5, 7});
  const Device device = links(400.0, 100.0);
  EXPECT_DOUBLE_EQ(state_move_seconds(before, after, 1000, device, 2), 1000 / 100.0);
  EXPECT_DOUBLE_EQ(state_move_seconds(before, after, 1000, device, 4), 2 * 1000 / 400.0);  // rank 2 sends two
  EXPECT_DOUBLE_EQ(state_move_seconds(before, after, 1000, device, 0), 2 * 1000 / 400.0);  // one node
  EXPECT_DOUBLE_EQ(state_move_seconds(before, after, 1000, device, 1), 2 * 1000 / 100.0);  // no neighbours
  const Device slow_inside = links(50.0, 100.0);
  EXPECT_DOUBLE_EQ(state_move_seconds(before, after, 1000, slow_inside, 2), 1000 / 50.0);
}

TEST(StateMove, of_slots_inside_a_rank_or_of_nothing_takes_no_time) {
  const Placement before = Placement::identity(1, 4, 2);
  const Device device = links(1.0, 1.0);
  EXPECT_EQ(state_move_seconds(before, before, 1000, device, 1), 0.0);
  EXPECT_EQ(state_move_seconds(before, testing::to_placement({{1, 0, 2, 3}}, 2), 1000, device, 1), 0.0);
}

TEST(StateMove, refuses_placements_of_two_shapes) {
  const Device device = links(1.0, 1.0);
  refusal<InvalidInput>(
      [&] { state_move_seconds(Placement::identity(1, 4, 2), Placement::identity(1, 8, 2), 1, device, 1); });
}

}  // namespace
}  // namespace routepack
