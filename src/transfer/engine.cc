// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "routepack/error.h"
#include "routepack/transfer_engine.h"
#include "transfer/council.h"
#include "transfer/move.h"

namespace routepack {
namespace {

void check_shape(const GridLayout& layout, const Placement& placement) {
  if (placement.layers() == layout.layers() && placement.ranks() == layout.grid().ep &&
      placement.experts() == layout.experts()) {
    return;
  }
  throw InvalidInput(fmt::format("the placement is for {} layers, {} experts, {} EP ranks; the layout for {}, {}, {}",
                                 placement.layers(), placement.experts(), placement.ranks(), layout.layers(),
                                 layout.experts(), layout.grid().ep));
}

/// Layer by layer what the states say.
Placement mixed(const Placement& before, const Placement& asked, const std::vector<LayerState>& layers) {
  auto maps = before.physical_to_logical();
  for (std::size_t l = 0; l < maps.size(); ++l) {
    if (layers[l] == LayerState::New) maps[l] = asked.physical_to_logical()[l];
  }
  return Placement::from_maps(before.ranks(), std::move(maps));
}

}  // namespace

class TransferEngine::Impl {
 public:
  Impl(Postbox& postbox, GridLayout layout, std::unique_ptr<StateMover> mover, Placement placement, std::int64_t epoch,
       const TransferOptions& options)
      : layout_(std::move(layout)),
        mover_(std::move(mover)),
        options_(options),
        postbox_(postbox),
        council_(postbox),
        placement_(std::move(placement)),
        epoch_(epoch) {
    check_shape(layout_, placement_);
    if (epoch < 0) throw InvalidInput(fmt::format("epoch: {} is negative", epoch));
    if (options_.timeout.count() < 1) throw InvalidInput("timeout: must be at least 1 ms");
    if (options_.staging_limit && *options_.staging_limit < 0)
      throw InvalidInput("staging_limit: must not be negative");
    if (postbox.ranks() != layout_.grid().ranks()) {
      throw InvalidInput(fmt::format("the network has {} ranks, the grid {} × {}", postbox.ranks(), layout_.grid().ep,
                                     layout_.grid().edp));
    }
    const std::int32_t first = layout_.grid().ep_rank(postbox.rank()) * layout_.slots();
    for (const LayerId l : IdRange<LayerId>(layout_.layers())) {
      for (std::int32_t slot = 0; slot < layout_.slots(); ++slot) {
        const auto index = static_cast<std::size_t>(first) + static_cast<std::size_t>(slot);
        mover_->set_canary(l, slot, placement_.physical_to_logical()[l][index]);
      }
    }
    status_.epoch = epoch;
    status_.layers.assign(static_cast<std::size_t>(layout_.layers()), LayerState::Old);
  }

  TransferOutcome move(const Placement& to, std::int64_t epoch) {
    check_shape(layout_, to);
    if (spent_) {
      throw InvalidInput(
          "this engine is spent: an earlier move left ranks that do not answer or a torn layer; make a "
          "new engine on a new transport");
    }
    const Placement from = placement();
    council_.open(postbox_.next_move());
    Move move(council_, *mover_, layout_, {from, to, this->epoch(), epoch}, options_,
              [this](TransferPhase phase, std::int32_t layer, const std::vector<LayerState>& layers) {
                const std::scoped_lock lock(mutex_);
                status_.phase = phase;
                status_.layer = layer;
                status_.layers = layers;
              });
    spent_ = true;  // should run() throw
    TransferOutcome outcome = move.run();
    spent_ = move.spent();

    const std::scoped_lock lock(mutex_);
    // Layers in which nothing moved are as asked for, once the whole move is.
    if (outcome.complete) std::ranges::fill(outcome.layers, LayerState::New);
    if (std::ranges::find(outcome.layers, LayerState::New) != outcome.layers.end()) epoch_ = epoch;
    placement_ = mixed(placement_, to, outcome.layers);
    status_.epoch = epoch_;
    status_.layers = outcome.layers;
    status_.failure = outcome.failure;
    return outcome;
  }

  Placement placement() const {
    const std::scoped_lock lock(mutex_);
    return placement_;
  }
  std::int64_t epoch() const {
    const std::scoped_lock lock(mutex_);
    return epoch_;
  }
  TransferStatus status() const {
    const std::scoped_lock lock(mutex_);
    return status_;
  }

 private:
  const GridLayout layout_;
  std::unique_ptr<StateMover> mover_;
  const TransferOptions options_;
  Postbox& postbox_;
  Council council_;
  bool spent_ = false;

  mutable std::mutex mutex_;  // for what follows
  Placement placement_;
  std::int64_t epoch_;
  TransferStatus status_;
};

TransferEngine::TransferEngine(Transport& transport, GridLayout layout, RankState& state, Placement placement,
                               std::int64_t epoch, TransferOptions options) {
  auto mover = make_host_mover(transport, layout, state);
  impl_ = std::make_unique<Impl>(transport, std::move(layout), std::move(mover), std::move(placement), epoch, options);
}

TransferEngine::TransferEngine(Postbox& postbox, GridLayout layout, std::unique_ptr<StateMover> mover,
                               Placement placement, std::int64_t epoch, TransferOptions options)
    : impl_(
          std::make_unique<Impl>(postbox, std::move(layout), std::move(mover), std::move(placement), epoch, options)) {}

TransferEngine::~TransferEngine() = default;

TransferOutcome TransferEngine::move(const Placement& to, std::int64_t epoch) {
  return impl_->move(to, epoch);
}
Placement TransferEngine::placement() const {
  return impl_->placement();
}
std::int64_t TransferEngine::epoch() const {
  return impl_->epoch();
}
TransferStatus TransferEngine::status() const {
  return impl_->status();
}

}  // namespace routepack
