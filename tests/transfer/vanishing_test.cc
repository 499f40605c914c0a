// SPDX-License-Identifier: Apache-2.0
// A rank that dies or stalls at any message: the others come back in time, agree, and tell the truth.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/sabotage.h"
#include "support/transfer_layouts.h"
#include "support/transfer_world.h"

namespace routepack::testing {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kTimeout{600};

struct Scene {
  std::string name;
  GridLayout layout;
  Placement to;
  TransferOptions options;
};

/// Three ranks in a cycle, layer by layer and as one step; and two lanes that repartition.
std::vector<Scene> scenes() {
  const GridLayout three = GridLayout::adam({.ep = 3, .edp = 1}, 2, 1, 16, 12);
  const Placement cycle = placement_of(3, {{2, 0, 1}, {1, 2, 0}});
  const GridLayout lanes = GridLayout::adam({.ep = 2, .edp = 2}, 2, 2, 16, 12);
  const Placement crossed = placement_of(2, {{3, 2, 1, 0}, {2, 1, 0, 3}});
  return {{"3 × 1 by layer", three, cycle, {.timeout = kTimeout}},
          {"3 × 1 by step", three, cycle, {.atomic = Atomic::Step, .timeout = kTimeout}},
          {"2 × 2 by layer", lanes, crossed, {.timeout = kTimeout}}};
}

/// How many messages `rank` sends in a move that works.
std::int64_t messages_of(const Scene& scene, std::int32_t rank) {
  TransferWorld world(scene.layout, identity_of(scene.layout), {.atomic = scene.options.atomic});
  const TamperedTransport& end = world.tamper(rank, [](const TamperedTransport::Message&) {});
  world.expect_complete(world.move(scene.to, 1), scene.to, 1);
  return end.sent();
}

/// First, middle, last; all of them in the long run.
std::vector<std::int64_t> indices_to_try(std::int64_t count) {
  if (std::getenv("ROUTEPACK_LONG") == nullptr) return {0, count / 2, count - 1};
  std::vector<std::int64_t> indices;
  for (std::int64_t index = 0; index < count; ++index) indices.push_back(index);
  return indices;
}

struct Event {
  Scene scene;
  std::int32_t rank;
  std::int64_t index;
  bool dies;
};

/// Whether somebody heard from all ranks, before the end, that everything is written.
bool any_complete(const std::vector<RankResult>& results) {
  return std::any_of(results.begin(), results.end(),
                     [](const RankResult& result) { return result.outcome && result.outcome->complete; });
}

bool all_complete(const std::vector<RankResult>& results) {
  return std::all_of(results.begin(), results.end(),
                     [](const RankResult& result) { return result.outcome && result.outcome->complete; });
}

/// Whether somebody else was taken for dead, as on a machine too busy to give each thread its turn in time.
bool somebody_starved(const std::vector<RankResult>& results, std::int32_t rank) {
  return std::any_of(results.begin(), results.end(), [&](const RankResult& result) {
    if (!result.outcome || &result == &results[static_cast<std::size_t>(rank)]) return false;
    const auto& silent = result.outcome->silent;
    return std::any_of(silent.begin(), silent.end(), [&](std::int32_t other) { return other != rank; });
  });
}

/// The move of a scene in which one rank dies, or sleeps for three timeouts, before one of its messages.
void check(const Event& event) {
  const Scene& scene = event.scene;
  SCOPED_TRACE(scene.name + ", rank " + std::to_string(event.rank) + ", message " + std::to_string(event.index));
  const Placement home = identity_of(scene.layout);
  for (std::int32_t attempt = 0;; ++attempt) {
    TransferOptions options = scene.options;
    options.timeout *= 1 << (2 * attempt);
    TransferWorld world(scene.layout, home, options);
    bool happened = false;
    world.tamper(event.rank, [&](const TamperedTransport::Message& message) {
      if (message.index != event.index) return;
      happened = true;
      if (event.dies) {
        world.network().kill(event.rank);
      } else {
        std::this_thread::sleep_for(3 * options.timeout);
      }
    });
    const auto results = world.move(scene.to, 1);
    ASSERT_TRUE(happened);
    if (somebody_starved(results, event.rank) && !any_complete(results) && attempt < 2) continue;
    if (!event.dies && all_complete(results)) {
      world.expect_complete(results, scene.to, 1);  // it was late, not too late
      return;
    }
    world.expect_truth_after_failure(results, home, scene.to, {event.rank});
    for (std::int32_t other = 0; other < world.ranks(); ++other) {
      const RankResult& result = results[static_cast<std::size_t>(other)];
      if (other == event.rank || !event.dies || !result.outcome || result.outcome->complete) continue;
      const auto& silent = result.outcome->silent;
      EXPECT_EQ(std::count(silent.begin(), silent.end(), event.rank), 1);
      // Who is done has left, and is as silent as the dead.
      if (!any_complete(results)) {
        EXPECT_EQ(result.outcome->failure->rank, event.rank) << result.outcome->failure->what;
      }
    }
    return;
  }
}

TEST(VanishingRank, leaves_survivors_that_agree_and_never_call_done_what_is_not) {
  std::vector<std::function<void()>> cases;
  for (const Scene& scene : scenes()) {
    for (std::int32_t rank = 0; rank < scene.layout.grid().ranks(); ++rank) {
      const std::int64_t count = messages_of(scene, rank);
      ASSERT_GE(count, 8);
      for (const std::int64_t index : indices_to_try(count)) {
        cases.emplace_back([=] { check({scene, rank, index, true}); });
      }
    }
  }
  side_by_side(cases);
}

TEST(StallingRank, is_outlived_by_ranks_that_agree_and_never_lies_when_it_wakes) {
  std::vector<std::function<void()>> cases;
  for (const Scene& scene : scenes()) {
    const std::int32_t rank = scene.layout.grid().ranks() - 1;
    for (const std::int64_t index : indices_to_try(messages_of(scene, rank))) {
      cases.emplace_back([=] { check({scene, rank, index, false}); });
    }
  }
  side_by_side(cases);
}

TEST(StallingRank, that_comes_back_in_time_is_waited_for) {
  const Scene scene = scenes().front();
  for (const std::int64_t index : {0, 5}) {
    TransferWorld world(scene.layout, identity_of(scene.layout), {.timeout = milliseconds(20'000)});
    world.tamper(1, [&](const TamperedTransport::Message& message) {
      if (message.index == index) std::this_thread::sleep_for(milliseconds(100));
    });
    world.expect_complete(world.move(scene.to, 1), scene.to, 1);
  }
}

TEST(VanishingRank, that_never_begins_is_named_by_all_others) {
  const Scene scene = scenes().front();
  TransferWorld world(scene.layout, identity_of(scene.layout), scene.options);
  const auto results = world.move_each([&](std::int32_t rank) {
    if (rank == 2) throw std::runtime_error("has better things to do");
    return world.engine(rank).move(scene.to, 1);
  });
  world.expect_truth_after_failure(results, identity_of(scene.layout), scene.to, {2});
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_EQ(results[rank].outcome->silent, std::vector{2});
    EXPECT_EQ(results[rank].outcome->failure->rank, 2);
    EXPECT_EQ(results[rank].outcome->failure->phase, TransferPhase::Prepare);
  }
  world.expect_holds(identity_of(scene.layout));
}

}  // namespace
}  // namespace routepack::testing
