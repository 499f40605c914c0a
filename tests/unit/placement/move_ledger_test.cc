// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "placement/slots.h"
#include "routepack/error.h"
#include "routepack/moves.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::ElementsAre;
using testing::refusal;

const LayerId kLayer(0);

std::array<Relocation, 2> swap(int a, int from, int b, int to) {
  return {Relocation{ExpertId(a), RankId(from), RankId(to)}, Relocation{ExpertId(b), RankId(to), RankId(from)}};
}

// Six experts on three ranks: 0 1 | 2 3 | 4 5.
MoveLedger ledger(const MoveBudget& budget = {}, std::int64_t bytes = 10, std::int32_t ranks_per_node = 0) {
  return MoveLedger(Placement::identity(1, 6, 3), budget, bytes, ranks_per_node);
}

TEST(MoveLedger, counts_both_experts_of_a_swap_and_their_bytes) {
  MoveLedger account = ledger();
  account.record(kLayer, swap(0, 0, 2, 1));
  EXPECT_EQ(account.moved(), 2);
  EXPECT_EQ(account.bytes_out(RankId(0)), 10);
  EXPECT_EQ(account.bytes_in(RankId(0)), 10);
  EXPECT_EQ(account.bytes_in(RankId(1)), 10);
  EXPECT_EQ(account.bytes_in(RankId(2)), 0);
}

TEST(MoveLedger, forgets_an_expert_that_returns_home) {
  MoveLedger account = ledger();
  account.record(kLayer, swap(0, 0, 2, 1));
  // Expert 0 goes home from rank 1, expert 1 takes its place there.
  EXPECT_EQ(account.moved_change(kLayer, swap(0, 1, 1, 0)), 0);
  account.record(kLayer, swap(0, 1, 1, 0));
  EXPECT_EQ(account.moved(), 2);
  // And 2 goes home.
  EXPECT_EQ(account.moved_change(kLayer, swap(2, 0, 1, 1)), -2);
  account.record(kLayer, swap(2, 0, 1, 1));
  EXPECT_EQ(account, ledger());
}

TEST(MoveLedger, charges_bytes_from_home_and_not_from_the_rank_passed_on_the_way) {
  MoveLedger account = ledger();
  account.record(kLayer, swap(0, 0, 2, 1));
  account.record(kLayer, swap(0, 1, 4, 2));
  EXPECT_EQ(account.moved(), 3);
  EXPECT_EQ(account.bytes_out(RankId(0)), 10);
  EXPECT_EQ(account.bytes_out(RankId(1)), 10);
  EXPECT_EQ(account.bytes_in(RankId(1)), 10);  // expert 4
  EXPECT_EQ(account.bytes_in(RankId(2)), 10);  // expert 0
}

// Ranks 0 and 1 share a node, rank 2 is alone.
TEST(MoveLedger, prices_moves_between_nodes_apart) {
  MoveBudget budget;
  budget.add("price:1,5");
  MoveLedger account = ledger(budget, 0, 2);
  EXPECT_EQ(account.price_change(kLayer, swap(0, 0, 2, 1)), 2.0);
  account.record(kLayer, swap(0, 0, 2, 1));
  EXPECT_EQ(account.total_price(), 2.0);
  // 0 goes on to the other node, 4 leaves it.
  EXPECT_EQ(account.price_change(kLayer, swap(0, 1, 4, 2)), -1.0 + 5.0 + 5.0);
  account.record(kLayer, swap(0, 1, 4, 2));
  EXPECT_EQ(account.total_price(), 11.0);
  EXPECT_EQ(account.moved_between_nodes(), 2);
}

TEST(MoveLedger, allows_a_share_to_the_last_expert) {
  MoveBudget budget;
  budget.add("0.5");
  MoveLedger account = ledger(budget, 0);
  account.record(kLayer, swap(0, 0, 2, 1));
  EXPECT_FALSE(account.allows(kLayer, swap(1, 0, 4, 2)));
  EXPECT_TRUE(account.allows(kLayer, swap(0, 1, 4, 2)));  // only 4 is new away from home
  EXPECT_TRUE(account.allows(kLayer, swap(0, 1, 2, 0)));  // both return
  EXPECT_FALSE(account.unlimited());
  EXPECT_TRUE(ledger().unlimited());
}

