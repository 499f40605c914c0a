// SPDX-License-Identifier: Apache-2.0
#include "support/transfer_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <thread>
#include <utility>
namespace routepack::testing {
namespace {

std::vector<std::pair<const std::byte*, std::size_t>> addresses_of(const GridLayout& layout, MemoryState& state) {
  std::vector<std::pair<const std::byte*, std::size_t>> all;
  for (const LayerId layer : IdRange<LayerId>(layout.layers())) {
    for (std::int32_t slot = 0; slot < layout.slots(); ++slot) {
      for (std::int32_t tensor = 0; tensor < layout.canary(); ++tensor) {
        const auto bytes = state.bytes(layer, slot, tensor);
        all.emplace_back(bytes.data(), bytes.size());
      }
    }
  }
  return all;
}

}  // namespace

TransferWorld::TransferWorld(GridLayout layout, Placement now, TransferOptions options, MemoryState::Storage storage)
    : layout_(std::move(layout)), start_(std::move(now)), options_(options), network_(layout_.grid().ranks()) {
  for (std::int32_t rank = 0; rank < ranks(); ++rank) {
    states_.push_back(std::make_unique<MemoryState>(layout_, rank, start_, storage));
    engines_.push_back(make_engine(network_.end(rank), state(rank)));
    addresses_.push_back(addresses_of(layout_, state(rank)));
  }
}

TransferWorld::~TransferWorld() = default;

std::unique_ptr<TransferEngine> TransferWorld::make_engine(Transport& transport, RankState& state) const {
  return std::make_unique<TransferEngine>(transport, layout_, state, start_, 0, options_);
}

void TransferWorld::remake(std::int32_t rank, std::unique_ptr<TransferEngine> engine) {
  engines_[static_cast<std::size_t>(rank)] = std::move(engine);
}

TamperedTransport& TransferWorld::tamper(std::int32_t rank, TamperedTransport::Before before) {
  tampered_.push_back(std::make_unique<TamperedTransport>(network_.end(rank), std::move(before)));
  remake(rank, make_engine(*tampered_.back(), state(rank)));
  return *tampered_.back();
}

TamperedMover& TransferWorld::tamper_mover(std::int32_t rank,
                                           std::function<ExpertId(LayerId, std::int32_t, ExpertId)> rename) {
  Transport& end = network_.end(rank);
  auto mover = std::make_unique<TamperedMover>(make_host_mover(end, layout_, state(rank)));
  TamperedMover& tampered = *mover;
  tampered.rename = std::move(rename);
  remake(rank, std::make_unique<TransferEngine>(end, layout_, std::move(mover), start_, 0, options_));
  return tampered;
}

std::vector<RankResult> TransferWorld::move(const Placement& to, std::int64_t epoch) {
  return move_each([&](std::int32_t rank) { return engine(rank).move(to, epoch); });
}

std::vector<RankResult> TransferWorld::move_each(const std::function<TransferOutcome(std::int32_t rank)>& move_of) {
  std::vector<RankResult> results(static_cast<std::size_t>(ranks()));
  std::atomic<std::int32_t> back{0};
  std::vector<std::jthread> threads;
  for (std::int32_t rank = 0; rank < ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      RankResult& result = results[static_cast<std::size_t>(rank)];
      try {
        result.outcome = move_of(rank);
      } catch (const std::exception& error) {
        result.thrown = error.what();
      }
      back.fetch_add(1);
    });
  }
  // A rank that hangs can be neither joined nor left alone: the memory it may write belongs to the test.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (back.load() < ranks()) {
    if (std::chrono::steady_clock::now() > deadline) {
      std::cerr << "a rank does not come back from move()\n";
      std::abort();
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return results;
}

void TransferWorld::expect_holds(const Placement& now) {
  for (std::int32_t rank = 0; rank < ranks(); ++rank) {
    for (const LayerId layer : IdRange<LayerId>(layout_.layers())) EXPECT_EQ(state(rank).wrong(now, layer), "");
    EXPECT_EQ(state(rank).overrun(), "") << "rank " << rank;
    EXPECT_EQ(addresses_of(layout_, state(rank)), addresses_[static_cast<std::size_t>(rank)]) << "rank " << rank;
  }
}

