// SPDX-License-Identifier: Apache-2.0
// Whatever is wrong is caught, said on all ranks, and leaves every layer as the states say.
#include "support/sabotage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "routepack/error.h"
#include "support/transfer_layouts.h"
#include "support/transfer_world.h"

namespace routepack::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// Nothing that is refused has to wait for it.
constexpr TransferOptions kQuick{.timeout = std::chrono::seconds(20)};

/// Every kind of message occurs: two hops, transit, local copies. A bucket is a layer, whose fc1 in slot 1 both lanes
/// share.
GridLayout small_grid() {
  return GridLayout::adam({.ep = 3, .edp = 2}, 2, 2, 16, 12, {.bucket_elements = 1152});
}
Placement small_target() {
  return placement_of(3, {{5, 0, 1, 2, 4, 3}, {3, 0, 1, 2, 5, 4}});
}

/// What all ranks say was wrong, when they say the same and everything is as it was.
TransferFailure refused_by_all(TransferWorld& world, const std::vector<RankResult>& results, const Placement& from,
                               const Placement& to) {
  world.expect_truth_after_failure(results, from, to);
  world.expect_holds(from);
  TransferFailure failure;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    if (!results[rank].outcome || !results[rank].outcome->failure) return {};
    const TransferFailure& said = *results[rank].outcome->failure;
    if (rank > 0) {
      EXPECT_EQ(said.what, failure.what) << "rank " << rank;
      EXPECT_EQ(said.phase, failure.phase);
      EXPECT_EQ(said.rank, failure.rank);
    }
    failure = said;
  }
  return failure;
}

/// Nothing was spent: with the sabotage gone the same engines make the move.
void expect_can_move_again(TransferWorld& world, const Placement& to, std::int64_t epoch) {
  world.expect_complete(world.move(to, epoch), to, epoch);
}

class Sabotage : public ::testing::Test {
 protected:
  TransferWorld world{small_grid(), identity_of(small_grid()), kQuick};
  const Placement home = identity_of(small_grid()), to = small_target();
};

TEST_F(Sabotage, is_caught_when_a_moment_tensor_is_left_out_on_one_rank) {
  std::vector<ExpertTensor> tensors(world.layout().tensors().begin(), world.layout().tensors().end() - 1);
  tensors.erase(std::find_if(tensors.begin(), tensors.end(),
                             [](const ExpertTensor& tensor) { return tensor.role == TensorRole::Moment; }));
  const std::vector<ExpertParameter> parameters(world.layout().parameters().begin(), world.layout().parameters().end());
  const GridLayout less = GridLayout::megatron({.ep = 3, .edp = 2}, 2, 2, parameters, tensors);
  MemoryState state(less, 2, home);
  world.remake(2, std::make_unique<TransferEngine>(world.network().end(2), less, state, home, 0, kQuick));
  const auto failure = refused_by_all(world, world.move(to, 1), home, to);
  EXPECT_EQ(failure.phase, TransferPhase::Prepare);
  EXPECT_THAT(failure.what, AllOf(HasSubstr("layout"), HasSubstr("2")));
  world.remake(2, nullptr);
}

TEST_F(Sabotage, is_caught_when_a_tensor_is_absent_or_of_another_size) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{760}}) {
    bool armed = true;
    TransferWorld fresh(small_grid(), home, kQuick);
    TamperedState faulty(fresh.state(3),
                         [&](LayerId layer, std::int32_t slot, std::int32_t tensor, std::span<std::byte> bytes) {
                           return armed && layer == LayerId(1) && slot == 0 && tensor == 0 ? bytes.first(size) : bytes;
                         });
    fresh.remake(3, fresh.make_engine(fresh.network().end(3), faulty));
    const auto failure = refused_by_all(fresh, fresh.move(to, 1), home, to);
    EXPECT_EQ(failure.phase, TransferPhase::Prepare);
    EXPECT_EQ(failure.rank, 3);
    EXPECT_EQ(failure.layer, 1);
    EXPECT_EQ(failure.tensor, 0);
    EXPECT_THAT(failure.what, HasSubstr(fresh.layout().tensors()[0].name));
    armed = false;
    expect_can_move_again(fresh, to, 1);
    fresh.remake(3, nullptr);
  }
}

