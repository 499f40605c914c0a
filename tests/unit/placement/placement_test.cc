// SPDX-License-Identifier: Apache-2.0
#include "routepack/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "routepack/error.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::ElementsAre;
using testing::refusal;

Placement make(int ranks, const std::vector<std::vector<int>>& maps) {
  std::vector<std::vector<ExpertId>> ids;
  for (const auto& map : maps) ids.emplace_back(map.begin(), map.end());
  return Placement::from_maps(ranks, std::move(ids), "plan.json");
}

std::string said(int ranks, const std::vector<std::vector<int>>& maps) {
  return refusal<InvalidInput>([&] { make(ranks, maps); });
}

TEST(Placement, identity_puts_expert_e_into_slot_e) {
  const Placement placement = Placement::identity(2, 6, 3);
  EXPECT_EQ(placement.layers(), 2);
  EXPECT_EQ(placement.experts(), 6);
  EXPECT_EQ(placement.slots_per_rank(), 2);
  EXPECT_EQ(placement.slot_of(LayerId(1), ExpertId(5)), 5);
  EXPECT_THAT(placement.ranks_of_layer(LayerId(1)), ElementsAre(0, 0, 1, 1, 2, 2));
}

TEST(Placement, inverts_the_maps) {
  const Placement placement = make(2, {{0, 1, 2, 3}, {3, 0, 2, 1}});
  EXPECT_EQ(placement.slot_of(LayerId(1), ExpertId(3)), 0);
  EXPECT_EQ(placement.slot_of(LayerId(1), ExpertId(1)), 3);
  EXPECT_EQ(placement.rank_of(LayerId(1), ExpertId(3)), RankId(0));
  EXPECT_EQ(placement.rank_of(LayerId(1), ExpertId(1)), RankId(1));
  EXPECT_THAT(placement.ranks_of_layer(LayerId(1)), ElementsAre(0, 1, 1, 0));
}

TEST(Placement, refuses_an_expert_that_occurs_twice) {
  EXPECT_EQ(said(1, {{0, 1}, {0, 1}, {1, 0}, {1, 1}}),
            "plan.json: physical_to_logical[3]: expert 1 occurs twice (slots 0 and 1)");
}

TEST(Placement, refuses_an_expert_that_does_not_exist) {
  EXPECT_EQ(said(1, {{0, 2}}), "plan.json: physical_to_logical[0]: found expert 2 in slot 1, wanted 0 to 1");
  EXPECT_EQ(said(1, {{-1, 0}}), "plan.json: physical_to_logical[0]: found expert -1 in slot 0, wanted 0 to 1");
}

TEST(Placement, refuses_layers_of_different_size) {
  EXPECT_EQ(said(1, {{0, 1}, {0}}),
            "plan.json: physical_to_logical[1]: found 1 experts, wanted 2, as in physical_to_logical[0]");
}

TEST(Placement, refuses_ranks_that_do_not_divide_the_experts) {
  EXPECT_EQ(said(4, {{0, 1, 2, 3, 4, 5}}),
            "plan.json: found 6 experts on ep = 4 ranks, wanted an ep that divides the experts");
  EXPECT_EQ(refusal<InvalidInput>([] { Placement::identity(1, 10, 4); }),
            "placement: found 10 experts on ep = 4 ranks, wanted an ep that divides the experts");
}

TEST(Placement, refuses_empty_shapes) {
  EXPECT_EQ(said(1, {}), "plan.json: physical_to_logical: found no layers, wanted at least one");
  EXPECT_EQ(said(1, {{}}), "plan.json: physical_to_logical[0]: found no experts, wanted at least one");
  EXPECT_EQ(said(0, {{0}}), "plan.json: ep: found 0, wanted at least 1");
  EXPECT_EQ(refusal<InvalidInput>([] { Placement::identity(0, 4, 1); }),
            "placement: found 0 layers of 4 experts, wanted at least one of each");
}

TEST(CountMoves, tells_moves_between_ranks_from_moves_inside_one) {
  // Experts 0 and 1 change slots inside rank 0; 2 and 4 change ranks; 3 and 5 stay.
  const Moves moves = count_moves(make(3, {{0, 1, 2, 3, 4, 5}}), make(3, {{1, 0, 4, 3, 2, 5}}));
  EXPECT_EQ(moves.experts, 2);
  EXPECT_EQ(moves.local, 2);
  EXPECT_DOUBLE_EQ(moves.fraction, 2.0 / 6.0);
}

TEST(CountMoves, finds_none_between_equal_placements) {
  const Moves moves = count_moves(Placement::identity(3, 8, 4), Placement::identity(3, 8, 4));
  EXPECT_EQ(moves.experts, 0);
  EXPECT_EQ(moves.local, 0);
  EXPECT_EQ(moves.fraction, 0.0);
}

TEST(CountMoves, refuses_placements_of_different_shape) {
  EXPECT_EQ(refusal<InvalidInput>([] { count_moves(Placement::identity(1, 4, 2), Placement::identity(2, 4, 4)); }),
            "placement: found 2 layers, 4 experts, ep 4; wanted 1, 4 and 2, as before the move");
}

}  // namespace
}  // namespace routepack
