// SPDX-License-Identifier: Apache-2.0
// Things that go wrong, as decorations of the parts that they go wrong in.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "routepack/transfer_engine.h"

namespace routepack::testing {

/// Hands everything on to another end, after `before` has seen it: each bulk message and each note that this rank
/// sends, counted together from 0, with bytes that may be changed.
class TamperedTransport : public Transport {
 public:
  struct Message {
    std::int64_t index;  ///< among all that this rank has sent
    bool bulk;
    std::int32_t to;
    std::vector<std::byte>& bytes;
  };
  using Before = std::function<void(Message)>;

  TamperedTransport(Transport& inner, Before before) : inner_(inner), before_(std::move(before)) {}

  [[nodiscard]] std::int32_t rank() const override { return inner_.rank(); }
  [[nodiscard]] std::int32_t ranks() const override { return inner_.ranks(); }
  Ticket send(std::int32_t to, std::span<const std::byte> bytes) override {
    auto copy = std::make_unique<std::vector<std::byte>>(bytes.begin(), bytes.end());
    before_({sent_++, true, to, *copy});
    kept_.push_back(std::move(copy));
    return inner_.send(to, *kept_.back());
  }
  Ticket receive(std::int32_t from, std::span<std::byte> bytes) override { return inner_.receive(from, bytes); }
  bool poll(Ticket ticket) override { return inner_.poll(ticket); }
  void post(std::int32_t to, std::span<const std::byte> bytes) override {
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    before_({sent_++, false, to, copy});
    inner_.post(to, copy);
  }
  std::optional<Note> note() override { return inner_.note(); }
  [[nodiscard]] std::int64_t sent() const { return sent_; }

 private:
  Transport& inner_;
  Before before_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> kept_;
  std::int64_t sent_ = 0;
};

/// Another state whose answers go through `change`.
class TamperedState : public RankState {
 public:
  using Change =
      std::function<std::span<std::byte>(LayerId, std::int32_t local_slot, std::int32_t tensor, std::span<std::byte>)>;
  TamperedState(RankState& inner, Change change) : inner_(inner), change_(std::move(change)) {}

  std::span<std::byte> bytes(LayerId layer, std::int32_t local_slot, std::int32_t tensor) override {
    return change_(layer, local_slot, tensor, inner_.bytes(layer, local_slot, tensor));
  }
  std::span<const std::byte> gradient(LayerId layer, std::int32_t local_slot, std::int32_t parameter) override {
    return inner_.gradient(layer, local_slot, parameter);
  }
  TrainerFacts facts() override { return inner_.facts(); }

 private:
  RankState& inner_;
  Change change_;
};

/// Another mover that can be made to lie or fail.
class TamperedMover : public StateMover {
 public:
  explicit TamperedMover(std::unique_ptr<StateMover> inner) : inner_(std::move(inner)) {}

  /// Called before each write of commit; what it throws is what the write throws.
  std::function<void(const LayerSchedule&, const Copy&)> on_commit;
  /// Writes of commit that are claimed and not made.
  std::function<bool(const LayerSchedule&, const Copy&)> skip_commit;
  /// Which expert a slot is said to hold when the engine says `expert`.
  std::function<ExpertId(LayerId, std::int32_t, ExpertId)> rename;

  TrainerFacts facts() override { return inner_->facts(); }
  std::optional<TransferFailure> inspect(std::span<const LayerSchedule> layers) override {
    return inner_->inspect(layers);
  }
  std::uint64_t equal_digest() override { return inner_->equal_digest(); }
  void set_canary(LayerId layer, std::int32_t local_slot, ExpertId expert) override {
    inner_->set_canary(layer, local_slot, rename ? rename(layer, local_slot, expert) : expert);
  }
  std::array<std::int64_t, 2> canary(LayerId layer, std::int32_t local_slot) override {
    return inner_->canary(layer, local_slot);
  }
  void stage(std::span<const LayerSchedule> layers) override { inner_->stage(layers); }
  void start(const LayerSchedule& layer, std::int32_t hop) override { inner_->start(layer, hop); }
  bool advance(bool& progressed) override { return inner_->advance(progressed); }
  [[nodiscard]] std::int32_t waiting_for() const override { return inner_->waiting_for(); }
  std::uint64_t source_checksum(const LayerSchedule& layer, std::size_t copy) override {
    return inner_->source_checksum(layer, copy);
  }
  std::uint64_t staged_checksum(const LayerSchedule& layer, std::size_t copy) override {
    return inner_->staged_checksum(layer, copy);
  }
  std::array<std::int64_t, 2> staged_canary(const LayerSchedule& layer, std::size_t copy) override {
    return inner_->staged_canary(layer, copy);
  }
  void commit(const LayerSchedule& layer, std::size_t copy, bool read_back) override {
    if (on_commit) on_commit(layer, layer.copies[copy]);
    if (skip_commit && skip_commit(layer, layer.copies[copy])) return;
    inner_->commit(layer, copy, read_back);
  }
  void release() override { inner_->release(); }

 private:
  std::unique_ptr<StateMover> inner_;
};

}  // namespace routepack::testing
