// SPDX-License-Identifier: Apache-2.0
// Moves expert state exactly, or not at all. One engine per rank, driven by one thread; docs/data-plane.md has the
// protocol, its states and its failure table.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "routepack/grid_layout.h"
#include "routepack/move_schedule.h"
#include "routepack/placement.h"
#include "routepack/transport.h"

namespace routepack {

/// The trainer's state on one rank. Asked anew at every move, since frameworks offload and reload buffers in between.
class RankState {
 public:
  RankState() = default;
  RankState(const RankState&) = delete;
  RankState& operator=(const RankState&) = delete;
  virtual ~RankState() = default;

  /// The live bytes of a tensor in a local slot: GridLayout::bytes_on of them for this rank's lane (a step: one
  /// element), at the address where the trainer will read them. Never asked for the canary.
  virtual std::span<std::byte> bytes(LayerId layer, std::int32_t local_slot, std::int32_t tensor) = 0;
  /// The gradient of a parameter in a local slot as far as this rank holds one; empty when there is none. Must be all
  /// zero bytes when a move begins.
  virtual std::span<const std::byte> gradient(LayerId layer, std::int32_t local_slot, std::int32_t parameter) = 0;
  virtual TrainerFacts facts() { return {}; }
};

/// What stays whole when something fails.
enum class Atomic {
  Layer,  ///< staging for one layer at a time
  Step,   ///< the whole inflow is staged before anything is written
};
constexpr auto choices(Atomic) {
  return std::array{Choice<Atomic>{"layer", Atomic::Layer}, Choice<Atomic>{"step", Atomic::Step}};
}

struct TransferOptions {
  Route route = Route::TwoHop;
  Atomic atomic = Atomic::Layer;
  std::optional<std::int64_t> staging_limit = {};  ///< bytes; a move that needs more is refused in prepare
  std::chrono::milliseconds timeout{60'000};       ///< without any progress towards the end of a phase
  bool read_back = false;  ///< commit hashes what it wrote and compares (canaries are always read back)
};

enum class TransferPhase { Idle, Prepare, Transfer, Verify, Commit, Confirm, Done, Failed };
constexpr auto choices(TransferPhase) {
  using enum TransferPhase;
  return std::array{Choice<TransferPhase>{"idle", Idle},         Choice<TransferPhase>{"prepare", Prepare},
                    Choice<TransferPhase>{"transfer", Transfer}, Choice<TransferPhase>{"verify", Verify},
                    Choice<TransferPhase>{"commit", Commit},     Choice<TransferPhase>{"confirm", Confirm},
                    Choice<TransferPhase>{"done", Done},         Choice<TransferPhase>{"failed", Failed}};
}

/// What a layer is on this rank.
enum class LayerState {
  Old,   ///< wholly as before
  New,   ///< wholly as asked for
  Torn,  ///< a write failed, and failed again: neither
};
constexpr auto choices(LayerState) {
  using enum LayerState;
  return std::array{Choice<LayerState>{"old", Old}, Choice<LayerState>{"new", New}, Choice<LayerState>{"torn", Torn}};
}

/// Where the first failure was, as all ranks that still talk agreed. −1: does not apply.
struct TransferFailure {
  TransferPhase phase = TransferPhase::Idle;
  std::int32_t rank = -1;
  std::int32_t layer = -1, expert = -1, tensor = -1;
  std::string what;  ///< one line
};

/// Where a rank's state lies and how it travels: host memory over a Transport is one kind (make_host_mover), tensors of
/// a framework over its own messages another. All calls come from the engine's thread; only `advance` may be called
/// often, and none waits.
class StateMover {
 public:
  StateMover() = default;
  StateMover(const StateMover&) = delete;
  StateMover& operator=(const StateMover&) = delete;
  virtual ~StateMover() = default;

  virtual TrainerFacts facts() = 0;
  /// Looks at every tensor that `layers` touch on this rank, once per move: addresses and sizes as the layout says,
  /// gradients of moved slots all zero, equal tensors equal. @returns the first defect, or nothing
  virtual std::optional<TransferFailure> inspect(std::span<const LayerSchedule> layers) = 0;
  /// Over the values of equal tensors (optimizer steps); ranks compare it.
  virtual std::uint64_t equal_digest() = 0;

