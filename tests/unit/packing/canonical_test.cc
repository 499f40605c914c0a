// SPDX-License-Identifier: Apache-2.0
#include "packing/seeding/canonical.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/packing.h"

namespace routepack::testing {
namespace {

/// Eight samples of one token: item i is sample i.
Prepared eight_samples(std::vector<std::vector<std::int32_t>> shards, bool equal_count = false) {
  Problem problem = problem_of_lengths(std::vector<std::int32_t>(8, 1), std::move(shards), 2);
  problem.constraints.equal_count = equal_count;
  return Prepared(problem);
}

/// cells[r][d] lists items.
Arrangement arrangement_of(const Prepared& prepared, const std::vector<std::vector<std::vector<std::size_t>>>& cells,
                           bool bound = false) {
  Arrangement arrangement;
  arrangement.rows = static_cast<std::int64_t>(cells.size());
  for (const auto& row : cells) {
    for (std::size_t d = 0; d < row.size(); ++d) {
      Cell& cell = arrangement.cells.emplace_back();
      for (const std::size_t index : row[d]) cell.add(index, prepared.items.items[index]);
      if (bound) cell.slot = SlotId(d);
    }
  }
  return arrangement;
}

std::vector<std::vector<std::size_t>> items_of(const Canonical& canonical) {
  std::vector<std::vector<std::size_t>> items;
  for (const Cell& cell : canonical.arrangement.cells) items.push_back(cell.items);
  return items;
}

TEST(Canonicalize, sorts_samples_cells_of_a_shard_and_rows) {
  const Prepared prepared = eight_samples({{0, 1}});
  const Canonical canonical = canonicalize(prepared.scene.instance, prepared.items,
                                           arrangement_of(prepared, {{{7, 6}, {3, 1}}, {{5, 2}, {4, 0}}}));
  EXPECT_EQ(items_of(canonical), (std::vector<std::vector<std::size_t>>{{0, 4}, {2, 5}, {1, 3}, {6, 7}}));
  EXPECT_EQ(canonical.row_order, (std::vector<std::size_t>{1, 0}));
}

TEST(Canonicalize, leaves_cells_of_different_shards_where_they_are) {
  const Prepared prepared = eight_samples({{0, 2}, {1}});
  const auto canonical_of = [&](const std::vector<std::vector<std::vector<std::size_t>>>& cells) {
    return canonicalize(prepared.scene.instance, prepared.items, arrangement_of(prepared, cells));
  };
  const Canonical canonical = canonical_of({{{6, 7}, {2, 3, 4, 5}, {0, 1}}});
  EXPECT_EQ(items_of(canonical), (std::vector<std::vector<std::size_t>>{{0, 1}, {2, 3, 4, 5}, {6, 7}}));
  EXPECT_EQ(canonical.signature, canonical_of({{{1, 0}, {5, 4, 3, 2}, {7, 6}}}).signature);
  EXPECT_NE(canonical.signature, canonical_of({{{2, 3, 4, 5}, {6, 7}, {0, 1}}}).signature);
}

TEST(Canonicalize, tells_apart_where_one_cell_ends_and_the_next_begins) {
  const Prepared prepared = eight_samples({{0, 1}});
  const auto signature_of = [&](const std::vector<std::vector<std::vector<std::size_t>>>& cells) {
    return canonicalize(prepared.scene.instance, prepared.items, arrangement_of(prepared, cells)).signature;
  };
  EXPECT_NE(signature_of({{{0, 1, 2}, {3, 4, 5, 6, 7}}}), signature_of({{{0, 1, 2, 3}, {4, 5, 6, 7}}}));
  EXPECT_NE(signature_of({{{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}}), signature_of({{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}}));
}

TEST(Canonicalize, keeps_cells_at_slots_that_they_are_bound_to) {
  const Prepared prepared = eight_samples({{0, 1}}, true);
  const Canonical canonical = canonicalize(prepared.scene.instance, prepared.items,
                                           arrangement_of(prepared, {{{7, 6}, {3, 1}}, {{5, 2}, {4, 0}}}, true));
  EXPECT_EQ(items_of(canonical), (std::vector<std::vector<std::size_t>>{{2, 5}, {0, 4}, {6, 7}, {1, 3}}));
  EXPECT_EQ(canonical.arrangement.cells[0].slot, SlotId(0));
  EXPECT_EQ(canonical.arrangement.cells[1].slot, SlotId(1));
}

TEST(CanonicalMap, keeps_the_lowest_score_of_each_form_in_the_order_they_came) {
  CanonicalMap map;
  EXPECT_TRUE(map.add(7, {3.0, 1.0, 1.0}, 0));
  EXPECT_TRUE(map.add(9, {2.0, 1.0, 1.0}, 1));
  EXPECT_FALSE(map.add(7, {3.0, 0.5, 1.0}, 2));
  EXPECT_FALSE(map.add(7, {3.0, 0.5, 1.0}, 3));
  EXPECT_FALSE(map.add(9, {2.5, 0.0, 0.0}, 4));
  EXPECT_EQ(map.entries(), (std::vector<std::size_t>{2, 1}));
}

}  // namespace
}  // namespace routepack::testing