TEST(MoveLedger, allows_bytes_to_the_last_one) {
  MoveBudget budget;
  budget.add("19B");
  MoveLedger account = ledger(budget);
  EXPECT_TRUE(account.allows(kLayer, swap(0, 0, 2, 1)));
  account.record(kLayer, swap(0, 0, 2, 1));
  EXPECT_FALSE(account.allows(kLayer, swap(1, 0, 4, 2)));  // a second one out of rank 0
  EXPECT_FALSE(account.allows(kLayer, swap(4, 2, 3, 1)));  // a second one into rank 1
  EXPECT_TRUE(account.allows(kLayer, swap(0, 1, 4, 2)));   // one for another in rank 1
  budget = {};
  budget.add("20B");
  account = ledger(budget);
  account.record(kLayer, swap(0, 0, 2, 1));
  EXPECT_TRUE(account.allows(kLayer, swap(1, 0, 4, 2)));
}

TEST(MoveLedger, refuses_a_byte_limit_without_the_bytes_of_an_expert) {
  MoveBudget budget;
  budget.add("1GB");
  EXPECT_EQ(refusal<InvalidInput>([&] { ledger(budget, 0); }),
            "moves: found a limit in bytes, wanted the bytes of one expert with it (expert_bytes, or a model preset)");
}

// Slots 0 1 | 2 3 | 4 5 → experts 2 1 | 4 3 | 0 5: slot 0's expert goes to slot 4, slot 4's to slot 2, slot 2's to 0.
TEST(MoveList, is_one_cycle_for_three_experts_in_a_ring) {
  const Placement from = Placement::identity(1, 6, 3);
  const Placement to = fill_slots(from, std::vector<std::int32_t>{2, 0, 0, 1, 1, 2});
  const MoveList list = list_moves(from, to, 10, 2);
  ASSERT_EQ(list.cycles.size(), 1U);
  EXPECT_THAT(list.cycles[0].slots, ElementsAre(0, 4, 2));
  EXPECT_THAT(list.ranks, ElementsAre(RankTraffic{10, 10}, RankTraffic{10, 10}, RankTraffic{10, 10}));
  EXPECT_EQ(list.between_nodes, 2);
  EXPECT_EQ(list.same_index, 3);
}

TEST(MoveList, of_nothing_is_empty) {
  const Placement home = Placement::identity(2, 6, 3);
  const MoveList list = list_moves(home, home, 10);
  EXPECT_TRUE(list.cycles.empty());
  EXPECT_THAT(list.ranks, ElementsAre(RankTraffic{}, RankTraffic{}, RankTraffic{}));
}

// Loads 9 8 | 1 2, peak 12: rank 0 has 17, and 9 for 1 leaves 9.
TEST(FewestSwaps, is_how_many_of_the_hottest_must_go) {
  const std::vector<std::int64_t> loads = {9, 8, 1, 2};
  const std::vector<std::int32_t> rank_of = {0, 0, 1, 1};
  EXPECT_EQ(fewest_swaps(loads, rank_of, 2, 17), 0);
  EXPECT_EQ(fewest_swaps(loads, rank_of, 2, 12), 1);
  EXPECT_EQ(fewest_swaps(loads, rank_of, 2, 8), 2);
}

TEST(FewestSwaps, is_absent_when_no_swap_reaches_the_peak) {
  const std::vector<std::int64_t> loads = {9, 8, 1, 2};
  const std::vector<std::int32_t> rank_of = {0, 0, 1, 1};
  EXPECT_EQ(fewest_swaps(loads, rank_of, 2, 2), std::nullopt);
  EXPECT_EQ(fewest_swaps(std::vector<std::int64_t>{4}, std::vector<std::int32_t>{0}, 1, 3), std::nullopt);
}

// Experts 0 1 2 | 3 4 5. 0 and 5 change ranks (local slots 0 and 2), so do 2 and 4 (2 and 1): 5 fits slot 2 of rank 0,
// and the others fill what is left.
TEST(FillSlots, keeps_who_stays_and_matches_local_slots_where_it_can) {
  const Placement home = Placement::identity(1, 6, 2);
  const Placement moved = fill_slots(home, std::vector<std::int32_t>{1, 0, 1, 1, 0, 0});
  std::vector<std::int32_t> slots;
  for (const ExpertId e : moved.physical_to_logical()[0]) slots.push_back(e.value());
  EXPECT_THAT(slots, ElementsAre(4, 1, 5, 3, 0, 2));
}

}  // namespace
}  // namespace routepack
