// SPDX-License-Identifier: Apache-2.0
#include "routepack/instance.h"

#include <gtest/gtest.h>

#include "support/builders.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using testing::make_window;
using testing::random_window;
using testing::refusal;

class InstanceTest : public ::testing::Test {
 protected:
  const Window window_ = make_window(random_window(1, 6, 2, 6, 2, 3, 9));

  std::string refused(std::int32_t ranks, CostModel cost, std::int64_t capacity, Constraints rules = {}) {
    return refusal<InvalidInput>([&] {
      const Instance instance(window_, Topology::from_shards(ranks, {{SlotId(0)}}), std::move(cost), capacity, rules);
    });
  }
};

TEST_F(InstanceTest, refuses_experts_that_the_ranks_cannot_share) {
  EXPECT_EQ(refused(4, CostModel({}, 1.0), 10), "ep: found 4 ranks for 6 experts, wanted a divisor of 6");
}

TEST_F(InstanceTest, refuses_expert_weights_for_another_number_of_layers) {
  EXPECT_EQ(refused(2, CostModel({}, std::vector<double>{1.0, 1.0, 1.0}), 10),
            "cost: expert: found 3 weights, wanted one number or 2, one per MoE layer");
}

TEST_F(InstanceTest, refuses_a_capacity_whose_square_is_not_exact) {
  EXPECT_EQ(refused(2, CostModel({}, 1.0), kMaxCapacity + 1), "capacity: found 94906266 tokens, wanted 1 to 94906265");
  EXPECT_EQ(refused(2, CostModel({}, 1.0), 0), "capacity: found 0 tokens, wanted 1 to 94906265");
}

TEST_F(InstanceTest, refuses_options_outside_their_bounds) {
  EXPECT_EQ(refused(2, CostModel({}, 1.0), 10, {.row_multiple = 0}), "row_multiple: found 0, wanted 1 to 2147483647");
  EXPECT_EQ(refused(2, CostModel({}, 1.0), 10, {.add_dummies = true}),
            "add_dummies: found without equal_count, wanted both or neither");
}

TEST_F(InstanceTest, refuses_to_pack_demand_without_samples) {
  auto spec = random_window(1, 1, 2, 6, 2, 3, 9);
  spec.kind = WindowKind::Aggregate;
  const Window aggregate = make_window(std::move(spec));
  EXPECT_EQ(refusal<InvalidInput>([&] {
              const Instance instance(aggregate, Topology::from_shards(2, {{SlotId(0)}}), CostModel({}, 1.0), 10);
            }),
            "window kind: found \"aggregate\" (demand without samples), wanted \"samples\" to pack");
}

TEST_F(InstanceTest, rounds_lengths_as_the_cap_counts_them) {
  const Instance instance(window_, Topology::from_shards(2, {{SlotId(0)}}), CostModel({}, 1.0), 100,
                          {.sample_multiple = 8, .cell_multiple = 16});
  EXPECT_EQ(instance.aligned_length(SampleId(0)) % 8, 0);
  EXPECT_EQ(instance.aligned_cell(17), 32);
  EXPECT_EQ(instance.usable_capacity(), 96);
}

}  // namespace
}  // namespace routepack
