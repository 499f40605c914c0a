// SPDX-License-Identifier: Apache-2.0
#include "routepack/topology.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "routepack/error.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using testing::refusal;

std::vector<std::vector<int>> shards_of(const Topology& topology) {
  std::vector<std::vector<int>> shards;
  for (const ShardId g : topology.shard_ids()) {
    auto& shard = shards.emplace_back();
    for (const SlotId d : topology.slots_of(g)) shard.push_back(d.value());
  }
  return shards;
}

Topology from(const std::vector<std::vector<int>>& shards, int ranks = 2) {
  std::vector<std::vector<SlotId>> ids;
  for (const auto& shard : shards) ids.emplace_back(shard.begin(), shard.end());
  return Topology::from_shards(ranks, std::move(ids));
}

std::string megatron_said(const MegatronGrid& grid) {
  return refusal<InvalidInput>([&] { Topology::megatron(grid); });
}

std::string shards_said(const std::vector<std::vector<int>>& shards) {
  return refusal<InvalidInput>([&] { from(shards); });
}

TEST(MegatronTopology, puts_ep_consecutive_slots_into_a_shard) {
  const Topology topology = Topology::megatron({.dp = 8, .ep = 4});
  EXPECT_EQ(shards_of(topology), (std::vector<std::vector<int>>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(topology.ranks(), 4);
  EXPECT_EQ(topology.slots(), 8);
  EXPECT_EQ(topology.shard_of(SlotId(5)), ShardId(1));
}

TEST(MegatronTopology, counts_tensor_and_context_ranks_of_a_slot) {
  // 4·2·1 = 8 ranks in all, 8 of them in a shard.
  EXPECT_EQ(shards_of(Topology::megatron({.dp = 4, .ep = 8, .tp = 2})), (std::vector<std::vector<int>>{{0, 1, 2, 3}}));
  EXPECT_EQ(shards_of(Topology::megatron({.dp = 4, .ep = 4, .tp = 2, .cp = 2, .etp = 2})),
            (std::vector<std::vector<int>>{{0, 1}, {2, 3}}));
}

TEST(MegatronTopology, keeps_the_number_of_pipeline_stages) {
  EXPECT_EQ(Topology::megatron({.dp = 2, .ep = 2, .pp = 4}).pipeline_stages(), 4);
}

TEST(MegatronTopology, refuses_a_slot_that_would_span_shards) {
  EXPECT_EQ(megatron_said({.dp = 4, .ep = 6, .tp = 2, .cp = 2}),
            "topology: tp·cp = 2·2 = 4 does not divide etp·ep = 1·6 = 6, so a data-parallel slot would span two "
            "expert-parallel shards; an ep that is a multiple of 4 would do");
}

TEST(MegatronTopology, refuses_an_incomplete_shard) {
  EXPECT_EQ(megatron_said({.dp = 6, .ep = 8, .tp = 2}),
            "topology: etp·ep = 1·8 = 8 does not divide dp·tp·cp = 6·2·1 = 12, so an expert-parallel shard would be "
            "incomplete; a dp that is a multiple of 4 would do");
}

TEST(MegatronTopology, what_a_refusal_proposes_is_accepted) {
  EXPECT_NO_THROW(Topology::megatron({.dp = 4, .ep = 4, .tp = 2, .cp = 2}));
  EXPECT_NO_THROW(Topology::megatron({.dp = 8, .ep = 8, .tp = 2}));
}

TEST(MegatronTopology, refuses_sizes_below_one_and_beyond_the_limit) {
  EXPECT_EQ(megatron_said({.dp = 0, .ep = 1}), "topology: dp: found 0, wanted 1 to 1048576");
  EXPECT_EQ(megatron_said({.dp = 1, .ep = 1, .etp = -2}), "topology: etp: found -2, wanted 1 to 1048576");
  EXPECT_EQ(megatron_said({.dp = 1048577, .ep = 1}), "topology: dp: found 1048577, wanted 1 to 1048576");
}

TEST(MegatronTopology, does_not_overflow_at_the_largest_sizes) {
  const std::int32_t most = 1 << 20;
  const Topology topology = Topology::megatron({.dp = most, .ep = most, .tp = most, .cp = most, .etp = most});
  EXPECT_EQ(topology.shards(), most);
}

TEST(ShardTopology, takes_any_partition) {
  const Topology topology = from({{0, 2}, {3, 1, 4}});
  EXPECT_EQ(topology.slots(), 5);
  EXPECT_EQ(topology.shards(), 2);
  EXPECT_EQ(topology.shard_of(SlotId(2)), ShardId(0));
  EXPECT_EQ(topology.shard_of(SlotId(1)), ShardId(1));
}

TEST(ShardTopology, refuses_shards_that_are_no_partition) {
  EXPECT_EQ(shards_said({{0, 1}, {2, 0}}), "topology: shards[1][1]: slot 0 occurs twice (first in shards[0][0])");
  EXPECT_EQ(shards_said({{0, 1}, {2, 4}}),
            "topology: shards[1][1]: found slot 4, wanted 0 to 3: the shards hold 4 slots");
  EXPECT_EQ(shards_said({{0, -1}}), "topology: shards[0][1]: found slot -1, wanted 0 to 1: the shards hold 2 slots");
}

TEST(ShardTopology, refuses_empty_lists) {
  EXPECT_EQ(shards_said({}), "topology: shards: found an empty list, wanted at least one shard");
  EXPECT_EQ(shards_said({{0}, {}}), "topology: shards[1]: found an empty shard, wanted at least one slot");
}

TEST(ShardTopology, refuses_a_communicator_without_ranks) {
  EXPECT_EQ(refusal<InvalidInput>([] { from({{0}}, 0); }), "topology: ep: found 0, wanted 1 to 1048576");
}

}  // namespace
}  // namespace routepack
