// SPDX-License-Identifier: Apache-2.0
#include "placement/sticky.h"

#include <gtest/gtest.h>

#include "exec/team.h"
#include "routepack/error.h"
#include "routepack/score.h"
#include "support/refusal.h"
#include "support/team.h"

namespace routepack {
namespace {

using testing::refusal;

std::int32_t rank_of(const StickyResult& result, int layer, int expert) {
  return result.placement.rank_of(LayerId(layer), ExpertId(expert)).value();
}

// 9 7 | 1 3 (16 and 4, mean 10): 9 for 3 makes 10 and 10; so would 7 for 1, the lower number goes first.
TEST(PlaceSticky, swaps_half_the_difference_between_two_ranks) {
  const std::vector<std::int64_t> demand = {9, 7, 1, 3};
  MoveLedger ledger(Placement::identity(1, 4, 2), {});
  const StickyResult result = place_sticky(demand, ledger);
  EXPECT_EQ(result.layers[0].end, LayerEnd::Balanced);
  EXPECT_EQ(result.layers[0].peak_before, 16);
  EXPECT_EQ(result.layers[0].peak_after, 10);
  EXPECT_EQ(result.layers[0].swaps, 1);
  EXPECT_EQ(result.layers[0].swaps_needed, 1);
  EXPECT_EQ(rank_of(result, 0, 0), 1);
  EXPECT_EQ(rank_of(result, 0, 3), 0);
  EXPECT_EQ(ledger.moved(), 2);
}

TEST(PlaceSticky, leaves_a_layer_alone_that_is_balanced_enough) {
  const std::vector<std::int64_t> demand = {104, 96, 100, 98};  // 200 and 198, mean 199
  MoveLedger ledger(Placement::identity(1, 4, 2), {});
  const StickyResult result = place_sticky(demand, ledger);
  EXPECT_EQ(result.layers[0].end, LayerEnd::Kept);
  EXPECT_EQ(result.layers[0].swaps_needed, 0);
  EXPECT_EQ(ledger.moved(), 0);
}

// max/mean is 1.04: under 5 % nothing starts, over 3 % it goes down to 1 %.
TEST(PlaceSticky, starts_only_above_the_second_threshold) {
  const std::vector<std::int64_t> demand = {54, 50, 46, 50};
  MoveLedger idle(Placement::identity(1, 4, 2), {});
  EXPECT_EQ(place_sticky(demand, idle, {.epsilon = 0.01, .start_above = 0.05}).layers[0].end, LayerEnd::Kept);
  MoveLedger busy(Placement::identity(1, 4, 2), {});
  EXPECT_EQ(place_sticky(demand, busy, {.epsilon = 0.01, .start_above = 0.03}).layers[0].end, LayerEnd::Balanced);
  EXPECT_EQ(busy.moved(), 2);
}

// The expert of 100 with the coldest beside it is 101 on a mean of 53.
TEST(PlaceSticky, says_when_a_hot_expert_is_the_limit) {
  const std::vector<std::int64_t> demand = {100, 4, 1, 1};
  MoveLedger ledger(Placement::identity(1, 4, 2), {});
  const StickyResult result = place_sticky(demand, ledger, {.epsilon = 0.01});
  EXPECT_EQ(result.layers[0].end, LayerEnd::HotExpert);
  EXPECT_EQ(result.layers[0].peak_after, 101);
}

// Layer 0 gains 6 routed tokens for a swap, layer 1 gains 2; one swap is allowed.
TEST(PlaceSticky, gives_the_moves_to_the_layer_that_gains_more) {
  const std::vector<std::int64_t> demand = {9, 7, 1, 3, 6, 6, 4, 4};
  MoveBudget budget;
  budget.add("0.25");
  MoveLedger ledger(Placement::identity(2, 4, 2), budget);
  const StickyResult result = place_sticky(demand, ledger);
  EXPECT_EQ(result.layers[0].end, LayerEnd::Balanced);
  EXPECT_EQ(result.layers[1].end, LayerEnd::Budget);
  EXPECT_EQ(ledger.moved(), 2);
  // Weights turn it round.
  MoveLedger other(Placement::identity(2, 4, 2), budget);
  const std::vector<double> value = {1.0, 10.0};
  const StickyResult weighted = place_sticky(demand, other, {.token_value = value});
  EXPECT_EQ(weighted.layers[0].end, LayerEnd::Budget);
  EXPECT_EQ(weighted.layers[1].end, LayerEnd::Balanced);
}

// A swap gains 6 and moves two experts.
TEST(PlaceSticky, does_not_pay_more_than_a_swap_gains) {
  const std::vector<std::int64_t> demand = {9, 7, 1, 3};
  for (const auto& [price, moved] : {std::pair{"price:2.9", 2}, std::pair{"price:3", 0}}) {
    MoveBudget budget;
    budget.add(price);
    MoveLedger ledger(Placement::identity(1, 4, 2), budget);
    place_sticky(demand, ledger);
    EXPECT_EQ(ledger.moved(), moved) << price;
  }
}

// Ranks 0 and 1 are equally hot: one swap alone gains nothing, two do.
TEST(PlaceSticky, sees_through_ranks_that_are_equally_hot) {
  const std::vector<std::int64_t> demand = {8, 4, 8, 4, 0, 0, 0, 0};  // 12 | 12 | 0 | 0, mean 6
  MoveLedger ledger(Placement::identity(1, 8, 4), {});
  const StickyResult result = place_sticky(demand, ledger);
  EXPECT_EQ(result.layers[0].peak_after, 8);
  EXPECT_EQ(result.layers[0].swaps, 2);
}

TEST(PlaceSticky, of_one_rank_moves_nothing) {
  MoveLedger ledger(Placement::identity(1, 4, 1), {});
  EXPECT_EQ(place_sticky(std::vector<std::int64_t>{9, 7, 1, 3}, ledger).layers[0].end, LayerEnd::Kept);
}

TEST(PlaceSticky, refuses_thresholds_out_of_order) {
  MoveLedger ledger(Placement::identity(1, 4, 2), {});
  const std::vector<std::int64_t> demand = {9, 7, 1, 3};
  EXPECT_EQ(refusal<InvalidInput>([&] { place_sticky(demand, ledger, {.epsilon = 0.02, .start_above = 0.01}); }),
            "sticky: found epsilon 0.02 and start above 0.01, wanted 0 <= epsilon <= start above");
}

/// Remembers how many pieces it was first asked for.
class FirstCount final : public Executor {
 public:
  void for_each(std::size_t count, const std::function<void(std::size_t)>& body) override {
    if (!first) first = count;
    for (std::size_t i = 0; i < count; ++i) body(i);
  }
  [[nodiscard]] std::size_t width() const override { return 1; }
  std::optional<std::size_t> first;
};

TEST(PlaceSticky, looks_ahead_in_each_layer_in_one_member_of_a_team) {
  constexpr std::int32_t kLayers = 7;
  std::vector<std::int64_t> demand;
  for (std::int64_t l = 0; l < kLayers; ++l) demand.insert(demand.end(), {9 + l, 7, 1, 3});
  const auto looked = testing::in_team(3, [&](TeamLink& link) {
    MoveLedger ledger(Placement::identity(kLayers, 4, 2), {});
    FirstCount local;
    Team team(local, link);
    place_sticky(demand, ledger, {}, team);
    return local.first;
  });
  EXPECT_EQ(looked, (std::vector<std::optional<std::size_t>>{2, 2, 3}));
}

}  // namespace
}  // namespace routepack
