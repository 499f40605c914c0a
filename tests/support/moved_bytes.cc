// SPDX-License-Identifier: Apache-2.0
#include "support/moved_bytes.h"

#include <algorithm>

namespace routepack::testing {
namespace {

/// Never 0; the same for the same byte of the same expert wherever it lies.
std::uint64_t name_of(LayerId layer, ExpertId expert, std::int32_t tensor, std::int64_t byte) {
  return 1 + static_cast<std::uint64_t>(byte) +
         ((static_cast<std::uint64_t>(layer.value()) * 1024 + static_cast<std::uint64_t>(expert.value())) * 64 +
          static_cast<std::uint64_t>(tensor)) *
             (1U << 20U);
}

ExpertId expert_in(const Placement& placement, LayerId layer, std::int32_t slot) {
  return placement.physical_to_logical()[layer][static_cast<std::size_t>(slot)];
}

}  // namespace

MovedBytes::MovedBytes(const GridLayout& layout, const Placement& from, const Placement& to, Route route)
    : layout_(layout), from_(from), to_(to) {
  for (std::int32_t rank = 0; rank < layout.grid().ranks(); ++rank) {
    schedules_.push_back(schedule_moves(layout, from, to, rank, route));
    if (schedules_.back().size() != schedules_.front().size()) problem_ = "ranks see different layers";
  }
  for (std::size_t k = 0; k < schedules_.front().size() && problem_.empty(); ++k) run(k);
}

void MovedBytes::fail(std::int32_t rank, const LayerSchedule& layer, const Copy* copy, const std::string& what) {
  if (!problem_.empty()) return;
  problem_ = "rank " + std::to_string(rank) + " layer " + std::to_string(layer.layer.value());
  if (copy != nullptr) {
    problem_ += " expert " + std::to_string(copy->piece.expert.value()) + " tensor " +
                std::to_string(copy->piece.tensor) + " lanes " + std::to_string(copy->piece.from_lane) + " to " +
                std::to_string(copy->piece.to_lane) + " hop " + std::to_string(copy->hop);
  }
  problem_ += ": " + what;
}

MovedBytes::Bytes MovedBytes::live(std::int32_t rank, const Placement& now, LayerId layer, std::int32_t local_slot,
                                   std::int32_t tensor) const {
  const ExpertGrid& grid = layout_.grid();
  const std::int32_t lane = grid.lane(rank);
  const ExpertTensor& it = layout_.tensors()[static_cast<std::size_t>(tensor)];
  const std::int64_t first =
      it.spread == Spread::Sharded ? layout_.range_of(layer, local_slot, *it.parameter, lane).begin : 0;
  const ExpertId expert = expert_in(now, layer, grid.ep_rank(rank) * layout_.slots() + local_slot);
  Bytes bytes(static_cast<std::size_t>(layout_.bytes_on(layer, local_slot, tensor, lane)));
  for (std::size_t k = 0; k < bytes.size(); ++k) {
    bytes[k] = name_of(layer, expert, tensor, first * bytes_of(it.type) + static_cast<std::int64_t>(k));
  }
  return bytes;
}

void MovedBytes::run(std::size_t index) {
  staging_.clear();
  sent_.clear();
  taken_.clear();
  const std::int32_t ranks = layout_.grid().ranks();
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const LayerSchedule& layer = schedules_[static_cast<std::size_t>(rank)][index];
    staging_.emplace_back(static_cast<std::size_t>(layer.staging_bytes), 0);
    check_staging(rank, layer);
  }
  for (const std::int32_t which : {1, 2}) {
    if (problem_.empty()) hop(index, which);
  }
  for (const auto& [pair, messages] : sent_) {
    if (taken_[pair] != messages.size()) {
      fail(pair.first, schedules_[static_cast<std::size_t>(pair.first)][index], nullptr, "a message nobody takes");
    }
  }
  for (std::int32_t rank = 0; rank < ranks && problem_.empty(); ++rank) {
    check_arrival(rank, schedules_[static_cast<std::size_t>(rank)][index]);
  }
}

void MovedBytes::hop(std::size_t index, std::int32_t which) {
  for (const bool sending : {true, false}) {
    for (std::int32_t rank = 0; rank < layout_.grid().ranks(); ++rank) {
      const LayerSchedule& layer = schedules_[static_cast<std::size_t>(rank)][index];
      for (const Copy& copy : layer.copies) {
        if (copy.hop != which) continue;
        if (sending && copy.kind == CopyKind::Local) stage(rank, layer, copy, read(rank, layer, copy));
        if (sending && copy.kind == CopyKind::Send) {
          sent_[{rank, copy.peer}].push_back({copy.piece, read(rank, layer, copy)});
        }
        if (sending || copy.kind != CopyKind::Receive) continue;
        const auto& messages = sent_[{copy.peer, rank}];
        std::size_t& next = taken_[{copy.peer, rank}];
        if (next >= messages.size()) return fail(rank, layer, &copy, "no message comes");
        if (messages[next].piece != copy.piece) return fail(rank, layer, &copy, "another piece comes");
        stage(rank, layer, copy, messages[next++].bytes);
      }
    }
  }
}

