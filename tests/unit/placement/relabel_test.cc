// SPDX-License-Identifier: Apache-2.0
#include "placement/relabel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "routepack/error.h"
#include "support/problems.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::ElementsAre;

// The greedy choice 9 + 1 + 1 = 11 loses to 8 + 8 + 1 = 17.
TEST(BestAssignment, beats_taking_the_largest_first) {
  const std::vector<std::int64_t> values = {9, 8, 0, 8, 1, 0, 0, 0, 1};
  EXPECT_THAT(best_assignment(values, 3), ElementsAre(1, 0, 2));
}

TEST(BestAssignment, of_one_is_that_one) {
  EXPECT_THAT(best_assignment(std::vector<std::int64_t>{-5}, 1), ElementsAre(0));
}

// The same pairs with ranks the other way round: nothing has to move.
TEST(Relabel, undoes_a_renaming_of_ranks) {
  const Placement home = Placement::identity(2, 6, 3);
  const Placement renamed = testing::to_placement({{4, 5, 0, 1, 2, 3}, {3, 2, 5, 4, 1, 0}}, 3);
  EXPECT_EQ(relabel(renamed, home), home);
}

// Groups {0, 2}, {1, 4}, {3, 5} at home on ranks 0 0 | 1 1 | 2 2. Each group has one expert on each of two ranks; three
// of six can stay. The others keep their local slots or fill the gaps.
TEST(Relabel, keeps_as_many_experts_at_home_as_can_be) {
  const Placement home = Placement::identity(1, 6, 3);
  const Placement wanted = testing::to_placement({{3, 5, 0, 2, 1, 4}}, 3);
  const Placement labelled = relabel(wanted, home);
  EXPECT_EQ(count_moves(home, labelled).experts, 3);
  EXPECT_EQ(labelled.rank_of(LayerId(0), ExpertId(0)), labelled.rank_of(LayerId(0), ExpertId(2)));
  EXPECT_EQ(labelled.rank_of(LayerId(0), ExpertId(1)), labelled.rank_of(LayerId(0), ExpertId(4)));
  EXPECT_EQ(count_moves(home, labelled).local, 0);
}

// Two experts on four ranks' nodes {0, 1} and {2, 3}: no group has one at home in its new rank either way, but one
// choice keeps movers in their node.
TEST(Relabel, prefers_moves_inside_a_node_among_equals) {
  const Placement home = Placement::identity(1, 8, 4);
  // Groups {0, 2}, {1, 3}, {4, 6}, {5, 7}: each can sit on either rank of its node and keeps one at home.
  const Placement wanted = testing::to_placement({{4, 6, 5, 7, 0, 2, 1, 3}}, 4);
  const Placement labelled = relabel(wanted, home, 2);
  for (const ExpertId e : IdRange<ExpertId>(8)) {
    EXPECT_EQ(labelled.rank_of(LayerId(0), e).value() / 2, home.rank_of(LayerId(0), e).value() / 2);
  }
  EXPECT_EQ(count_moves(home, labelled).experts, 4);
}

TEST(Relabel, refuses_a_placement_of_another_shape) {
  EXPECT_EQ(testing::refusal<InvalidInput>([] { relabel(Placement::identity(1, 4, 2), Placement::identity(1, 4, 4)); }),
            "placement: found 1 layers of 4 experts on 2 ranks, wanted 1 of 4 on 4");
}

}  // namespace
}  // namespace routepack
