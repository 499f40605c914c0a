// SPDX-License-Identifier: Apache-2.0
#include "routepack/layout.h"

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
using Numbers = std::vector<std::vector<std::vector<int>>>;

Layout make(const Numbers& rows, int slots, int samples) {
  std::vector<std::vector<std::vector<SampleId>>> cells;
  for (const auto& row : rows) {
    auto& cells_of_row = cells.emplace_back();
    for (const auto& cell : row) cells_of_row.emplace_back(cell.begin(), cell.end());
  }
  return Layout(std::move(cells), slots, samples, "p.json: layout");
}

std::string said(const Numbers& rows, int slots, int samples) {
  return refusal<InvalidInput>([&] { make(rows, slots, samples); });
}

TEST(Layout, gives_rows_slots_and_cells) {
  const Layout layout = make({{{0}, {2, 1}}, {{4}, {3}}}, 2, 5);
  EXPECT_EQ(layout.rows(), 2);
  EXPECT_EQ(layout.slots(), 2);
  EXPECT_THAT(layout.cell(RowId(0), SlotId(1)), ElementsAre(SampleId(2), SampleId(1)));
}

TEST(Layout, refuses_a_row_of_another_width) {
  EXPECT_EQ(said({{{0}, {1}}, {{2}}}, 2, 3), "p.json: layout[1]: found 1 cells, wanted 2, one per slot");
  EXPECT_EQ(said({{{0}, {1}}, {{2}, {3}, {4}}}, 2, 5), "p.json: layout[1]: found 3 cells, wanted 2, one per slot");
}

TEST(Layout, refuses_an_empty_cell) {
  EXPECT_EQ(said({{{0}, {}}}, 2, 1), "p.json: layout[0][1]: found an empty cell, wanted at least one sample");
}

TEST(Layout, refuses_a_sample_that_occurs_twice) {
  EXPECT_EQ(said({{{0}, {1}}, {{2}, {3, 1}}}, 2, 4),
            "p.json: layout[1][1][1]: sample 1 occurs twice (first in row 0, slot 1)");
}

TEST(Layout, refuses_a_sample_that_the_window_does_not_have) {
  EXPECT_EQ(said({{{0}, {2}}}, 2, 2), "p.json: layout[0][1][0]: found sample 2, wanted 0 to 1");
  EXPECT_EQ(said({{{0}, {-1}}}, 2, 2), "p.json: layout[0][1][0]: found sample -1, wanted 0 to 1");
}

TEST(Layout, names_the_samples_that_are_missing) {
  EXPECT_EQ(said({{{0}, {2}}}, 2, 4), "p.json: layout: found 2 of 4 samples, missing 1, 3");
  EXPECT_EQ(said({{{0}}}, 1, 9), "p.json: layout: found 1 of 9 samples, missing 1, 2, 3 and 5 more");
}

TEST(Layout, refuses_to_be_empty) {
  EXPECT_EQ(said({}, 2, 2), "p.json: layout: found no rows, wanted at least one");
  EXPECT_EQ(said({{{0}}}, 0, 1), "p.json: layout: found 0 slots and 1 samples, wanted at least one of each");
}

}  // namespace
}  // namespace routepack
