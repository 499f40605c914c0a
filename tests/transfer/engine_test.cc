// SPDX-License-Identifier: Apache-2.0
// Moves that succeed: every byte of every kind of state, there and back, in place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "routepack/error.h"
#include "support/problems.h"
#include "support/property.h"
#include "support/refusal.h"
#include "support/transfer_layouts.h"
#include "support/transfer_world.h"

namespace routepack::testing {
namespace {

using ::testing::HasSubstr;
using Storage = MemoryState::Storage;

/// Random placements one after another, and back to identity, on one set of engines.
void expect_exact_there_and_back(TransferWorld& world, std::mt19937_64& random, std::int32_t moves) {
  std::int64_t epoch = 0;
  for (std::int32_t k = 0; k < moves; ++k) {
    const Placement to = random_placement(random, world.layout());
    ++epoch;
    world.expect_complete(world.move(to, epoch), to, epoch);
    if (::testing::Test::HasFailure()) return;
  }
  const Placement home = identity_of(world.layout());
  ++epoch;
  world.expect_complete(world.move(home, epoch), home, epoch);
}

TEST(TransferEngine, moves_the_experts_of_the_worked_example) {
  TransferWorld world(GridLayout::adam({.ep = 4, .edp = 2}, 1, 2, 16, 12), Placement::identity(1, 8, 4));
  const Placement to = swapped(identity_of(world.layout()), 0, 0, 5);
  const auto results = world.move(to, 1);
  world.expect_complete(results, to, 1);
  // Lane 1 of EP rank 0: both weights of 576 elements, three states of fc1 there; lane 1 there owns fc1[192, 384).
  const TransferOutcome& outcome = *results[4].outcome;
  EXPECT_EQ(outcome.bytes_sent, 2 * 576 + 12 * 384);
  EXPECT_EQ(outcome.bytes_received, 2 * 576 + 12 * 192 + 12 * 192);
  EXPECT_EQ(outcome.bytes_local, 0);
  EXPECT_EQ(results[1].outcome->bytes_sent, 0);
}

struct Way {
  const char* name;
  Route route;
  Atomic atomic;
  Storage storage;
};
constexpr Way kWays[] = {{"two hops, by layer", Route::TwoHop, Atomic::Layer, Storage::PerExpert},
                         {"two hops, by step, stacked", Route::TwoHop, Atomic::Step, Storage::Stacked},
                         {"direct, by layer, stacked", Route::Direct, Atomic::Layer, Storage::Stacked},
                         {"direct, by step", Route::Direct, Atomic::Step, Storage::PerExpert}};

TEST(TransferEngine, is_exact_to_the_bit_for_every_kind_of_state_on_every_way) {
  std::mt19937_64 random(1);
  for (const Way& way : kWays) {
    for (const NamedLayout& it : layouts_of_every_kind({.ep = 3, .edp = 2}, 3, 2)) {
      SCOPED_TRACE(it.name + ", " + way.name);
      TransferWorld world(it.layout, identity_of(it.layout), {.route = way.route, .atomic = way.atomic}, way.storage);
      expect_exact_there_and_back(world, random, 2);
      if (HasFailure()) return;
    }
  }
}

TEST(TransferEngine, is_exact_on_random_grids_up_to_8_by_4_for_random_sequences) {
  for_all(25, [] {
    const ExpertGrid grid{.ep = draw(2, 8), .edp = draw(1, 4)};
    const std::int32_t layers = draw(1, 3), slots = draw(1, 3);
    const Way& way = kWays[draw(0, 3)];
    std::mt19937_64 random(draw_seed());
    const GridLayout layout = random_layout(random, grid, layers, slots);
    const Placement start = draw(0, 1) == 0 ? identity_of(layout) : random_placement(random, layout);
    TransferWorld world(layout, start, {.route = way.route, .atomic = way.atomic, .read_back = draw(0, 1) == 1},
                        way.storage);
    expect_exact_there_and_back(world, random, draw(1, 3));
    RC_ASSERT(!::testing::Test::HasFailure());
  });
}

TEST(TransferEngine, is_exact_on_the_largest_grid_with_lanes_that_split_parameters) {
  std::mt19937_64 random(2);
  const GridLayout layout = GridLayout::adam({.ep = 8, .edp = 4}, 2, 2, 24, 20, {.bucket_elements = 1000});
  for (const Way& way : {kWays[0], kWays[3]}) {
    TransferWorld world(layout, identity_of(layout), {.route = way.route, .atomic = way.atomic}, way.storage);
    expect_exact_there_and_back(world, random, 3);
  }
}

TEST(TransferEngine, cuts_messages_larger_than_a_chunk_and_puts_them_together) {
  // fc1: 2 · 640 · 576 elements; its fp32 states are 2.9 MB, in odd chunks.
  const GridLayout layout = GridLayout::adam({.ep = 2, .edp = 2}, 1, 1, 577, 641);
  for (const Way& way : {kWays[0], kWays[2]}) {
    TransferWorld world(layout, identity_of(layout), {.route = way.route, .read_back = true}, way.storage);
    const Placement to = swapped(identity_of(layout), 0, 0, 1);
    world.expect_complete(world.move(to, 1), to, 1);
  }
}

TEST(TransferEngine, has_nothing_to_do_when_the_placement_stays) {
  TransferWorld world(GridLayout::adam({.ep = 3, .edp = 2}, 2, 1, 16, 12), Placement::identity(2, 3, 3));
  const auto results = world.move(Placement::identity(2, 3, 3), 1);
  world.expect_complete(results, Placement::identity(2, 3, 3), 1);
  for (const RankResult& result : results) {
    EXPECT_EQ(result.outcome->bytes_sent, 0);
    EXPECT_EQ(result.outcome->staging_bytes, 0);
  }
}

TEST(TransferEngine, moves_what_was_forecast_and_stages_no_more) {
  std::mt19937_64 random(3);
  for (const Way& way : kWays) {
    const GridLayout layout = GridLayout::adam({.ep = 4, .edp = 2}, 3, 2, 16, 12, {.bucket_elements = 600});
    TransferWorld world(layout, identity_of(layout), {.route = way.route, .atomic = way.atomic}, way.storage);
    const Placement to = random_placement(random, layout);
    const auto forecast = forecast_traffic(layout, identity_of(layout), to, way.route);
    const auto results = world.move(to, 1);
    world.expect_complete(results, to, 1);
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      const TransferOutcome& outcome = *results[rank].outcome;
      const RankLoad& load = forecast.ranks[rank];
      EXPECT_EQ(outcome.bytes_sent, load.out.across_ep + load.out.within_edp + load.out.across_both);
      EXPECT_EQ(outcome.bytes_received, load.in.across_ep + load.in.within_edp + load.in.across_both);
      EXPECT_EQ(outcome.bytes_local, load.out.local);
      const std::int64_t staged = way.atomic == Atomic::Layer ? load.staging_peak : load.staging_total;
      EXPECT_GE(outcome.staging_bytes, staged);
      EXPECT_LT(outcome.staging_bytes, staged + 64 * layout.layers());
    }
  }
}

TEST(TransferEngine, refuses_a_move_that_does_not_fit_into_the_staging_limit_and_takes_one_that_does) {
  const GridLayout layout = GridLayout::adam({.ep = 3, .edp = 1}, 4, 1, 16, 12);
  const Placement home = identity_of(layout), to = placement_of(3, {{1, 2, 0}, {1, 2, 0}, {1, 2, 0}, {1, 2, 0}});
  const auto load = forecast_traffic(layout, home, to).ranks[0];
  ASSERT_LT(load.staging_peak, load.staging_total);
  for (const auto& [atomic, needed] :
       {std::pair(Atomic::Layer, load.staging_peak), std::pair(Atomic::Step, load.staging_total)}) {
    TransferWorld tight(layout, home, {.atomic = atomic, .staging_limit = needed - 64});
    const auto refused = tight.move(to, 1);
    tight.expect_truth_after_failure(refused, home, to);
    tight.expect_holds(home);
    EXPECT_EQ(refused[0].outcome->failure->phase, TransferPhase::Prepare);
    EXPECT_THAT(refused[0].outcome->failure->what, HasSubstr("staging"));
    TransferWorld roomy(layout, home, {.atomic = atomic, .staging_limit = needed + 64 * layout.layers()});
    roomy.expect_complete(roomy.move(to, 1), to, 1);
  }
}

TEST(TransferEngine, moves_experts_whose_ranks_keep_only_weights_yet) {
  // Before the first optimizer step there are masters and no moments.
  const std::vector<ExpertParameter> parameters = {{"fc", {8, 9}}};
  const GridLayout layout =
      GridLayout::megatron({.ep = 2, .edp = 3}, 2, 2, parameters,
                           {{"fc.weight", TensorRole::Weight, ScalarType::BF16, Spread::Replicated, 72, 0},
                            {"fc.master", TensorRole::Master, ScalarType::F32, Spread::Sharded, 72, 0}});
  std::mt19937_64 random(4);
  TransferWorld world(layout, identity_of(layout));
  expect_exact_there_and_back(world, random, 2);
}

TEST(TransferEngine, tells_another_thread_at_any_time_where_it_is) {
  const GridLayout layout = GridLayout::adam({.ep = 3, .edp = 2}, 6, 2, 32, 24);
  TransferWorld world(layout, identity_of(layout));
  for (std::int32_t rank = 0; rank < world.ranks(); ++rank) {
    EXPECT_EQ(world.engine(rank).status().phase, TransferPhase::Idle);
    EXPECT_EQ(world.engine(rank).status().epoch, 0);
  }
  std::atomic<bool> over{false};
  std::atomic<std::int64_t> asked{0}, unsound{0};
  std::jthread watcher([&] {
    while (!over.load()) {
      for (std::int32_t rank = 0; rank < world.ranks(); ++rank) {
        const TransferStatus status = world.engine(rank).status();
        const bool sound = status.layers.size() == 6 && status.layer >= -1 && status.layer < 6 && !status.failure &&
                           std::count(status.layers.begin(), status.layers.end(), LayerState::Torn) == 0 &&
                           status.phase != TransferPhase::Failed;
        unsound += sound ? 0 : 1;
        ++asked;
      }
    }
  });
  std::mt19937_64 random(5);
  for (std::int64_t epoch = 1; epoch <= 8; ++epoch) {
    const Placement to = random_placement(random, layout);
    world.expect_complete(world.move(to, epoch), to, epoch);
  }
  over.store(true);
  watcher.join();
  EXPECT_GT(asked.load(), 0);
  EXPECT_EQ(unsound.load(), 0);
}

TEST(TransferEngine, shares_a_process_with_another_one) {
  std::vector<std::jthread> worlds;
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    worlds.emplace_back([seed] {
      std::mt19937_64 random(seed);
      const GridLayout layout = random_layout(random, {.ep = 2, .edp = 2}, 2, 2);
      TransferWorld world(layout, identity_of(layout));
      expect_exact_there_and_back(world, random, 4);
    });
  }
}