void TransferWorld::expect_complete(const std::vector<RankResult>& results, const Placement& to, std::int64_t epoch) {
  for (std::int32_t rank = 0; rank < ranks(); ++rank) {
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(result.outcome.has_value()) << "rank " << rank << " threw " << result.thrown;
    const TransferOutcome& outcome = *result.outcome;
    EXPECT_TRUE(outcome.complete) << "rank " << rank << ": " << (outcome.failure ? outcome.failure->what : "");
    EXPECT_FALSE(outcome.failure.has_value()) << "rank " << rank << ": " << outcome.failure->what;
    EXPECT_TRUE(outcome.silent.empty());
    EXPECT_EQ(outcome.layers, std::vector(static_cast<std::size_t>(layout_.layers()), LayerState::New));
    EXPECT_TRUE(engine(rank).placement() == to) << "rank " << rank;
    EXPECT_EQ(engine(rank).epoch(), epoch);
    EXPECT_EQ(engine(rank).status().phase, TransferPhase::Done);
  }
  expect_holds(to);
}

void TransferWorld::expect_truth_after_failure(const std::vector<RankResult>& results, const Placement& from,
                                               const Placement& to, const std::vector<std::int32_t>& excepted,
                                               bool torn_allowed) {
  const std::vector<LayerState>* agreed = nullptr;
  for (std::int32_t rank = 0; rank < ranks(); ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    EXPECT_EQ(state(rank).overrun(), "");
    EXPECT_EQ(addresses_of(layout_, state(rank)), addresses_[static_cast<std::size_t>(rank)]);
    const bool is_excepted = std::find(excepted.begin(), excepted.end(), rank) != excepted.end();
    const RankResult& result = results[static_cast<std::size_t>(rank)];
    if (!result.outcome) {
      EXPECT_TRUE(is_excepted) << "threw " << result.thrown;
      continue;
    }
    const TransferOutcome& outcome = *result.outcome;
    EXPECT_NE(outcome.complete, outcome.failure.has_value());
    if (outcome.failure) {
      EXPECT_NE(outcome.failure->what, "");
      EXPECT_EQ(outcome.failure->what.find_first_of("\n\r"), std::string::npos);
    }
    EXPECT_EQ(engine(rank).status().phase, outcome.complete ? TransferPhase::Done : TransferPhase::Failed);
    EXPECT_EQ(engine(rank).status().layers, outcome.layers);
    for (std::int32_t other = 0; outcome.complete && other < ranks(); ++other) {
      for (const LayerId layer : IdRange<LayerId>(layout_.layers())) EXPECT_EQ(state(other).wrong(to, layer), "");
    }
    ASSERT_EQ(outcome.layers.size(), static_cast<std::size_t>(layout_.layers()));
    for (const LayerId layer : IdRange<LayerId>(layout_.layers())) {
      const LayerState says = outcome.layers[layer];
      if (says == LayerState::Torn) {
        EXPECT_TRUE(torn_allowed);
        continue;
      }
      EXPECT_EQ(state(rank).wrong(says == LayerState::New ? to : from, layer), "");
      const Placement& asked = says == LayerState::New ? to : from;
      EXPECT_TRUE(engine(rank).placement().physical_to_logical()[layer] == asked.physical_to_logical()[layer]);
    }
    if (is_excepted) continue;
    if (agreed != nullptr && !torn_allowed) {
      EXPECT_EQ(outcome.layers, *agreed);
    }
    agreed = &outcome.layers;
  }
}

void side_by_side(const std::vector<std::function<void()>>& cases, std::size_t width) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> workers;
  for (std::size_t k = 0; k < std::min(width, cases.size()); ++k) {
    workers.emplace_back([&] {
      for (std::size_t at = next.fetch_add(1); at < cases.size(); at = next.fetch_add(1)) cases[at]();
    });
  }
}

}  // namespace routepack::testing
