// SPDX-License-Identifier: Apache-2.0
#include "simulate/schedule.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "routepack/error.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::HasSubstr;
using testing::refusal;

/// «F0 F1 B0 …», with the chunk behind a dot when a stage has several.
std::string order_of(const PipelineShape& pipeline, std::int32_t stage, std::int32_t rows) {
  std::string text;
  for (const PassOfRow& pass : stage_order(pipeline, stage, rows)) {
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", pass.pass == Pass::Forward ? 'F' : 'B', pass.row);
    if (pipeline.chunks > 1) text += fmt::format(".{}", pass.chunk);
  }
  return text;
}

TEST(StageOrder, of_1f1b_starts_as_many_rows_as_there_are_stages_behind) {
  const PipelineShape pipeline{.stages = 4};
  EXPECT_EQ(order_of(pipeline, 0, 8), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  EXPECT_EQ(order_of(pipeline, 1, 8), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7");
  EXPECT_EQ(order_of(pipeline, 2, 8), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
  EXPECT_EQ(order_of(pipeline, 3, 8), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
}

TEST(StageOrder, of_fewer_rows_than_stages_is_all_forward_first_on_the_early_ones) {
  const PipelineShape pipeline{.stages = 4};
  EXPECT_EQ(order_of(pipeline, 0, 2), "F0 F1 B0 B1");
  EXPECT_EQ(order_of(pipeline, 1, 2), "F0 F1 B0 B1");
  EXPECT_EQ(order_of(pipeline, 2, 2), "F0 F1 B0 B1");
  EXPECT_EQ(order_of(pipeline, 3, 2), "F0 B0 F1 B1");
  EXPECT_EQ(order_of({.stages = 1}, 0, 3), "F0 B0 F1 B1 F2 B2");
}

// Chunks 0 and 2 on stage 0, 1 and 3 on stage 1; rows in pairs, forward through the early chunk first, backward through
// the late one. Stage 0 is 2·1 + 2 passes ahead, stage 1 the 2 of its second chunk.
TEST(StageOrder, of_an_interleaved_pipeline_takes_rows_in_groups) {
  const PipelineShape pipeline{.stages = 2, .chunks = 2};
  EXPECT_EQ(order_of(pipeline, 0, 4),
            "F0.0 F1.0 F0.2 F1.2 "
            "F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 "
            "B2.2 B3.2 B2.0 B3.0");
  EXPECT_EQ(order_of(pipeline, 1, 4),
            "F0.1 F1.1 "
            "F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 F2.3 B2.3 F3.3 B3.3 "
            "B2.1 B3.1");
}

TEST(StageOrder, takes_every_row_through_each_of_its_chunks_once_each_way_forward_first) {
  for (std::int32_t stages = 1; stages <= 5; ++stages) {
    for (std::int32_t chunks = 1; chunks <= (stages > 1 ? 3 : 1); ++chunks) {
      for (std::int32_t rows = 1; rows <= 15; ++rows) {
        if (chunks > 1 && rows % stages != 0) continue;
        for (std::int32_t stage = 0; stage < stages; ++stage) {
          SCOPED_TRACE(fmt::format("{} stages, {} chunks, {} rows, stage {}", stages, chunks, rows, stage));
          std::map<std::tuple<std::int32_t, std::int32_t>, std::string> passes;
          for (const PassOfRow& pass : stage_order({.stages = stages, .chunks = chunks}, stage, rows)) {
            passes[{pass.row, pass.chunk}] += pass.pass == Pass::Forward ? 'F' : 'B';
          }
          ASSERT_EQ(passes.size(), static_cast<std::size_t>(rows * chunks));
          for (const auto& [row_and_chunk, ways] : passes) {
            const auto& [row, chunk] = row_and_chunk;
            EXPECT_EQ(ways, "FB");
            EXPECT_TRUE(row >= 0 && row < rows);
            EXPECT_TRUE(chunk % stages == stage && chunk < stages * chunks);
          }
        }
      }
    }
  }
}

TEST(StageOrder, refuses_to_interleave_rows_that_make_no_groups_and_says_how_to_plan_them) {
  const std::string said = refusal<InvalidInput>([] { stage_order({.stages = 4, .chunks = 2}, 0, 6); });
  EXPECT_THAT(said, HasSubstr("6 rows"));
  EXPECT_THAT(said, HasSubstr("4 stages"));
  EXPECT_THAT(said, HasSubstr("--row-multiple 4"));
}

}  // namespace
}  // namespace routepack
