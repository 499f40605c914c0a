// SPDX-License-Identifier: Apache-2.0
#include "routepack/bounds.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/builders.h"

namespace routepack {
namespace {

using testing::make_window;

// Six experts on two ranks of three slots. Hottest first: 10 10 10 1 1 0, total 32, mean 16.
//   j = 0: hottest + two coldest           = 10 + 1 + 0 = 11
//   j = 1: of the three hottest one rank holds two: 10 + 10 + coldest 0 = 20
TEST(LayerBounds, see_that_some_rank_must_hold_two_of_three_hot_experts) {
  const std::vector<std::int64_t> demand = {10, 1, 10, 0, 10, 1};
  const auto bounds = layer_bounds(demand, Placement::identity(1, 6, 2));
  EXPECT_EQ(bounds[0].rank_mean, 16);
  EXPECT_EQ(bounds[0].any_placement, 20);
  EXPECT_EQ(bounds[0].placed_peak, 21);
  EXPECT_FALSE(bounds[0].replication_needed);
}

// Four experts on two ranks: 20 2 1 1, total 24, mean 12; the hottest with the coldest makes 21.
TEST(LayerBounds, say_when_only_copies_could_balance_a_layer) {
  const std::vector<std::int64_t> demand = {1, 20, 2, 1};
  const auto bounds = layer_bounds(demand, Placement::identity(1, 4, 2));
  EXPECT_EQ(bounds[0].any_placement, 21);
  EXPECT_TRUE(bounds[0].replication_needed);
}

// Two samples of 10 tokens, one expert side: dense 2·(1 + 1), expert demand 10 and 10 on the two ranks.
// Shards {0}, {1, 2}: sizes 1 and 2. s = 1: (4 + 1·1)/3; s = 2: (4 + 2·1)/4 = 1.5, below 5/3.
TEST(Bounds, weigh_unequal_shards_by_the_better_of_their_sizes) {
  testing::WindowSpec spec;
  spec.samples = 2;
  spec.layers = 1;
  spec.experts = 2;
  spec.lengths = {10, 10};
  spec.counts = {5, 5, 5, 5};
  const Window window = make_window(std::move(spec));
  const Instance instance(window, Topology::from_shards(2, {{SlotId(0)}, {SlotId(1), SlotId(2)}}),
                          CostModel({{"full", 1.0, 1.0}}, 1.0), 10);
  const auto placement = Placement::identity(1, 2, 2);
  const auto bounds = lower_bounds(instance, placement, aggregate_demand(window));
  EXPECT_DOUBLE_EQ(bounds.fixed_placement, 5.0 / 3.0);
  EXPECT_DOUBLE_EQ(bounds.any_placement, 5.0 / 3.0);

  // Expert work outweighs: W = 10 of weight 9 makes 9. s = 1: (4 + 9)/3; s = 2: (4 + 18)/4 = 5.5.
  const Instance sparse(window, instance.topology, CostModel({{"full", 1.0, 1.0}}, 9.0), 10);
  EXPECT_DOUBLE_EQ(lower_bounds(sparse, placement, aggregate_demand(window)).fixed_placement, 5.5);
}

TEST(Gap, is_infinite_above_a_bound_of_zero) {
  EXPECT_EQ(gap_to(0.0, 0.0), 0.0);
  EXPECT_EQ(gap_to(1.0, 0.0), std::numeric_limits<double>::infinity());
  EXPECT_EQ(gap_to(1.0 + 1e-14, 1.0), 0.0);
  EXPECT_DOUBLE_EQ(gap_to(3.0, 2.0), 0.5);
}

}  // namespace
}  // namespace routepack
