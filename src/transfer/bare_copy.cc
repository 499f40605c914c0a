// SPDX-License-Identifier: Apache-2.0
#include "transfer/bare_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "transfer/host_mover.h"
#include "transfer/staging.h"

namespace routepack {
namespace {

constexpr auto kChunk = static_cast<std::size_t>(HostMover::kChunkBytes);

template <class Use>
void for_each_chunk(std::span<std::byte> bytes, const Use& use) {
  for (std::size_t at = 0; at < bytes.size(); at += kChunk) {
    use(bytes.subspan(at, std::min(kChunk, bytes.size() - at)));
  }
}

}  // namespace

std::span<std::byte> BareCopy::live(const Copy& copy, bool source) {
  const std::int32_t slot = source ? copy.piece.from_slot : copy.piece.to_slot;
  const std::int64_t offset = source ? copy.source_offset : copy.target_offset;
  return state_.bytes(copy.piece.layer, slot % layout_.slots(), copy.piece.tensor)
      .subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(copy.bytes));
}

void BareCopy::run(const std::vector<LayerSchedule>& schedule) {
  std::int64_t most = 0;
  for (const LayerSchedule& layer : schedule) most = std::max(most, layer.staging_bytes);
  if (staging_size_ < static_cast<std::size_t>(most)) {
    staging_size_ = static_cast<std::size_t>(most);
    staging_ = staging_memory(staging_size_);
  }
  for (const LayerSchedule& layer : schedule) {
    run_hop(layer, 1);
    run_hop(layer, 2);
    meeting_.barrier();
    commit(layer);
  }
}

void BareCopy::run_hop(const LayerSchedule& layer, std::int32_t hop) {
  const auto staged = [&](const Copy& copy) {
    return std::span(staging_.get(), staging_size_)
        .subspan(static_cast<std::size_t>(copy.staging_offset), static_cast<std::size_t>(copy.bytes));
  };
  for (const Copy& copy : layer.copies) {
    if (copy.hop != hop || copy.piece.tensor == layout_.canary()) continue;
    switch (copy.kind) {
      case CopyKind::Local:
        std::memcpy(staged(copy).data(), live(copy, true).data(), static_cast<std::size_t>(copy.bytes));
        break;
      case CopyKind::Send:
        for_each_chunk(copy.from_live ? live(copy, true) : staged(copy),
                       [&](std::span<std::byte> chunk) { open_.push_back(transport_.send(copy.peer, chunk)); });
        break;
      case CopyKind::Receive:
        for_each_chunk(staged(copy),
                       [&](std::span<std::byte> chunk) { open_.push_back(transport_.receive(copy.peer, chunk)); });
        break;
    }
  }
  wait_for_all(transport_, open_, patience_);
}

void BareCopy::commit(const LayerSchedule& layer) {
  for (const Copy& copy : layer.copies) {
    if (!copy.to_final || copy.kind == CopyKind::Send || copy.piece.tensor == layout_.canary()) continue;
    std::memcpy(live(copy, false).data(), staging_.get() + copy.staging_offset, static_cast<std::size_t>(copy.bytes));
  }
}

}  // namespace routepack
