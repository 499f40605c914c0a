// SPDX-License-Identifier: Apache-2.0
#include "simulate/step_loads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "routepack/error.h"
#include "support/problems.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

/// Three samples of 3, 2 and 5 tokens; two layers of four experts on two ranks, top-2; two slots in one shard.
testing::Problem problem() {
  testing::Problem problem;
  problem.spec = {.samples = 3, .layers = 2, .experts = 4, .top_k = 2};
  problem.spec.lengths = {3, 2, 5};
  problem.spec.counts = {3, 3, 0, 0, 0, 1, 2, 3,   // sample 0
                         0, 2, 2, 0, 0, 0, 2, 2,   // sample 1
                         5, 0, 0, 5, 4, 1, 1, 4};  // sample 2
  problem.ranks = 2;
  problem.shards = {{0, 1}};
  problem.expert = {1.0};
  problem.capacity = 8;
  return problem;
}

/// Experts 0 and 2 on rank 0, 1 and 3 on rank 1, in both layers.
const testing::Maps kMaps = {{0, 2, 1, 3}, {2, 0, 3, 1}};

StepLoads loads_of(const testing::Problem& problem, const testing::Cells& cells, std::int64_t tile) {
  const testing::Scene scene(problem);
  return step_loads(scene.instance, testing::to_placement(kMaps, problem.ranks), testing::to_layout(cells, problem),
                    tile);
}

void expect_rank(const RankWork& found, std::int64_t tokens, std::int64_t computed, std::int64_t active) {
  EXPECT_EQ(found.tokens, tokens);
  EXPECT_EQ(found.computed, computed);
  EXPECT_EQ(found.active, active);
}

TEST(StepLoads, sum_cells_and_ranks) {
  const StepLoads loads = loads_of(problem(), {{{0, 1}, {2}}}, 1);
  EXPECT_EQ(loads.rows, 1);
  EXPECT_EQ(loads.slots, 2);
  EXPECT_EQ(loads.shards, 1);
  EXPECT_EQ(loads.layers, 2);
  EXPECT_EQ(loads.ranks, 2);
  ASSERT_EQ(loads.cells.size(), 2U);
  EXPECT_EQ(loads.cells[0].tokens, 5.0);
  EXPECT_EQ(loads.cells[0].squares, 9.0 + 4.0);
  EXPECT_EQ(loads.cells[1].tokens, 5.0);
  EXPECT_EQ(loads.cells[1].squares, 25.0);
  EXPECT_EQ(loads.sent, (std::vector<std::int64_t>{6 + 4, 6 + 4, 10, 10}));
  // Layer 0: experts hold 8, 5, 2, 5; layer 1: 4, 2, 5, 9.
  expect_rank(loads.ranks_of(0, ShardId(0), 0)[0], 8 + 2, 10, 2);
  expect_rank(loads.ranks_of(0, ShardId(0), 0)[1], 5 + 5, 10, 2);
  expect_rank(loads.ranks_of(0, ShardId(0), 1)[0], 4 + 5, 9, 2);
  expect_rank(loads.ranks_of(0, ShardId(0), 1)[1], 2 + 9, 11, 2);
}

TEST(StepLoads, round_every_expert_with_load_to_the_tile) {
  const StepLoads loads = loads_of(problem(), {{{0, 1}, {2}}}, 4);
  expect_rank(loads.ranks_of(0, ShardId(0), 0)[0], 10, 8 + 4, 2);
  expect_rank(loads.ranks_of(0, ShardId(0), 0)[1], 10, 8 + 8, 2);
  expect_rank(loads.ranks_of(0, ShardId(0), 1)[0], 9, 4 + 8, 2);
  expect_rank(loads.ranks_of(0, ShardId(0), 1)[1], 11, 4 + 12, 2);
}

TEST(StepLoads, keep_shards_apart_and_leave_idle_experts_out) {
  testing::Problem apart = problem();
  apart.shards = {{1}, {0}};
  const StepLoads loads = loads_of(apart, {{{0, 1}, {2}}}, 4);
  EXPECT_EQ(loads.shards, 2);
  // Shard 0 has slot 1, sample 2: layer 0 holds 5, 0, 0, 5.
  expect_rank(loads.ranks_of(0, ShardId(0), 0)[0], 5, 8, 1);
  expect_rank(loads.ranks_of(0, ShardId(0), 0)[1], 5, 8, 1);
  // Shard 1 has slot 0, samples 0 and 1: layer 0 holds 3, 5, 2, 0, layer 1 0, 1, 4, 5.
  expect_rank(loads.ranks_of(0, ShardId(1), 0)[0], 5, 4 + 4, 2);
  expect_rank(loads.ranks_of(0, ShardId(1), 0)[1], 5, 8, 1);
  expect_rank(loads.ranks_of(0, ShardId(1), 1)[0], 4, 4, 1);
  expect_rank(loads.ranks_of(0, ShardId(1), 1)[1], 6, 4 + 8, 2);
}

TEST(StepLoads, take_a_dummy_as_one_token_without_routes) {
  const StepLoads loads = loads_of(problem(), {{{0, 1, 3}, {2}}}, 4);
  EXPECT_EQ(loads.cells[0].tokens, 6.0);
  EXPECT_EQ(loads.cells[0].squares, 14.0);
  EXPECT_EQ(loads.sent[0], 10);
  expect_rank(loads.ranks_of(0, ShardId(0), 0)[0], 10, 12, 2);
}

// Samples count as multiples of 4: 4 + 4 and 8, so 6 tokens of padding. Rank 0 gets (6·(65536 + 32768) + 32768) >> 16 =
// 9 of them in layer 0; rank 1 none there. In layer 1 rank 1 gets (6·16384 + 32768) >> 16 = 2.
TEST(StepLoads, add_padding_to_ranks_as_the_score_does_and_not_to_tiles) {
  testing::Problem padded = problem();
  padded.constraints.sample_multiple = 4;
  padded.capacity = 16;
  padded.spec.pad_counts = {65536, 0, 32768, 0, 0, 16384, 0, 0};
  const StepLoads loads = loads_of(padded, {{{0, 1}, {2}}}, 4);
  EXPECT_EQ(loads.cells[0].tokens, 5.0);  // the dense side takes real tokens
  EXPECT_EQ(loads.sent[0], 10);
  expect_rank(loads.ranks_of(0, ShardId(0), 0)[0], 10 + 9, 12 + 9, 2);
  expect_rank(loads.ranks_of(0, ShardId(0), 0)[1], 10, 16, 2);
  expect_rank(loads.ranks_of(0, ShardId(0), 1)[0], 9, 12, 2);
  expect_rank(loads.ranks_of(0, ShardId(0), 1)[1], 11 + 2, 16 + 2, 2);
}

TEST(StepLoads, refuse_a_placement_of_another_shape) {
  const testing::Problem of_two = problem();
  const testing::Scene scene(of_two);
  const Layout layout = testing::to_layout({{{0, 1}, {2}}}, of_two);
  for (const Placement& other :
       {Placement::identity(1, 4, 2), Placement::identity(2, 8, 2), Placement::identity(2, 4, 4)}) {
    EXPECT_THAT(refusal<InvalidInput>([&] { step_loads(scene.instance, other, layout, 1); }), HasSubstr("placement"));
  }
}

}  // namespace
}  // namespace routepack