TEST_F(Sabotage, is_caught_when_two_ranks_have_different_maps_of_where_to_go) {
  const Placement other = swapped(to, 1, 0, 1);
  const auto results =
      world.move_each([&](std::int32_t rank) { return world.engine(rank).move(rank == 4 ? other : to, 1); });
  const auto failure = refused_by_all(world, results, home, to);
  EXPECT_EQ(failure.phase, TransferPhase::Prepare);
  EXPECT_THAT(failure.what, AllOf(HasSubstr("placement"), HasSubstr("rank")));
  expect_can_move_again(world, to, 2);
}

TEST_F(Sabotage, is_caught_when_two_ranks_have_different_maps_of_what_is) {
  const Placement other = swapped(home, 0, 2, 3);
  world.remake(
      5, std::make_unique<TransferEngine>(world.network().end(5), world.layout(), world.state(5), other, 0, kQuick));
  const auto results = world.move(to, 1);
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.outcome.has_value());
    EXPECT_FALSE(result.outcome->complete);
    EXPECT_EQ(result.outcome->failure->phase, TransferPhase::Prepare);
    EXPECT_THAT(result.outcome->failure->what, HasSubstr("placement"));
  }
  world.expect_holds(home);
}

TEST_F(Sabotage, is_caught_when_an_epoch_is_stale) {
  world.remake(
      1, std::make_unique<TransferEngine>(world.network().end(1), world.layout(), world.state(1), home, 7, kQuick));
  const auto failure = refused_by_all(world, world.move(to, 8), home, to);
  EXPECT_EQ(failure.phase, TransferPhase::Prepare);
  EXPECT_THAT(failure.what, AllOf(HasSubstr("epoch"), HasSubstr("7")));
}

TEST_F(Sabotage, is_caught_when_ranks_ask_for_different_epochs) {
  const auto results =
      world.move_each([&](std::int32_t rank) { return world.engine(rank).move(to, rank == 0 ? 41 : 42); });
  const auto failure = refused_by_all(world, results, home, to);
  EXPECT_EQ(failure.phase, TransferPhase::Prepare);
  EXPECT_THAT(failure.what, AllOf(HasSubstr("epoch"), HasSubstr("41"), HasSubstr("42")));
  expect_can_move_again(world, to, 43);
}

TEST_F(Sabotage, is_caught_when_ranks_were_given_different_options) {
  TransferOptions other = kQuick;
  other.route = Route::Direct;
  world.remake(
      0, std::make_unique<TransferEngine>(world.network().end(0), world.layout(), world.state(0), home, 0, other));
  EXPECT_EQ(refused_by_all(world, world.move(to, 1), home, to).phase, TransferPhase::Prepare);
}

TEST_F(Sabotage, is_caught_when_a_gradient_is_not_empty) {
  auto& gradients = world.state(2).gradients;
  gradients.assign(777, std::byte{0});
  gradients[776] = std::byte{1};
  const auto failure = refused_by_all(world, world.move(to, 1), home, to);
  EXPECT_EQ(failure.phase, TransferPhase::Prepare);
  EXPECT_EQ(failure.rank, 2);
  EXPECT_THAT(failure.what, AllOf(HasSubstr("gradient"), HasSubstr("rank 2")));
  gradients[776] = std::byte{0};
  expect_can_move_again(world, to, 1);
}

