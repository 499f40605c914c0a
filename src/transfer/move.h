// SPDX-License-Identifier: Apache-2.0
// One move of one rank from prepare to confirm: the protocol of docs/data-plane.md, one function per state.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "routepack/transfer_engine.h"
#include "transfer/council.h"

namespace routepack {

class Move {
 public:
  struct Maps {
    const Placement& from;
    const Placement& to;
    std::int64_t epoch_now, epoch_next;
  };
  /// Told at every change of state, for TransferStatus.
  using Watcher = std::function<void(TransferPhase, std::int32_t layer, const std::vector<LayerState>&)>;

  /// @throws InvalidInput when the placements do not fit the layout
  Move(Council& council, StateMover& mover, const GridLayout& layout, const Maps& maps, const TransferOptions& options,
       Watcher watcher);

  TransferOutcome run();
  /// Messages may be under way still, or ranks differ: nothing more can be done over this network.
  [[nodiscard]] bool spent() const { return spent_; }

 private:
  /// The layers that are committed together.
  struct Unit {
    std::size_t begin = 0, end = 0;  // in schedule_
  };
  /// All ranks agreed, and nothing is under way.
  struct Refused {
    FailureRecord failure;
  };
  /// This rank leaves on its own account.
  struct Stopped {
    FailureRecord failure;
  };
  using Expected = std::vector<std::optional<std::uint64_t>>;  // [copies of a layer]

  void prepare();
  void transfer(const Unit& unit);
  void verify(const Unit& unit);
  void commit(const Unit& unit);
  void confirm();
  void leave_together(const FailureRecord& failure);
  void settle(FailureRecord failure);
  void hear_out(std::uint32_t round, Standing& standing, std::vector<bool>& answered);

  [[nodiscard]] std::optional<TransferFailure> fitness();
  void run_hop(std::size_t layer, std::int32_t hop);
  void exchange_checksums(std::size_t layer, std::int32_t hop);
  [[nodiscard]] std::optional<TransferFailure> first_defect(const Unit& unit);
  [[nodiscard]] std::optional<TransferFailure> write(const LayerSchedule& layer);
  void vote(std::uint32_t topic, TransferPhase phase, const std::optional<TransferFailure>& mine);
  template <class Step, class Who>
  void wait(const Step& step, const Who& who);
  [[nodiscard]] FailureRecord silence(std::int32_t rank) const;
  [[nodiscard]] TransferFailure failure(std::int32_t layer, std::int32_t expert, std::int32_t tensor,
                                        std::string what) const;
  void enter(TransferPhase phase, std::int32_t layer = -1);
  [[nodiscard]] std::span<const LayerSchedule> layers_of(const Unit& unit) const {
    return std::span(schedule_).subspan(unit.begin, unit.end - unit.begin);
  }

  Council& council_;
  StateMover& mover_;
  const GridLayout& layout_;
  Maps maps_;
  TransferOptions options_;
  Watcher watcher_;
  std::vector<LayerSchedule> schedule_;
  std::vector<Unit> units_;
  std::vector<Expected> expected_;  // [layers of schedule_], what the origins say
  TransferOutcome outcome_;
  std::int32_t decided_ = 0;  // units that everyone voted for, as far as this rank knows
  bool voted_ = false;        // for unit decided_, and its staging is whole
  bool spent_ = false;
  TransferPhase phase_ = TransferPhase::Idle;
  std::int32_t layer_ = -1;
  std::chrono::steady_clock::time_point entered_;
};

}  // namespace routepack
