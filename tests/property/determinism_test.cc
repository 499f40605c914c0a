// SPDX-License-Identifier: Apache-2.0
// The same seed and budget give the same plan for any number of threads and on every instruction set.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <set>
#include <string>
#include <utility>
#include <variant>

#include "routepack/routepack.h"

namespace routepack {
namespace {

std::string hash_of(const Instance& instance, const PlanParams& params) {
  const auto plan = make_plan(instance, params);
  return plan_hash(to_json(make_record(instance, params, std::get<Plan>(plan))));
}

class Grid : public ::testing::TestWithParam<std::pair<Effort, PlacementMode>> {};

TEST_P(Grid, of_threads_and_instruction_sets_gives_one_plan) {
  const Window window = generate_window({.model = "gpt-oss-20b", .prompts = 12, .rollouts = 8, .seed = 3});
  for (const Sync sync : {Sync::Step, Sync::Row}) {
    const Instance instance(window, Topology::megatron({.dp = 8, .ep = 4}),
                            CostModel({{"window", 60.0, 0.0}, {"full", 36.0, 100.0}}), 2048, {}, sync);
    std::set<std::string> hashes;
    for (const auto target : hwy::SupportedAndGeneratedTargets()) {
      hwy::SetSupportedTargetsForTest(target);
      for (const std::int64_t threads : {1, 2, 3, 8}) {
        PlanParams params;
        params.effort = GetParam().first;
        params.placement = GetParam().second;
        params.threads = threads;
        params.seed = 5;
        SearchParams search = params.effective_search();
        search.proposals_per_sample = 60;
        search.levels = 6;
        params.search = search;
        hashes.insert(hash_of(instance, params));
      }
    }
    hwy::SetSupportedTargetsForTest(0);
    EXPECT_EQ(hashes.size(), 1U);
  }
}

INSTANTIATE_TEST_SUITE_P(Determinism, Grid,
                         ::testing::Values(std::pair(Effort::Paper, PlacementMode::Lpt),
                                           std::pair(Effort::Fast, PlacementMode::Sticky),
                                           std::pair(Effort::Default, PlacementMode::Joint)));

TEST(Determinism, threads_that_share_long_rounds_give_one_plan) {
  const Window window = generate_window({.model = "gpt-oss-20b", .prompts = 12, .rollouts = 8, .seed = 3});
  for (const Sync sync : {Sync::Step, Sync::Row}) {
    const Instance instance(window, Topology::megatron({.dp = 4, .ep = 2}), CostModel({{"full", 96.0, 100.0}}), 1024,
                            {}, sync);
    std::set<std::string> hashes;
    for (const std::int64_t threads : {1, 2, 3, 8}) {
      PlanParams params;
      params.placement = PlacementMode::Lpt;
      params.threads = threads;
      SearchParams search;
      search.proposals_per_sample = 400;  // 9600 proposals in each of 4 rounds: enough for threads
      search.levels = 2;
      search.rounds = 2;
      params.search = search;
      hashes.insert(hash_of(instance, params));
    }
    EXPECT_EQ(hashes.size(), 1U);
  }
}

TEST(Determinism, another_seed_gives_another_plan) {
  const Window window = generate_window({.model = "gpt-oss-20b", .prompts = 12, .rollouts = 8, .seed = 3});
  const Instance instance(window, Topology::megatron({.dp = 8, .ep = 8}), CostModel({{"full", 96.0, 100.0}}), 2048);
  std::set<std::string> hashes;
  for (const std::int64_t seed : {0, 1, 2}) {
    PlanParams params;
    params.effort = Effort::Fast;
    params.seed = seed;
    hashes.insert(hash_of(instance, params));
  }
  EXPECT_EQ(hashes.size(), 3U);  // the seed stands in the plan
}

}  // namespace
}  // namespace routepack