  /// Which expert each local slot holds, kept beside the state and moved with it. [2]: layer, expert.
  virtual void set_canary(LayerId layer, std::int32_t local_slot, ExpertId expert) = 0;
  virtual std::array<std::int64_t, 2> canary(LayerId layer, std::int32_t local_slot) = 0;

  /// Reserves staging for these layers together, all offsets of one behind those of the one before.
  virtual void stage(std::span<const LayerSchedule> layers) = 0;
  /// Starts all copies of one hop of a staged layer.
  virtual void start(const LayerSchedule& layer, std::int32_t hop) = 0;
  /// Goes on with the hop. @returns whether it is over; `progressed` is set when anything got on. @throws PeerLost
  virtual bool advance(bool& progressed) = 0;
  /// A peer whose message is missing, −1 when none is.
  [[nodiscard]] virtual std::int32_t waiting_for() const = 0;
  /// After a hop: checksum of the bytes that a Local or Send copy read from live state, and of those that a Local or
  /// Receive copy staged. Seeded by the piece (transfer/checksum.h).
  virtual std::uint64_t source_checksum(const LayerSchedule& layer, std::size_t copy) = 0;
  virtual std::uint64_t staged_checksum(const LayerSchedule& layer, std::size_t copy) = 0;
  /// The canary that a final copy staged.
  virtual std::array<std::int64_t, 2> staged_canary(const LayerSchedule& layer, std::size_t copy) = 0;

  /// Writes a staged final copy into the live tensor in place; may be asked for twice.
  /// @throws Error when the tensor is no longer where it was, or cannot be written
  virtual void commit(const LayerSchedule& layer, std::size_t copy, bool read_back) = 0;
  /// Staging is no longer needed.
  virtual void release() = 0;
};

struct TransferOutcome {
  bool complete = false;           ///< every layer is new on every rank, and every rank said so
  std::vector<LayerState> layers;  ///< [L], on this rank
  std::optional<TransferFailure> failure;
  std::vector<std::int32_t> silent;  ///< ranks that did not answer when the others settled what to do
  std::int64_t bytes_sent = 0, bytes_received = 0, bytes_local = 0, staging_bytes = 0;
  double prepare_seconds = 0, transfer_seconds = 0, verify_seconds = 0, commit_seconds = 0, confirm_seconds = 0;
};

/// A move in progress, for a thread that asks.
struct TransferStatus {
  TransferPhase phase = TransferPhase::Idle;
  std::int64_t epoch = 0;
  std::int32_t layer = -1;  ///< being worked on
  std::vector<LayerState> layers;
  std::optional<TransferFailure> failure;
};

/// State in host memory, messages over `transport`; both must outlive it. After a failed move peers may still read the
/// live bytes: they must stay until the transport has been destroyed.
std::unique_ptr<StateMover> make_host_mover(Transport& transport, const GridLayout& layout, RankState& state);

class TransferEngine {
 public:
  /// One engine at a time per transport. All ranks make theirs with the same layout, placement and epoch; move()
  /// compares them. `transport` and `state` must outlive the engine. @throws InvalidInput for shapes that differ, a
  /// grid of another size than the transport
  TransferEngine(Transport& transport, GridLayout layout, RankState& state, Placement placement, std::int64_t epoch,
                 TransferOptions options = {});
  /// The same with other memory or messages than host memory over a Transport.
  TransferEngine(Postbox& postbox, GridLayout layout, std::unique_ptr<StateMover> mover, Placement placement,
                 std::int64_t epoch, TransferOptions options = {});
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  /// Collective: every rank calls it with the same arguments at a step boundary. Returns within about twice the timeout
  /// whatever the others do. After a failure before the first commit everything is as it was; later, the layers say
  /// what they are. When a rank fell silent or a layer is torn the engine is spent: make a new one on a new transport.
  /// @throws InvalidInput for a placement of another shape, or when the engine is spent
  TransferOutcome move(const Placement& to, std::int64_t epoch);

  /// What the slots hold now: after a partial move some layers are new and some old, on every rank alike.
  [[nodiscard]] Placement placement() const;
  [[nodiscard]] std::int64_t epoch() const;
  /// Thread-safe, at any time.
  [[nodiscard]] TransferStatus status() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace routepack