TEST_F(Sabotage, is_caught_when_the_trainer_says_that_it_must_not_move) {
  const std::vector<TrainerFacts> all = {{.fully_sharded = true},  {.weight_remat = 4},
                                         {.experts_differ = true}, {.replay_in_flight = true},
                                         {.offloaded = true},      {.params_gather_pending = true}};
  for (const TrainerFacts& facts : all) {
    world.state(5).trainer = facts;
    const auto failure = refused_by_all(world, world.move(to, 1), home, to);
    EXPECT_EQ(failure.phase, TransferPhase::Prepare);
    EXPECT_EQ(failure.rank, 5);
    EXPECT_THAT(failure.what, HasSubstr("rank 5"));
  }
  world.state(5).trainer = {};
  expect_can_move_again(world, to, 1);
}

TEST(SabotageOfSteps, is_caught_when_a_counter_differs_between_ranks_or_experts) {
  const GridLayout layout = layouts_of_every_kind({.ep = 3, .edp = 2}, 2, 2)[3].layout;
  const auto tensors = layout.tensors();
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [](const ExpertTensor& tensor) { return tensor.role == TensorRole::Step; });
  const auto step = static_cast<std::int32_t>(found - tensors.begin());
  const Placement home = identity_of(layout), to = small_target();
  for (const bool every_slot : {true, false}) {
    TransferWorld world(layout, home, kQuick);
    for (const std::int32_t layer : {0, 1}) {
      for (std::int32_t slot = 0; slot < (every_slot ? 2 : 1); ++slot) {
        world.state(4).bytes(LayerId(layer), slot, step)[0] ^= std::byte{1};
      }
    }
    const auto results = world.move(to, 1);
    for (const RankResult& result : results) {
      ASSERT_TRUE(result.outcome.has_value());
      EXPECT_FALSE(result.outcome->complete);
      EXPECT_EQ(result.outcome->failure->phase, TransferPhase::Prepare);
      EXPECT_THAT(result.outcome->failure->what, HasSubstr("step"));
      EXPECT_EQ(result.outcome->layers, std::vector(2, LayerState::Old));
    }
    for (const std::int32_t layer : {0, 1}) {
      for (std::int32_t slot = 0; slot < (every_slot ? 2 : 1); ++slot) {
        world.state(4).bytes(LayerId(layer), slot, step)[0] ^= std::byte{1};
      }
    }
    world.expect_holds(home);
    expect_can_move_again(world, to, 1);
  }
}

TEST_F(Sabotage, is_caught_when_a_slot_holds_another_expert_than_the_map_says) {
  world.tamper_mover(0, [](LayerId layer, std::int32_t slot, ExpertId expert) {
    return layer == LayerId(1) && slot == 0 ? ExpertId(1) : expert;
  });
  const auto failure = refused_by_all(world, world.move(to, 1), home, to);
  EXPECT_EQ(failure.rank, 0);
  EXPECT_EQ(failure.layer, 1);
  EXPECT_EQ(failure.tensor, world.layout().canary());
  EXPECT_THAT(failure.what, AllOf(HasSubstr("canary"), HasSubstr("expert 1")));
}

TEST(SabotageOfExperts, is_caught_when_two_of_them_are_exchanged_on_the_way) {
  // Rank 0 sends two experts to rank 1; what it sends as one's states of fc1 are the other's, and the other way round.
  const GridLayout layout = GridLayout::adam({.ep = 2, .edp = 1}, 1, 2, 16, 12);
  const Placement from = identity_of(layout), to = placement_of(2, {{2, 3, 0, 1}});
  TransferWorld world(layout, from, kQuick);
  std::vector<std::int32_t> states;
  for (std::int32_t tensor = 0; tensor < layout.canary(); ++tensor) {
    const ExpertTensor& it = layout.tensors()[static_cast<std::size_t>(tensor)];
    if (it.spread == Spread::Sharded && it.elements == 384) states.push_back(tensor);
  }
  ASSERT_EQ(states.size(), 3U);
  std::size_t seen = 0;  // by expert, then by tensor
  world.tamper(0, [&](const TamperedTransport::Message& message) {
    if (!message.bulk || message.bytes.size() != 4 * 384) return;
    const auto other = world.state(0).bytes(LayerId(0), seen < 3 ? 1 : 0, states[seen % 3]);
    std::copy(other.begin(), other.end(), message.bytes.begin());
    ++seen;
  });
  const auto results = world.move(to, 1);
  EXPECT_EQ(seen, 6U);
  const auto failure = refused_by_all(world, results, from, to);
  EXPECT_EQ(failure.phase, TransferPhase::Verify);
  EXPECT_EQ(failure.rank, 1);
  EXPECT_EQ(failure.expert, 0);
  EXPECT_EQ(failure.tensor, states[0]);
  EXPECT_THAT(failure.what, HasSubstr("checksum"));
}

