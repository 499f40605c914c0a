// SPDX-License-Identifier: Apache-2.0
// A whole grid inside this process: one thread, one network end, one engine and one rank's state each; and what must
// hold after any move, failed or not.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/in_process.h"
#include "routepack/transfer_engine.h"
#include "support/memory_state.h"
#include "support/sabotage.h"

namespace routepack::testing {

/// What one rank came back with.
struct RankResult {
  std::optional<TransferOutcome> outcome;
  std::string thrown;  ///< what() of what move() threw, if it did
};

class TransferWorld {
 public:
  TransferWorld(GridLayout layout, Placement now, TransferOptions options = {},
                MemoryState::Storage storage = MemoryState::Storage::PerExpert);
  ~TransferWorld();

  [[nodiscard]] const GridLayout& layout() const { return layout_; }
  [[nodiscard]] std::int32_t ranks() const { return layout_.grid().ranks(); }
  InProcessNetwork& network() { return network_; }
  MemoryState& state(std::int32_t rank) { return *states_[static_cast<std::size_t>(rank)]; }
  TransferEngine& engine(std::int32_t rank) { return *engines_[static_cast<std::size_t>(rank)]; }

  /// Takes another engine for a rank than the usual one.
  void remake(std::int32_t rank, std::unique_ptr<TransferEngine> engine);
  /// Gives a rank an engine whose messages `before` sees first.
  TamperedTransport& tamper(std::int32_t rank, TamperedTransport::Before before);
  /// Gives a rank an engine whose mover is tampered with; set its functions before the next move.
  TamperedMover& tamper_mover(std::int32_t rank,
                              std::function<ExpertId(LayerId, std::int32_t, ExpertId)> rename = nullptr);
  /// The usual engine over other ends of the network or another state.
  [[nodiscard]] std::unique_ptr<TransferEngine> make_engine(Transport& transport, RankState& state) const;

  /// Every rank's move(), each in a thread of its own. Fails the test when one has not come back after a minute.
  std::vector<RankResult> move(const Placement& to, std::int64_t epoch);
  std::vector<RankResult> move_each(const std::function<TransferOutcome(std::int32_t rank)>& move_of);

  /// Every layer of every rank is as `now` has it, nothing lies elsewhere, and nothing beside it was touched.
  void expect_holds(const Placement& now);
  /// After a move that was to go from `from` to `to`: what each rank says of each layer is what its bytes are, all
  /// ranks but `excepted` say the same, and engines know which experts they hold. A rank may call the move done only
  /// when it is done on all ranks: when somebody fell silent after it had said that all is written.
  void expect_truth_after_failure(const std::vector<RankResult>& results, const Placement& from, const Placement& to,
                                  const std::vector<std::int32_t>& excepted = {}, bool torn_allowed = false);
  /// All ranks say that all is done, and it is.
  void expect_complete(const std::vector<RankResult>& results, const Placement& to, std::int64_t epoch);

 private:
  const GridLayout layout_;
  const Placement start_;
  const TransferOptions options_;
  InProcessNetwork network_;
  std::vector<std::unique_ptr<MemoryState>> states_;
  std::vector<std::unique_ptr<TamperedTransport>> tampered_;  // outlive the engines
  std::vector<std::unique_ptr<TransferEngine>> engines_;
  std::vector<std::vector<std::pair<const std::byte*, std::size_t>>> addresses_;  // [rank]
};

/// Runs cases that mostly wait for timeouts beside each other, a few at a time.
void side_by_side(const std::vector<std::function<void()>>& cases, std::size_t width = 8);

}  // namespace routepack::testing
