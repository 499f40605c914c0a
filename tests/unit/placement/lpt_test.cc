// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "routepack/placement.h"
#include "routepack/score.h"

namespace routepack {
namespace {

using ::testing::ElementsAre;

std::vector<std::int32_t> numbers(const std::vector<ExpertId>& experts) {
  std::vector<std::int32_t> result;
  for (const ExpertId e : experts) result.push_back(e.value());
  return result;
}

// Loads 9 7 6 5 on two ranks of two slots: 9 → rank 0, 7 → rank 1, 6 → rank 1 (13), 5 → rank 0 (14). Expert 2 stays.
TEST(PlaceLpt, gives_each_expert_to_the_least_loaded_rank_with_a_free_slot) {
  const std::vector<std::int64_t> demand = {9, 7, 6, 5};
  const Placement placement = place_lpt(demand, Placement::identity(1, 4, 2));
  EXPECT_THAT(numbers(placement.physical_to_logical()[0]), ElementsAre(0, 3, 2, 1));
  EXPECT_THAT(rank_demand(demand, placement), ElementsAre(14, 13));
}

// All loads equal: experts go to the ranks in turn, by index.
TEST(PlaceLpt, breaks_ties_by_index) {
  const std::vector<std::int64_t> demand = {4, 4, 4, 4};
  const Placement placement = place_lpt(demand, Placement::identity(1, 4, 2));
  EXPECT_EQ(placement.rank_of(LayerId(0), ExpertId(0)), RankId(0));
  EXPECT_EQ(placement.rank_of(LayerId(0), ExpertId(1)), RankId(1));
  EXPECT_EQ(placement.rank_of(LayerId(0), ExpertId(2)), RankId(0));
  EXPECT_EQ(placement.rank_of(LayerId(0), ExpertId(3)), RankId(1));
}

// The hot expert fills rank 0 only with one more expert beside it: slots bind, not load.
TEST(PlaceLpt, fills_every_rank_to_the_last_slot_however_hot) {
  const std::vector<std::int64_t> demand = {100, 1, 1, 1};
  EXPECT_THAT(rank_demand(demand, place_lpt(demand, Placement::identity(1, 4, 2))), ElementsAre(101, 2));
}

}  // namespace
}  // namespace routepack