/// Of each rank's messages in the small move, in order: whether they are bulk.
std::vector<std::vector<bool>> message_kinds() {
  TransferWorld world(small_grid(), identity_of(small_grid()));
  std::vector<std::vector<bool>> bulk(6);
  for (std::int32_t rank = 0; rank < 6; ++rank) {
    auto& mine = bulk[static_cast<std::size_t>(rank)];
    world.tamper(rank, [&mine](const TamperedTransport::Message& message) { mine.push_back(message.bulk); });
  }
  world.expect_complete(world.move(small_target(), 1), small_target(), 1);
  return bulk;
}

TEST(SabotageOfMessages, any_bulk_message_with_one_wrong_byte_is_caught_before_anything_is_written) {
  const auto kinds = message_kinds();
  const Placement home = identity_of(small_grid()), to = small_target();
  const std::size_t stride = std::getenv("ROUTEPACK_LONG") != nullptr ? 1 : 3;
  std::size_t bulk = 0;
  for (const std::int32_t rank : {0, 3}) {
    const std::vector<bool>& mine = kinds[static_cast<std::size_t>(rank)];
    for (std::size_t index = 0; index < mine.size(); ++index) {
      if (!mine[index] || bulk++ % stride != 0) continue;
      SCOPED_TRACE("rank " + std::to_string(rank) + " message " + std::to_string(index));
      TransferWorld world(small_grid(), home, kQuick);
      bool done = false;
      world.tamper(rank, [&](const TamperedTransport::Message& message) {
        if (!message.bulk || message.index != static_cast<std::int64_t>(index)) return;
        message.bytes[message.bytes.size() / 2] ^= std::byte{0x10};
        done = true;
      });
      const auto results = world.move(to, 1);
      ASSERT_TRUE(done);
      world.expect_truth_after_failure(results, home, to);
      for (const RankResult& result : results) {
        EXPECT_EQ(result.outcome->failure->phase, TransferPhase::Verify);
        EXPECT_GE(result.outcome->failure->layer, 0);
        EXPECT_GE(result.outcome->failure->expert, 0);
        EXPECT_GE(result.outcome->failure->tensor, 0);
        EXPECT_TRUE(result.outcome->silent.empty());
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GE(bulk, 12U);
}

/// One move in which a bit of one note is wrong.
void check_note(std::int64_t index, std::size_t where) {
  SCOPED_TRACE("note " + std::to_string(index) + " byte " + std::to_string(where));
  const Placement home = identity_of(small_grid()), to = small_target();
  for (std::int32_t attempt = 0;; ++attempt) {
    TransferWorld world(small_grid(), home, {.timeout = milliseconds(600) * (1 << (2 * attempt))});
    bool done = false;
    world.tamper(1, [&](const TamperedTransport::Message& message) {
      if (message.bulk || message.index != index) return;
      message.bytes[std::min(where, message.bytes.size() - 1)] ^= std::byte{0x01};
      done = true;
    });
    const auto results = world.move(to, 1);
    ASSERT_TRUE(done);
    const bool starved = std::any_of(results.begin(), results.end(), [](const RankResult& result) {
      return result.outcome && !result.outcome->complete && !result.outcome->silent.empty();
    });
    const bool complete = std::any_of(results.begin(), results.end(), [](const RankResult& result) {
      return result.outcome && result.outcome->complete;
    });
    if (complete) {
      // Whoever says that all is done must be right about all ranks.
      for (std::int32_t rank = 0; rank < world.ranks(); ++rank) {
        for (const LayerId layer : IdRange<LayerId>(2)) EXPECT_EQ(world.state(rank).wrong(to, layer), "");
      }
      return;
    }
    if (starved && attempt < 2) continue;  // somebody had no turn in time, or a rank left
    world.expect_truth_after_failure(results, home, to);
    return;
  }
}

TEST(SabotageOfMessages, a_note_with_a_wrong_byte_never_makes_a_torn_move_look_done) {
  const std::vector<bool> kinds = message_kinds()[1];
  const bool every = std::getenv("ROUTEPACK_LONG") != nullptr;
  std::vector<std::function<void()>> cases;
  for (std::size_t index = 0; index < kinds.size(); ++index) {
    if (kinds[index]) continue;
    // The header, the start of the contents, somewhere in them, the end.
    for (const std::size_t where : {std::size_t{9}, std::size_t{24}, std::size_t{40}, std::size_t{9999}}) {
      if (!every && (index + where) % 3 != 0) continue;
      cases.emplace_back([=] { check_note(static_cast<std::int64_t>(index), where); });
    }
  }
  EXPECT_GE(cases.size(), 5U);
  side_by_side(cases);
}

TEST(SabotageOfMessages, a_note_that_is_lost_never_makes_a_torn_move_look_done) {
  // As a torn-down connection would: the note is there, and says nothing that anybody understands.
  const std::vector<bool> kinds = message_kinds()[1];
  std::vector<std::function<void()>> cases;
  for (std::size_t index = 0; index < kinds.size(); ++index) {
    if (!kinds[index]) cases.emplace_back([=] { check_note(static_cast<std::int64_t>(index), 0); });
  }
  side_by_side(cases);
}

TEST_F(Sabotage, of_a_write_in_commit_is_named_with_rank_layer_expert_and_tensor_and_never_complete) {
  TamperedMover& mover = world.tamper_mover(3);
  mover.on_commit = [](const LayerSchedule& layer, const Copy& copy) {
    if (layer.layer == LayerId(1) && copy.piece.tensor == 1) throw IoError("the device is gone");
  };
  const auto results = world.move(to, 1);
  world.expect_truth_after_failure(results, home, to, {}, true);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    const TransferOutcome& outcome = *results[rank].outcome;
    EXPECT_FALSE(outcome.complete);
    EXPECT_EQ(outcome.failure->phase, TransferPhase::Commit);
    EXPECT_EQ(outcome.failure->rank, 3);
    EXPECT_EQ(outcome.failure->layer, 1);
    EXPECT_GE(outcome.failure->expert, 0);
    EXPECT_EQ(outcome.failure->tensor, 1);
    EXPECT_THAT(outcome.failure->what, AllOf(HasSubstr("the device is gone"), HasSubstr("rank 3"), HasSubstr("layer 1"),
                                             HasSubstr(world.layout().tensors()[1].name)));
    EXPECT_EQ(outcome.layers[0], LayerState::New);
    EXPECT_EQ(outcome.layers[1], rank == 3 ? LayerState::Torn : LayerState::New);
  }
}

TEST_F(Sabotage, of_a_write_by_an_exception_that_is_not_ours_is_named_as_well) {
  world.tamper_mover(3).on_commit = [](const LayerSchedule& layer, const Copy&) {
    if (layer.layer == LayerId(1)) throw std::runtime_error("from the framework");
  };
  const auto results = world.move(to, 1);
  world.expect_truth_after_failure(results, home, to, {}, true);
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.outcome.has_value()) << result.thrown;
    EXPECT_EQ(result.outcome->failure->rank, 3);
    EXPECT_EQ(result.outcome->failure->layer, 1);
    EXPECT_THAT(result.outcome->failure->what, HasSubstr("from the framework"));
  }
}

