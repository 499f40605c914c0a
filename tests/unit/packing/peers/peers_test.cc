// SPDX-License-Identifier: Apache-2.0
#include "packing/peers/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "packing/peers/karmarkar_karp.h"
#include "packing/peers/packers.h"
#include "support/builders.h"

namespace routepack::peers {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

Lengths lengths(std::vector<std::int64_t> of, std::int64_t capacity, std::size_t slots, std::size_t min_rows = 1,
                std::size_t row_multiple = 1) {
  return {
      .of = std::move(of), .capacity = capacity, .slots = slots, .min_rows = min_rows, .row_multiple = row_multiple};
}

SlotCells cells(const Packed& packed) {
  EXPECT_TRUE(std::holds_alternative<SlotCells>(packed)) << std::get<Infeasible>(packed).reason;
  return std::get<SlotCells>(packed);
}

std::string refusal(const Packed& packed) {
  EXPECT_TRUE(std::holds_alternative<Infeasible>(packed));
  return std::holds_alternative<Infeasible>(packed) ? std::get<Infeasible>(packed).reason : "";
}

Bin bin(std::initializer_list<std::size_t> samples) {
  return samples;
}

TEST(DpLocalFfd, packs_every_slot_alone) {
  EXPECT_THAT(cells(dp_local_ffd(lengths({6, 5, 4, 5, 3, 2}, 10, 2))),
              ElementsAre(ElementsAre(bin({0, 2}), bin({4})), ElementsAre(bin({1, 3}), bin({5}))));
}

TEST(DpLocalFfd, splits_the_fullest_cell_of_a_slot_that_needs_fewer) {
  EXPECT_THAT(cells(dp_local_ffd(lengths({6, 2, 4, 2, 3, 2}, 10, 2))),
              ElementsAre(ElementsAre(bin({0, 2}), bin({4})), ElementsAre(bin({1, 5}), bin({3}))));
}

TEST(DpLocalFfd, says_which_slot_size_is_too_small) {
  EXPECT_THAT(refusal(dp_local_ffd(lengths({6, 1, 6}, 10, 2))), HasSubstr("1 samples cannot fill 2 cells"));
}

TEST(ArealFfd, prefers_the_cell_with_the_fewest_samples_then_the_lightest) {
  EXPECT_THAT(cells(areal_ffd(lengths({7, 5, 3, 2, 1}, 10, 1))), ElementsAre(ElementsAre(bin({0, 3}), bin({1, 2, 4}))));
}

TEST(ArealFfd, gives_every_slot_as_many_samples_and_as_many_cells) {
  // Slot 0 gets 9 and 1, slot 1 gets 6 and 5, which do not fit together.
  EXPECT_THAT(cells(areal_ffd(lengths({9, 6, 5, 1}, 10, 2))),
              ElementsAre(ElementsAre(bin({0}), bin({3})), ElementsAre(bin({1}), bin({2}))));
}

TEST(ArealKk, balances_what_the_decreasing_fit_does_not) {
  const std::vector<std::int64_t> of = {8, 7, 6, 5, 4};
  const SlotCells packed = cells(areal_kk(lengths(of, 20, 1)));
  ASSERT_EQ(packed.front().size(), 2U);
  EXPECT_THAT((std::vector{sum_over(packed[0][0], of), sum_over(packed[0][1], of)}), UnorderedElementsAre(16, 14));
}

TEST(ArealKk, takes_the_decreasing_fit_where_a_cell_would_exceed_the_cap) {
  // Two cells of 15 tokens at most hold 8 + 7 and 6 + 5 + 4, and the differencing method finds 16 + 14.
  const Lengths tight = lengths({8, 7, 6, 5, 4}, 15, 1);
  EXPECT_EQ(cells(areal_kk(tight)), cells(areal_ffd(tight)));
}

TEST(VerlKkStrict, adds_cells_until_the_cap_holds) {
  const SlotCells packed = cells(verl_kk_strict(lengths(std::vector<std::int64_t>(8, 7), 8, 1)));
  EXPECT_EQ(packed.front().size(), 8U);
}

TEST(VerlKkStrict, puts_light_cells_at_both_ends) {
  const std::vector<std::int64_t> of = {5, 9, 7, 8, 6};
  const SlotCells packed = cells(verl_kk_strict(lengths(of, 9, 1)));
  std::vector<std::int64_t> sums;
  for (const Bin& cell : packed.front()) sums.push_back(sum_over(cell, of));
  EXPECT_THAT(sums, ElementsAre(5, 7, 9, 8, 6));
}

TEST(KkOnWork, fills_the_fewest_cells_and_passes_the_cap) {
  const std::vector<std::int64_t> of(8, 7);
  const SlotCells packed = cells(kk_on_work(lengths(of, 8, 1)));
  ASSERT_EQ(packed.front().size(), 7U);
  EXPECT_EQ(std::ranges::count_if(packed.front(), [&](const Bin& cell) { return sum_over(cell, of) > 8; }), 1);
}

TEST(NemoMffd, goes_through_the_phases) {
  EXPECT_THAT(cells(nemo_mffd(lengths({40, 31, 25, 21, 15, 12, 5}, 60, 1))),
              ElementsAre(ElementsAre(bin({0, 4, 6}), bin({1, 2}), bin({3, 5}))));
}

TEST(NemoMffd, puts_two_small_samples_beside_a_large_one) {
  // 31 takes the smallest, 11, and the largest that still fits beside it, 18 instead of 13.
  EXPECT_THAT(cells(nemo_mffd(lengths({31, 13, 18, 11}, 60, 1))), ElementsAre(ElementsAre(bin({0, 3, 2}), bin({1}))));
}

TEST(NemoMffd, fills_missing_cells_with_single_samples_of_the_most_crowded) {
  EXPECT_THAT(cells(nemo_mffd(lengths({40, 31, 25, 21, 15, 12, 5}, 60, 2))),
              ElementsAre(ElementsAre(bin({0, 4}), bin({3, 5})), ElementsAre(bin({1, 2}), bin({6}))));
}

TEST(SlimeFirstFit, keeps_the_arrival_order) {
  EXPECT_THAT(cells(slime_first_fit(lengths({5, 6, 4, 3, 2}, 10, 1))),
              ElementsAre(ElementsAre(bin({0, 2}), bin({1, 3}), bin({4}))));
}

TEST(SlimeFirstFit, splits_the_last_of_the_fullest_cells) {
  EXPECT_THAT(cells(slime_first_fit(lengths({5, 6, 4, 3, 2}, 10, 2))),
              ElementsAre(ElementsAre(bin({0, 2}), bin({4})), ElementsAre(bin({1}), bin({3}))));
}

TEST(SlimeFirstFit, leaves_a_sample_over_the_cap_alone) {
  EXPECT_THAT(cells(slime_first_fit(lengths({12, 1, 1}, 10, 1))), ElementsAre(ElementsAre(bin({0}), bin({1, 2}))));
}

TEST(FfdSortedRows, joins_cells_of_similar_sums_of_squares) {
  EXPECT_THAT(cells(ffd_sorted_rows(lengths({6, 6, 2, 2, 2, 2}, 8, 2))),
              ElementsAre(ElementsAre(bin({1, 3}), bin({4, 5})), ElementsAre(bin({0}), bin({2}))));
}

/// The differencing method as it is described: always k sets, searched and sorted in full.
std::vector<Bin> plain_differencing(const std::vector<std::int64_t>& values, std::size_t k, bool equal_counts) {
  struct Set {
    std::int64_t sum = 0;
    Bin items;
    [[nodiscard]] auto key() const { return std::tuple(sum, items.size(), items); }
  };
  const auto falls = [](const Set& a, const Set& b) { return a.key() > b.key(); };
  std::vector<std::size_t> rising(values.size());
  std::iota(rising.begin(), rising.end(), std::size_t{0});
  std::ranges::stable_sort(rising, [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<std::vector<Set>> partials;
  const std::size_t together = equal_counts ? k : 1;
  for (std::size_t at = 0; at < rising.size(); at += together) {
    auto& sets = partials.emplace_back(k);
    for (std::size_t n = 0; n < together; ++n) sets[n] = {values[rising[at + n]], {rising[at + n]}};
    std::ranges::sort(sets, falls);
  }
  const auto key = [](const std::vector<Set>& sets) {
    return std::pair(sets.front().sum - sets.back().sum, sets.front().key());
  };
  while (partials.size() > 1) {
    std::ranges::sort(partials, [&](const auto& a, const auto& b) { return key(a) > key(b); });
    for (std::size_t i = 0; i < k; ++i) {
      const Set& other = partials[1][k - 1 - i];
      partials[0][i].sum += other.sum;
      partials[0][i].items.insert(partials[0][i].items.end(), other.items.begin(), other.items.end());
    }
    std::ranges::sort(partials[0], falls);
    partials.erase(partials.begin() + 1);
  }
  std::vector<Bin> bins;
  for (const Set& set : partials.front()) bins.push_back(set.items);
  return bins;
}

TEST(KarmarkarKarp, does_what_its_plain_description_does) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    const std::size_t k = 1 + random() % 7;
    const std::size_t n = k * (1 + random() % 6);
    std::vector<std::int64_t> values(n);
    for (auto& value : values) value = 1 + static_cast<std::int64_t>(random() % (round % 2 == 0 ? 9 : 1000));
    for (const bool equal_counts : {false, true}) {
      EXPECT_EQ(karmarkar_karp(values, k, equal_counts), plain_differencing(values, k, equal_counts))
          << "round " << round << ", " << n << " values into " << k;
    }
  }
}

TEST(KarmarkarKarp, work_that_does_not_fit_is_refused) {
  std::vector<std::int64_t> work;
  EXPECT_TRUE(work_of(std::vector<std::int64_t>{3, 4}, 10, work));
  EXPECT_THAT(work, ElementsAre(39, 56));
  EXPECT_FALSE(work_of(std::vector<std::int64_t>(2000, 94'000'000), 0, work));
}

/// A window of these lengths whose routes nobody recorded.
Window window_of(std::vector<std::int32_t> of) {
  testing::WindowSpec spec{.samples = static_cast<std::int64_t>(of.size()), .layers = 1, .experts = 8};
  spec.counts.assign(of.size() * 8, 0);
  spec.recorded.assign(of.size(), 0);
  spec.lengths = std::move(of);
  return testing::make_window(std::move(spec));
}

Instance instance_of(const Window& window, std::int32_t slots, std::int64_t capacity, Constraints constraints = {}) {
  return Instance(window, Topology::megatron({.dp = slots, .ep = slots}), CostModel({{"all", 1.0, 1.0}}), capacity,
                  constraints);
}

PeerLayout layout_of(const char* name, const Instance& instance) {
  auto packed = pack_with(*find(name), instance);
  EXPECT_TRUE(std::holds_alternative<PeerLayout>(packed)) << std::get<Infeasible>(packed).reason;
  return std::get<PeerLayout>(std::move(packed));
}

std::int64_t samples_in(const Layout& layout) {
  std::int64_t count = 0;
  for (const auto& row : layout.cells()) {
    for (const auto& cell : row) count += static_cast<std::int64_t>(cell.size());
  }
  return count;
}

TEST(Peers, are_found_by_their_names_and_only_by_them) {
  std::set<std::string_view> names;
  for (const Peer& peer : all()) {
    EXPECT_EQ(find(peer.name), &peer);
    names.insert(peer.name);
  }
  EXPECT_EQ(names.size(), all().size());
  EXPECT_EQ(names.size(), 8U);
  EXPECT_EQ(find("areal"), nullptr);
}

TEST(Peers, take_dummies_out_again) {
  const Window window = window_of({9, 8, 7, 6, 5});
  const PeerLayout made = layout_of("areal-ffd", instance_of(window, 2, 40));
  EXPECT_EQ(made.dummies_removed, 1);
  EXPECT_EQ(made.dummies, 0);
  EXPECT_EQ(samples_in(made.layout), 5);
  EXPECT_EQ(layout_of("nemo-mffd", instance_of(window, 2, 40)).dummies_removed, 0);
}

TEST(Peers, keep_dummies_where_the_instance_wants_them) {
  const Window window = window_of({9, 8, 7, 6, 5});
  const PeerLayout made =
      layout_of("areal-ffd", instance_of(window, 2, 40, {.equal_count = true, .add_dummies = true}));
  EXPECT_EQ(made.dummies, 1);
  EXPECT_EQ(made.dummies_removed, 0);
  EXPECT_EQ(samples_in(made.layout), 6);
}

TEST(Peers, fail_when_only_a_dummy_would_fill_a_cell) {
  const Window window = window_of({10, 10, 10});
  const auto packed = pack_with(*find("areal-ffd"), instance_of(window, 2, 10));
  ASSERT_TRUE(std::holds_alternative<Infeasible>(packed));
  EXPECT_THAT(std::get<Infeasible>(packed).reason, HasSubstr("without samples"));
}

TEST(Peers, count_cells_over_the_cap_on_aligned_lengths) {
  const Window window = window_of({7, 7, 7, 7, 7, 7, 7, 7});
  const PeerLayout plain = layout_of("kk-on-work", instance_of(window, 1, 8));
  EXPECT_EQ(plain.cells_over_cap, 1);
  EXPECT_EQ(plain.fullest_cell, 14);
  const PeerLayout aligned = layout_of("kk-on-work", instance_of(window, 1, 8, {.sample_multiple = 8}));
  EXPECT_EQ(aligned.cells_over_cap, 0);
  EXPECT_EQ(aligned.layout.rows(), 8);
}

TEST(Peers, refuse_what_cannot_be_packed_in_one_sentence) {
  const Window window = window_of({7, 30, 7});
  for (const Peer& peer : all()) {
    const auto few = pack_with(peer, instance_of(window, 4, 50));
    ASSERT_TRUE(std::holds_alternative<Infeasible>(few)) << peer.name;
    EXPECT_THAT(std::get<Infeasible>(few).reason, HasSubstr("3 samples cannot fill 4 cells"));
    const auto narrow = pack_with(peer, instance_of(window, 1, 50, {.cell_multiple = 64}));
    EXPECT_TRUE(std::holds_alternative<Infeasible>(narrow)) << peer.name;
    const auto long_sample = pack_with(peer, instance_of(window, 1, 20));
    const bool takes_it = peer.name == "slime-first-fit" || !peer.keeps_cap;
    EXPECT_EQ(std::holds_alternative<PeerLayout>(long_sample), takes_it) << peer.name;
  }
}

TEST(Peers, keep_the_cap_and_the_rules_about_rows_on_random_windows) {
  std::mt19937_64 random(3);
  int packed_windows = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<std::int32_t> of(24 + random() % 80);
    for (auto& length : of) length = 1 + static_cast<std::int32_t>(random() % 100);
    const Window window = window_of(std::move(of));
    const std::int32_t slots = round % 2 == 0 ? 4 : 2;
    Constraints constraints;
    constraints.min_rows = 1 + static_cast<std::int64_t>(random() % 4);
    constraints.row_multiple = 1 + static_cast<std::int64_t>(random() % 2);
    constraints.sample_multiple = 1 + static_cast<std::int64_t>(random() % 3);
    const Instance instance = instance_of(window, slots, 130 + static_cast<std::int64_t>(random() % 900), constraints);
    for (const Peer& peer : all()) {
      auto packed = pack_with(peer, instance);
      if (std::holds_alternative<Infeasible>(packed)) continue;
      const PeerLayout& made = std::get<PeerLayout>(packed);  // Layout itself refuses lost samples and empty cells
      ++packed_windows;
      EXPECT_EQ(samples_in(made.layout), window.samples());
      EXPECT_GE(made.layout.rows(), constraints.min_rows) << peer.name;
      EXPECT_EQ(made.layout.rows() % constraints.row_multiple, 0) << peer.name;
      if (peer.keeps_cap) {
        EXPECT_EQ(made.cells_over_cap, 0) << peer.name;
        EXPECT_LE(made.fullest_cell, instance.capacity);
      }
    }
  }
  EXPECT_GT(packed_windows, 400);
}

}  // namespace
}  // namespace routepack::peers
