// SPDX-License-Identifier: Apache-2.0
// How far apart arrangements are, and which of them are chosen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "packing/seeding/profile.h"
#include "packing/seeding/select.h"
#include "support/packing.h"

namespace routepack::testing {
namespace {

/// One slot per inner list; items of one token each.
Profile profile_of(const std::vector<std::vector<std::vector<std::size_t>>>& rows, std::vector<double> sketch = {}) {
  Arrangement arrangement;
  arrangement.rows = static_cast<std::int64_t>(rows.size());
  Items items;
  for (const auto& row : rows) {
    for (const auto& cell : row) {
      arrangement.cells.emplace_back().items = cell;
      items.items.resize(items.items.size() + cell.size());
    }
  }
  return make_profile(items, arrangement, std::move(sketch));
}

TEST(Distance, of_an_arrangement_to_itself_in_another_order_is_nothing) {
  Distance distance;
  const Profile a = profile_of({{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}});
  EXPECT_EQ(distance(a, a), 0.0);
  EXPECT_EQ(distance(a, profile_of({{{7, 6}, {4, 5}}, {{3, 2}, {1, 0}}})), 0.0);
}

TEST(Distance, counts_pairs_that_do_not_share_a_cell_or_a_row_in_both) {
  Distance distance;
  const Profile a = profile_of({{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}});
  // Same rows, and of two times four pairs in cells none is common.
  EXPECT_EQ(distance(a, profile_of({{{0, 2}, {1, 3}}, {{4, 6}, {5, 7}}})), 1.0);
  // Same cells; of 12 pairs in rows on either side, the four of the cells are common: 16 of 20 are not.
  const Profile paired_anew = profile_of({{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}});
  EXPECT_EQ(distance(a, paired_anew), 16.0 / 20.0);
  EXPECT_EQ(distance(paired_anew, a), 16.0 / 20.0);
  // Cells of other sizes: pairs {01, 02, 12, 45, 67, 03…}: of 4 and 6 pairs in cells, 3 are common; rows as before.
  EXPECT_EQ(distance(a, profile_of({{{0, 1, 2}, {3}}, {{4, 5}, {6, 7}}})), (4.0 + 5.0 - 2.0 * 3.0) / (4.0 + 5.0 - 3.0));
}

TEST(Distance, adds_how_far_the_sketches_are_apart) {
  Distance distance;
  const Profile a = profile_of({{{0}}, {{1}}}, {1.0, 2.0, 5.0, 5.0});
  const Profile b = profile_of({{{0}}, {{1}}}, {1.0, 3.0, 5.0, 4.0});
  EXPECT_EQ(distance(a, b), 0.5);
}

TEST(SlicedWasserstein, is_blind_to_the_order_of_rows_and_measures_in_means_of_the_reference) {
  const RowFeatures reference{.rows = 2, .width = 1, .values = {1.0, 3.0}};
  const SlicedWasserstein sketcher(reference, 4);
  const RowFeatures turned{.rows = 2, .width = 1, .values = {3.0, 1.0}};
  EXPECT_EQ(sketcher.sketch(reference), sketcher.sketch(turned));
  // Every row is one mean (2) higher.
  const RowFeatures higher{.rows = 2, .width = 1, .values = {3.0, 5.0}};
  EXPECT_EQ(SlicedWasserstein::distance(sketcher.sketch(reference), sketcher.sketch(higher)), 1.0);
}

TEST(SlicedWasserstein, ignores_features_that_are_never_there) {
  const RowFeatures reference{.rows = 1, .width = 2, .values = {4.0, 0.0}};
  const SlicedWasserstein sketcher(reference, 3);
  for (const double value : sketcher.sketch(reference)) EXPECT_EQ(std::abs(value), 1.0 / std::sqrt(2.0));
}

TEST(RowFeatures, are_token_moments_and_the_busiest_ranks_of_every_layer) {
  // Two slots in two shards: rows {3 + 1, 2} and {4, 4}.
  Problem problem = problem_of_lengths({3, 1, 2, 4, 4}, {{0}, {1}}, 4);
  const Prepared prepared(problem);
  std::vector<Cell> cells(4);
  const auto item_of = [&](std::int32_t sample) {
    const auto at = std::ranges::find_if(prepared.items.items, [&](const Item& item) {
      return prepared.items.samples_of(item).front() == SampleId(sample);
    });
    return static_cast<std::size_t>(at - prepared.items.items.begin());
  };
  const std::vector<std::vector<std::int32_t>> samples = {{0, 1}, {2}, {3}, {4}};
  for (std::size_t c = 0; c < 4; ++c) {
    for (const std::int32_t sample : samples[c]) cells[c].add(item_of(sample), prepared.items.items[item_of(sample)]);
  }
  RowTable table(prepared.scene.instance, *prepared.loads, {}, 2, cells);
  for (std::size_t c = 0; c < 4; ++c) table.join(c, c, table.price_with(c, c));
  const RowFeatures features = row_features(prepared.scene.instance, table);
  ASSERT_EQ(features.width, 6U);
  // Σ t, Σ (Σ t)², largest cell, Σ t², sum over shards of the peak, largest of them.
  EXPECT_EQ(features.values, (std::vector<double>{6, 20, 4, 14, 6, 4, 8, 32, 4, 32, 8, 4}));
}

/// Distances from a table.
Measure measure_by(const std::vector<std::vector<double>>& table) {
  return [table](std::span<const std::size_t> all, std::size_t from) {
    std::vector<double> distance;
    for (const std::size_t n : all) distance.push_back(table[n][from]);
    return distance;
  };
}

Score scored(double primary) {
  return {.max_shard = primary, .total = 0.0, .worst_row = 0.0};
}

TEST(QualityDiversitySelect, starts_with_the_winner_and_goes_where_nobody_is_yet) {
  const std::vector<Score> scores = {scored(10), scored(9), scored(9.5)};
  // Candidate 2 is close to the winner 1, candidate 0 far away.
  const std::vector<std::vector<double>> table = {{0, 1, 1}, {1, 0, 0.1}, {1, 0.1, 0}};
  EXPECT_EQ(quality_diversity_select(scores, 2, 0.0, measure_by(table)), (std::vector<std::size_t>{1, 0}));
  // A gap of 1/9 against one of 1/18: 1 − 20/9 < 0.1 − 20/18.
  EXPECT_EQ(quality_diversity_select(scores, 2, 20.0, measure_by(table)), (std::vector<std::size_t>{1, 2}));
  EXPECT_EQ(quality_diversity_select(scores, 9, 0.0, measure_by(table)), (std::vector<std::size_t>{1, 2, 0}));
}

TEST(QualityDiversitySelect, looks_at_bad_candidates_late) {
  std::vector<Score> scores;
  std::vector<std::vector<double>> table(6, std::vector<double>(6, 0.1));
  for (std::size_t n = 0; n < 6; ++n) scores.push_back(scored(10.0 + static_cast<double>(n)));
  // The worst is the farthest; the second of three choices sees only the best four.
  for (std::size_t n = 0; n < 5; ++n) table[5][n] = table[n][5] = 9.0;
  table[3][0] = 0.2;
  EXPECT_EQ(quality_diversity_select(scores, 3, 0.0, measure_by(table)), (std::vector<std::size_t>{0, 3, 5}));
}

TEST(QualityDiversitySelect, breaks_ties_by_score_then_by_order) {
  const std::vector<Score> scores = {scored(2), scored(1), scored(1), scored(2)};
  const std::vector<std::vector<double>> table(4, std::vector<double>(4, 0.0));
  EXPECT_EQ(quality_diversity_select(scores, 4, 1.0, measure_by(table)), (std::vector<std::size_t>{1, 2, 0, 3}));
}

TEST(CyclicFill, repeats_the_chosen_ones_in_turn) {
  const std::vector<std::size_t> chosen = {4, 2, 7};
  EXPECT_EQ(filled_cyclically(chosen, 5), (std::vector<std::size_t>{4, 2, 7, 4, 2}));
  EXPECT_EQ(filled_cyclically(chosen, 2), (std::vector<std::size_t>{4, 2}));
}

}  // namespace
}  // namespace routepack::testing