TEST_F(Sabotage, is_caught_when_the_state_cannot_be_had_in_prepare) {
  TamperedState state(world.state(4), [](LayerId, std::int32_t, std::int32_t tensor, std::span<std::byte> bytes) {
    if (tensor == 2) throw std::runtime_error("from the framework");
    return bytes;
  });
  world.remake(4, world.make_engine(world.network().end(4), state));
  const auto failure = refused_by_all(world, world.move(to, 1), home, to);
  EXPECT_EQ(failure.phase, TransferPhase::Prepare);
  EXPECT_EQ(failure.rank, 4);
  EXPECT_THAT(failure.what, HasSubstr("from the framework"));
  world.remake(4, nullptr);
}

TEST_F(Sabotage, of_one_write_that_works_when_tried_again_does_no_harm) {
  std::int32_t throws = 1;
  world.tamper_mover(3).on_commit = [&](const LayerSchedule& layer, const Copy& copy) {
    if (layer.layer == LayerId(0) && copy.piece.tensor == 2 && throws-- > 0) throw IoError("busy");
  };
  expect_can_move_again(world, to, 1);
  EXPECT_LE(throws, 0);
}

TEST_F(Sabotage, is_caught_when_the_state_is_elsewhere_or_cannot_be_had_at_commit) {
  for (const bool throws : {true, false}) {
    TransferWorld fresh(small_grid(), home, kQuick);
    std::vector<std::byte> elsewhere(10'000);
    TransferEngine* engine = nullptr;
    TamperedState state(fresh.state(2), [&](LayerId layer, std::int32_t, std::int32_t tensor,
                                            std::span<std::byte> bytes) {
      if (engine == nullptr || engine->status().phase != TransferPhase::Commit || layer != LayerId(1) || tensor != 3) {
        return bytes;
      }
      if (throws) throw IoError("released meanwhile");
      return std::span(elsewhere).first(bytes.size());
    });
    fresh.remake(2, fresh.make_engine(fresh.network().end(2), state));
    engine = &fresh.engine(2);
    const auto results = fresh.move(to, 1);
    fresh.expect_truth_after_failure(results, home, to, {}, true);
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      const TransferFailure& failure = *results[rank].outcome->failure;
      EXPECT_EQ(failure.phase, TransferPhase::Commit) << failure.what;
      EXPECT_EQ(failure.rank, 2) << failure.what;
      EXPECT_EQ(failure.layer, 1) << failure.what;
      EXPECT_EQ(failure.tensor, 3) << failure.what;
      EXPECT_GE(failure.expert, 0) << failure.what;
    }
    EXPECT_EQ(results[2].outcome->layers[1], LayerState::Torn);
    fresh.remake(2, nullptr);
  }
}