TEST(TransferEngine, refuses_placements_layouts_and_networks_of_another_shape) {
  const GridLayout layout = GridLayout::adam({.ep = 2, .edp = 1}, 1, 2, 16, 12);
  TransferWorld world(layout, identity_of(layout));
  const auto says = [&](const Placement& to) { return refusal<InvalidInput>([&] { world.engine(0).move(to, 1); }); };
  EXPECT_NE(says(Placement::identity(2, 4, 2)), "");
  EXPECT_NE(says(Placement::identity(1, 6, 2)), "");
  EXPECT_NE(says(Placement::identity(1, 4, 4)), "");
  EXPECT_NE(says(Placement::identity(1, 4, 1)), "");
  const Placement to = swapped(identity_of(layout), 0, 0, 3);
  world.expect_complete(world.move(to, 1), to, 1);  // nobody was spent by that

  InProcessNetwork network(3);
  MemoryState state(layout, 0, identity_of(layout));
  EXPECT_THAT(refusal<InvalidInput>([&] { TransferEngine(network.end(0), layout, state, identity_of(layout), 0); }),
              HasSubstr("3"));
  InProcessNetwork two(2);
  EXPECT_NE(refusal<InvalidInput>([&] { TransferEngine(two.end(0), layout, state, Placement::identity(1, 6, 2), 0); }),
            "");
}

}  // namespace
}  // namespace routepack::testing