MovedBytes::Bytes MovedBytes::read(std::int32_t rank, const LayerSchedule& layer, const Copy& copy) {
  const auto size = static_cast<std::size_t>(copy.bytes);
  const std::int64_t element = bytes_of(layout_.tensors()[static_cast<std::size_t>(copy.piece.tensor)].type);
  if (copy.bytes <= 0 || copy.bytes != (copy.piece.end - copy.piece.begin) * element) {
    fail(rank, layer, &copy, "bytes are not those of the elements");
    return {};
  }
  const Bytes source = copy.from_live
                           ? live(rank, from_, layer.layer, copy.piece.from_slot % layout_.slots(), copy.piece.tensor)
                           : staging_[static_cast<std::size_t>(rank)];
  const std::int64_t offset = copy.from_live ? copy.source_offset : copy.staging_offset;
  if (copy.from_live && copy.piece.from_slot / layout_.slots() != layout_.grid().ep_rank(rank)) {
    fail(rank, layer, &copy, "reads a slot of another rank");
    return {};
  }
  if (offset < 0 || static_cast<std::size_t>(offset) + size > source.size()) {
    fail(rank, layer, &copy, "reads beyond the end");
    return {};
  }
  Bytes bytes(source.begin() + offset, source.begin() + offset + copy.bytes);
  if (std::count(bytes.begin(), bytes.end(), 0) != 0) fail(rank, layer, &copy, "sends staging that nothing reached");
  return bytes;
}

void MovedBytes::stage(std::int32_t rank, const LayerSchedule& layer, const Copy& copy, const Bytes& bytes) {
  if (bytes.size() != static_cast<std::size_t>(copy.bytes)) return fail(rank, layer, &copy, "another size comes");
  Bytes& staging = staging_[static_cast<std::size_t>(rank)];
  if (static_cast<std::size_t>(copy.staging_offset) + bytes.size() > staging.size()) {
    return fail(rank, layer, &copy, "staged beyond the end");
  }
  std::copy(bytes.begin(), bytes.end(), staging.begin() + copy.staging_offset);
}

void MovedBytes::check_staging(std::int32_t rank, const LayerSchedule& layer) {
  std::vector<std::pair<std::int64_t, std::int64_t>> regions;
  for (const Copy& copy : layer.copies) {
    const bool sound = copy.hop == 1 || copy.hop == 2;
    if (!sound || copy.bytes <= 0) return fail(rank, layer, &copy, "no hop or no bytes");
    if (copy.kind == CopyKind::Local && copy.peer != -1) return fail(rank, layer, &copy, "a local copy with a peer");
    if (copy.kind != CopyKind::Local && copy.peer == rank) return fail(rank, layer, &copy, "a message to itself");
    if (copy.kind == CopyKind::Send) continue;
    if (copy.staging_offset % 64 != 0) return fail(rank, layer, &copy, "staging is not aligned");
    regions.emplace_back(copy.staging_offset, copy.staging_offset + copy.bytes);
  }
  std::sort(regions.begin(), regions.end());
  for (std::size_t k = 0; k < regions.size(); ++k) {
    if (k > 0 && regions[k].first < regions[k - 1].second) return fail(rank, layer, nullptr, "staging overlaps");
    if (regions[k].second > layer.staging_bytes) return fail(rank, layer, nullptr, "staging ends too late");
  }
}

void MovedBytes::check_arrival(std::int32_t rank, const LayerSchedule& layer) {
  const ExpertGrid& grid = layout_.grid();
  std::map<std::pair<std::int32_t, std::int32_t>, Bytes> arrived;  // by (local slot, tensor)
  const Bytes& staging = staging_[static_cast<std::size_t>(rank)];
  for (const Copy& copy : layer.copies) {
    if (!copy.to_final || copy.kind == CopyKind::Send) continue;
    if (copy.piece.to_slot / layout_.slots() != grid.ep_rank(rank)) {
      return fail(rank, layer, &copy, "for a slot of another rank");
    }
    const std::int32_t slot = copy.piece.to_slot % layout_.slots();
    Bytes& target = arrived[{slot, copy.piece.tensor}];
    target.resize(static_cast<std::size_t>(layout_.bytes_on(layer.layer, slot, copy.piece.tensor, grid.lane(rank))));
    if (static_cast<std::size_t>(copy.target_offset + copy.bytes) > target.size()) {
      return fail(rank, layer, &copy, "written beyond the end");
    }
    for (std::int64_t k = 0; k < copy.bytes; ++k) {
      std::uint64_t& byte = target[static_cast<std::size_t>(copy.target_offset + k)];
      if (byte != 0) return fail(rank, layer, &copy, "a byte arrives twice");
      byte = staging[static_cast<std::size_t>(copy.staging_offset + k)];
    }
  }
  for (std::int32_t slot = 0; slot < layout_.slots(); ++slot) {
    const std::int32_t global = grid.ep_rank(rank) * layout_.slots() + slot;
    const bool changed = expert_in(from_, layer.layer, global) != expert_in(to_, layer.layer, global);
    for (std::int32_t tensor = 0; tensor < layout_.canary(); ++tensor) {
      const bool moves = changed && layout_.tensors()[static_cast<std::size_t>(tensor)].spread != Spread::Equal;
      const Bytes wanted = moves ? live(rank, to_, layer.layer, slot, tensor) : Bytes();
      if (arrived[{slot, tensor}] != wanted) {
        return fail(rank, layer, nullptr,
                    "slot " + std::to_string(slot) + " tensor " + std::to_string(tensor) + " has other bytes");
      }
    }
  }
}

}  // namespace routepack::testing