TEST_F(Sabotage, of_a_write_that_was_only_claimed_is_caught_by_the_canary) {
  // A canary that does not arrive leaves the slot saying that it holds another expert: the next move refuses.
  TamperedMover& mover = world.tamper_mover(1);
  const std::int32_t canary = world.layout().canary();
  mover.skip_commit = [canary](const LayerSchedule&, const Copy& copy) { return copy.piece.tensor == canary; };
  world.move(to, 1);
  mover.skip_commit = nullptr;
  const auto results = world.move(home, 2);
  for (const RankResult& result : results) {
    ASSERT_TRUE(result.outcome.has_value());
    EXPECT_FALSE(result.outcome->complete);
    EXPECT_THAT(result.outcome->failure->what, HasSubstr("canary"));
    EXPECT_EQ(result.outcome->failure->rank, 1);
  }
  world.expect_holds(to);
}

TEST_F(Sabotage, spends_the_engine_only_when_something_may_still_be_under_way) {
  world.tamper_mover(3).on_commit = [](const LayerSchedule&, const Copy&) { throw IoError("gone"); };
  const auto results = world.move(to, 1);
  EXPECT_FALSE(results[3].outcome->complete);
  for (const RankResult& again : world.move(to, 2)) EXPECT_THAT(again.thrown, HasSubstr("spent"));
}

}  // namespace
}  // namespace routepack::testing
