// SPDX-License-Identifier: Apache-2.0
// Expert state in host memory, moved over a Transport in chunks.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "routepack/transfer_engine.h"
#include "transfer/checksum.h"

namespace routepack {

class HostMover final : public StateMover {
 public:
  /// A message carries at most so much: what was just copied is hashed while it is still in the second-level cache.
  static constexpr std::int64_t kChunkBytes = 512 << 10;

  HostMover(Transport& transport, const GridLayout& layout, RankState& state);
  ~HostMover() override;

  TrainerFacts facts() override { return state_.facts(); }
  std::optional<TransferFailure> inspect(std::span<const LayerSchedule> layers) override;
  std::uint64_t equal_digest() override { return equal_digest_; }
  void set_canary(LayerId layer, std::int32_t local_slot, ExpertId expert) override;
  std::array<std::int64_t, 2> canary(LayerId layer, std::int32_t local_slot) override;
  void stage(std::span<const LayerSchedule> layers) override;
  void start(const LayerSchedule& layer, std::int32_t hop) override;
  bool advance(bool& progressed) override;
  [[nodiscard]] std::int32_t waiting_for() const override;
  std::uint64_t source_checksum(const LayerSchedule& layer, std::size_t copy) override;
  std::uint64_t staged_checksum(const LayerSchedule& layer, std::size_t copy) override;
  std::array<std::int64_t, 2> staged_canary(const LayerSchedule& layer, std::size_t copy) override;
  void commit(const LayerSchedule& layer, std::size_t copy, bool read_back) override;
  void release() override;

 private:
  /// One copy of the hop on its way, chunk by chunk.
  struct Moving {
    const Copy* copy;
    std::size_t index;  // in the layer's copies
    std::span<const std::byte> source;
    std::span<std::byte> target;
    std::int64_t begun = 0, ended = 0;  // bytes
  };
  /// Copies to one peer, or from one, in the order of the schedule; chunks end in the order in which they began.
  struct Stream {
    std::deque<Moving> queue;
    struct Chunk {
      Transport::Ticket ticket;
      std::int64_t bytes;
    };
    std::deque<Chunk> flying;
    PieceChecksum checksum;
  };
  struct Checksums {
    std::vector<std::uint64_t> source, staged;  // [copies of the layer]
  };
  struct Live {
    std::byte* data = nullptr;
    std::int64_t size = 0;
  };

  [[nodiscard]] std::size_t live_index(LayerId layer, std::int32_t local_slot, std::int32_t tensor) const;
  [[nodiscard]] std::span<std::byte> resolve(LayerId layer, std::int32_t local_slot, std::int32_t tensor);
  [[nodiscard]] std::span<std::byte> live(const Piece& piece, std::int32_t slot);
  [[nodiscard]] std::span<std::byte> staged(const LayerSchedule& layer, const Copy& copy);
  [[nodiscard]] std::int32_t local(std::int32_t slot) const { return slot % layout_.slots(); }
  bool advance_send(std::int32_t peer, Stream& stream);
  bool advance_receive(std::int32_t peer, Stream& stream);
  bool advance_local();

  Transport& transport_;
  const GridLayout layout_;
  RankState& state_;
  std::int32_t lane_;
  std::shared_ptr<std::vector<std::int64_t>> canaries_;  // [L, n, 2]; kept like staging_
  std::vector<Live> live_;                               // [L, n, tensors], as inspect() found them
  std::shared_ptr<std::byte[]> staging_;                 // kept by the transport when messages are left over
  std::int64_t staging_size_ = 0, largest_layer_ = 0;
  std::map<LayerId, std::int64_t> staging_of_;       // first byte of each staged layer
  std::map<LayerId, Checksums> checksums_;           // of staged layers
  std::map<std::int32_t, Stream> sends_, receives_;  // by peer
  std::deque<Moving> locals_;
  PieceChecksum local_source_, local_staged_;
  Checksums* now_ = nullptr;  // of the layer whose hop is running
  std::uint64_t equal_digest_ = 0;
};

}  // namespace routepack
