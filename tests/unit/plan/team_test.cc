// SPDX-License-Identifier: Apache-2.0
// Processes that plan together: here threads with a link of their own each, over the network of threads.
#include "exec/team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/in_process.h"
#include "comm/team_link.h"
#include "core/bytes.h"
#include "routepack/plan.h"
#include "routepack/plan_file.h"
#include "support/builders.h"

namespace routepack {
namespace {

using std::chrono::milliseconds;

const CostModel kCost({{.name = "full", .alpha = 12.0, .beta = 3.0}, {.name = "linear", .alpha = 7.0}});

/// What each rank came to: the hash of its plan, or what it threw.
struct Outcome {
  std::string hash;
  std::string error;
  std::int32_t lost = -1;
  bool complete = false;
};

std::string hash_of(const Instance& instance, const PlanParams& params, const Plan& plan) {
  return plan_hash(to_json(make_record(instance, params, plan)));
}

Outcome outcome_of(const Instance& instance, const PlanParams& params, const RunContext& run) {
  Outcome outcome;
  try {
    const auto made = make_plan(instance, params, nullptr, run);
    const Plan& plan = std::get<Plan>(made);
    outcome.hash = hash_of(instance, params, plan);
    outcome.complete = plan.complete;
  } catch (const PeerLost& error) {
    outcome.error = error.what();
    outcome.lost = error.rank();
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  return outcome;
}

/// `body(rank, link)` in a thread per rank.
std::vector<Outcome> with_team(std::int32_t ranks, const std::function<Outcome(std::int32_t, Communicator&)>& body,
                               milliseconds limit = milliseconds(60'000)) {
  InProcessNetwork network(ranks);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (std::int32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      TeamLink link(network.end(r), limit);
      outcomes[static_cast<std::size_t>(r)] = body(r, link);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

Window window_of(std::uint64_t seed, std::int64_t samples = 120) {
  return testing::make_window(testing::random_window(seed, samples, 4, 16, 2, 20, 400));
}

Instance instance_of(const Window& window, Sync sync = Sync::Step) {
  return Instance(window, Topology::megatron({.dp = 4, .ep = 4, .tp = 2}), kCost, 1000, {}, sync);
}

class TeamOf : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TeamOf, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(TeamOf, plans_as_one_process_does) {
  const Window window = window_of(3);
  for (const Effort effort : {Effort::Paper, Effort::Fast, Effort::Default}) {
    for (const Sync sync : {Sync::Step, Sync::Row}) {
      const Instance instance = instance_of(window, sync);
      const PlanParams params{.effort = effort, .threads = 1, .seed = 5};
      const Outcome alone = outcome_of(instance, params, {});
      ASSERT_EQ(alone.error, "");
      for (const Outcome& outcome : with_team(GetParam(), [&](std::int32_t r, Communicator& link) {
             PlanParams mine = params;
             mine.threads = 1 + r % 2;  // threads do not matter either
             return outcome_of(instance, mine, {.team = &link});
           })) {
        EXPECT_EQ(outcome.error, "");
        EXPECT_EQ(outcome.hash, alone.hash);
      }
    }
  }
}

TEST_P(TeamOf, moves_experts_as_one_process_does) {
  // Freely and within budgets, with kicks, which leave traces in who counts as busiest; shards that are weighed.
  const Window window = window_of(9, 80);
  for (const Sync sync : {Sync::Step, Sync::Row}) {
    const Instance instance = instance_of(window, sync);
    for (const char* moves : {"free", "0.2", "price:0.01"}) {
      const PlanParams params{
          .placement = PlacementMode::Joint, .moves = moves, .effort = Effort::Quality, .threads = 1};
      const Outcome alone = outcome_of(instance, params, {});
      ASSERT_EQ(alone.error, "");
      for (const Outcome& outcome : with_team(GetParam(), [&](std::int32_t, Communicator& link) {
             return outcome_of(instance, params, {.team = &link});
           })) {
        EXPECT_EQ(outcome.error, "");
        EXPECT_EQ(outcome.hash, alone.hash) << moves;
      }
    }
  }
}

TEST_P(TeamOf, agrees_on_one_valid_plan_when_a_deadline_cuts_it) {
  const Window window = window_of(4, 400);
  const Instance instance = instance_of(window);
  const PlanParams params{.effort = Effort::Quality, .deadline_ms = 60, .threads = 1};
  const auto outcomes = with_team(
      GetParam(), [&](std::int32_t, Communicator& link) { return outcome_of(instance, params, {.team = &link}); });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.hash, outcomes.front().hash);
    EXPECT_FALSE(outcome.complete);
  }
}

TEST(Team, hears_of_a_stop_that_one_member_asks_for) {
  const Window window = window_of(4, 400);
  const Instance instance = instance_of(window);
  const PlanParams params{.effort = Effort::Quality, .threads = 1};
  std::stop_source stop;
  std::jthread asks([&] {
    std::this_thread::sleep_for(milliseconds(100));
    stop.request_stop();
  });
  const auto outcomes = with_team(3, [&](std::int32_t r, Communicator& link) {
    return outcome_of(instance, params, {.stop = r == 1 ? stop.get_token() : std::stop_token(), .team = &link});
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.hash, outcomes.front().hash);
  }
}

TEST(Team, refuses_to_plan_two_things_at_once) {
  const Window one = window_of(3), other = window_of(4);
  for (const Outcome& outcome : with_team(2, [&](std::int32_t r, Communicator& link) {
         const Instance instance = instance_of(r == 0 ? one : other);
         return outcome_of(instance, {.threads = 1}, {.team = &link});
       })) {
    EXPECT_NE(outcome.error.find("rank 1: found another window"), std::string::npos) << outcome.error;
  }
}

TEST(Team, names_a_member_that_never_comes) {
  const Window window = window_of(3);
  const Instance instance = instance_of(window);
  const auto begin = std::chrono::steady_clock::now();
  const auto outcomes = with_team(
      3,
      [&](std::int32_t r, Communicator& link) {
        if (r == 2) return Outcome{};
        return outcome_of(instance, {.threads = 1}, {.team = &link});
      },
      milliseconds(300));
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(outcomes[r].lost, 2) << outcomes[r].error;
    const bool told = outcomes[r].error.find("rank 2 is lost, as rank") != std::string::npos;
    EXPECT_TRUE(told || outcomes[r].error.find("rank 2 was silent") != std::string::npos) << outcomes[r].error;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Team, passes_on_what_a_piece_threw_elsewhere) {
  SerialExecutor serial;
  for (const Outcome& outcome : with_team(3, [&](std::int32_t, Communicator& link) {
         Team team(serial, link);
         Outcome mine;
         const SharedWork work{.body =
                                   [](std::size_t i) {
                                     if (i == 4) throw InvalidInput("piece 4 does not like it");
                                   },
                               .give = [](std::size_t, std::vector<std::byte>&) {},
                               .take = [](std::size_t, std::span<const std::byte>) {}};
         try {
           team.share(6, work, Deadline());
         } catch (const Error& error) {
           mine.error = error.what();
         }
         return mine;
       })) {
    EXPECT_NE(outcome.error.find("piece 4 does not like it"), std::string::npos) << outcome.error;
  }
}

TEST(Team, gives_every_piece_to_all_once) {
  SerialExecutor serial;
  for (const std::int32_t ranks : {1, 2, 5}) {
    std::atomic<int> bodies = 0;
    with_team(ranks, [&](std::int32_t, Communicator& link) {
      Team team(serial, link);
      std::vector<std::uint64_t> seen(7, 0);
      const SharedWork work{.body =
                                [&](std::size_t i) {
                                  ++bodies;
                                  seen[i] = 100 + i;
                                },
                            .give = [&](std::size_t i, std::vector<std::byte>& out) { put(out, seen[i]); },
                            .take =
                                [&](std::size_t i, std::span<const std::byte> bytes) {
                                  EXPECT_EQ(seen[i], 0U);
                                  seen[i] = ByteReader(bytes).get<std::uint64_t>();
                                }};
      EXPECT_FALSE(team.share(7, work, Deadline()));
      for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], 100 + i);
      EXPECT_EQ(team.agree(1.0 + link.rank()), 1.0);
      return Outcome{};
    });
    EXPECT_EQ(bodies, 7);
  }
}

}  // namespace
}  // namespace routepack
