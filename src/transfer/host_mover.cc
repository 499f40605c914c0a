// SPDX-License-Identifier: Apache-2.0
#include "transfer/host_mover.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "core/assert.h"
#include "routepack/error.h"
#include "transfer/staging.h"

namespace routepack {
namespace {

constexpr std::size_t kFlying = 4;              // chunks under way per stream
constexpr std::int64_t kCopyBytes = 256 << 10;  // one step of a local copy: source and target stay in cache

bool all_zero(std::span<const std::byte> bytes) {
  std::size_t i = 0;
  std::uint64_t any = 0;
  for (; i + 64 <= bytes.size(); i += 64) {
    std::array<std::uint64_t, 8> words;
    std::memcpy(words.data(), bytes.data() + i, 64);
    for (const std::uint64_t w : words) any |= w;
    if (any != 0) return false;
  }
  for (; i < bytes.size(); ++i) any |= std::to_integer<std::uint64_t>(bytes[i]);
  return any == 0;
}

TransferFailure defect(const Transport& transport, LayerId layer, ExpertId expert, std::int32_t tensor,
                       std::string what) {
  return {TransferPhase::Prepare, transport.rank(), layer.value(), expert.value(), tensor, std::move(what)};
}

std::span<std::byte> part(std::span<std::byte> all, std::int64_t offset, std::int64_t bytes) {
  ROUTEPACK_ASSERT(offset >= 0 && bytes >= 0 && offset + bytes <= std::ssize(all), "a copy leaves its tensor");
  return all.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
}

}  // namespace

std::unique_ptr<StateMover> make_host_mover(Transport& transport, const GridLayout& layout, RankState& state) {
  return std::make_unique<HostMover>(transport, layout, state);
}

HostMover::HostMover(Transport& transport, const GridLayout& layout, RankState& state)
    : transport_(transport), layout_(layout), state_(state), lane_(layout.grid().lane(transport.rank())) {
  const auto slots = static_cast<std::size_t>(layout_.layers()) * static_cast<std::size_t>(layout_.slots());
  canaries_ = std::make_shared<std::vector<std::int64_t>>(2 * slots, -1);
  live_.resize(slots * layout_.tensors().size());
}

HostMover::~HostMover() {
  const auto unfinished = [](const auto& streams) {
    return std::ranges::any_of(streams, [](const auto& entry) { return !entry.second.flying.empty(); });
  };
  if (unfinished(sends_) || unfinished(receives_)) {
    transport_.keep(staging_);
    transport_.keep(canaries_);
  }
}

std::size_t HostMover::live_index(LayerId layer, std::int32_t local_slot, std::int32_t tensor) const {
  const auto slot = static_cast<std::size_t>(local_slot);
  const std::size_t slots = layer * static_cast<std::size_t>(layout_.slots()) + slot;
  return slots * layout_.tensors().size() + static_cast<std::size_t>(tensor);
}

std::span<std::byte> HostMover::resolve(LayerId layer, std::int32_t local_slot, std::int32_t tensor) {
  if (tensor != layout_.canary()) return state_.bytes(layer, local_slot, tensor);
  const std::size_t slot = layer * static_cast<std::size_t>(layout_.slots()) + static_cast<std::size_t>(local_slot);
  return std::as_writable_bytes(std::span(*canaries_).subspan(2 * slot, 2));
}

std::span<std::byte> HostMover::live(const Piece& piece, std::int32_t slot) {
  const Live& found = live_[live_index(piece.layer, local(slot), piece.tensor)];
  ROUTEPACK_ASSERT(found.data != nullptr, "a tensor was not looked at before it is moved");
  return {found.data, static_cast<std::size_t>(found.size)};
}

std::span<std::byte> HostMover::staged(const LayerSchedule& layer, const Copy& copy) {
  const auto first = staging_of_.find(layer.layer);
  ROUTEPACK_ASSERT(first != staging_of_.end(), "a layer is not staged");
  return part({staging_.get(), static_cast<std::size_t>(staging_size_)}, first->second + copy.staging_offset,
              copy.bytes);
}

std::optional<TransferFailure> HostMover::inspect(std::span<const LayerSchedule> layers) {
  std::ranges::fill(live_, Live{});
  largest_layer_ = 0;
  const auto tensors = static_cast<std::int32_t>(layout_.tensors().size());
  const auto look = [&](LayerId layer, std::int32_t slot, std::int32_t tensor,
                        ExpertId expert) -> std::optional<TransferFailure> {
    const auto where = [&] {
      return fmt::format("rank {}: layer {}, local slot {}, tensor «{}»", transport_.rank(), layer.value(), slot,
                         layout_.tensors()[static_cast<std::size_t>(tensor)].name);
    };
    std::span<std::byte> bytes;
    try {
      bytes = resolve(layer, slot, tensor);
    } catch (const std::exception& error) {  // the trainer's own kinds included
      return defect(transport_, layer, expert, tensor, fmt::format("{}: {}", where(), error.what()));
    }
    const std::int64_t wanted = layout_.bytes_on(layer, slot, tensor, lane_);
    if (std::ssize(bytes) != wanted) {
      return defect(transport_, layer, expert, tensor,
                    fmt::format("{}: {} bytes, the layout wants {}", where(), bytes.size(), wanted));
    }
    if (wanted > 0 && bytes.data() == nullptr) {
      return defect(transport_, layer, expert, tensor, fmt::format("{}: not in memory", where()));
    }
    live_[live_index(layer, slot, tensor)] = {bytes.data(), wanted};
    return std::nullopt;
  };

  std::map<std::int32_t, std::span<const std::byte>> equals;  // first value of each equal tensor
  for (const LayerSchedule& layer : layers) {
    largest_layer_ = std::max(largest_layer_, layer.staging_bytes);
    std::set<std::pair<std::int32_t, ExpertId>> touched;
    for (const Copy& copy : layer.copies) {
      if (copy.from_live) touched.emplace(local(copy.piece.from_slot), copy.piece.expert);
      if (copy.to_final) touched.emplace(local(copy.piece.to_slot), copy.piece.expert);
    }
    for (const auto& [slot, expert] : touched) {
      for (std::int32_t t = 0; t < tensors; ++t) {
        if (layout_.tensors()[static_cast<std::size_t>(t)].spread == Spread::Equal) continue;
        if (auto found = look(layer.layer, slot, t, expert)) return found;
      }
      for (std::int32_t p = 0; p < std::ssize(layout_.parameters()); ++p) {
        if (!all_zero(state_.gradient(layer.layer, slot, p))) {
          return defect(transport_, layer.layer, expert, -1,
                        fmt::format("rank {}: layer {}, local slot {}: the gradient of «{}» is not zero; move experts "
                                    "after the optimizer step, when gradients are cleared",
                                    transport_.rank(), layer.layer.value(), slot,
                                    layout_.parameters()[static_cast<std::size_t>(p)].name));
        }
      }
    }
    for (std::int32_t t = 0; t < tensors; ++t) {
      if (layout_.tensors()[static_cast<std::size_t>(t)].spread != Spread::Equal) continue;
      for (std::int32_t slot = 0; slot < layout_.slots(); ++slot) {
        if (auto found = look(layer.layer, slot, t, ExpertId(-1))) return found;
        const Live& value = live_[live_index(layer.layer, slot, t)];
        const std::span<const std::byte> bytes{value.data, static_cast<std::size_t>(value.size)};
        const auto [first, fresh] = equals.emplace(t, bytes);
        if (!fresh && !std::ranges::equal(first->second, bytes)) {
          return defect(transport_, layer.layer, ExpertId(-1), t,
                        fmt::format("rank {}: layer {}, local slot {}: «{}» differs between experts; it must be equal "
                                    "everywhere, since it is not moved",
                                    transport_.rank(), layer.layer.value(), slot,
                                    layout_.tensors()[static_cast<std::size_t>(t)].name));
        }
      }
    }
  }
  std::vector<std::byte> values;
  for (const auto& [tensor, bytes] : equals) {
    const auto index = std::as_bytes(std::span(&tensor, 1));
    values.insert(values.end(), index.begin(), index.end());
    values.insert(values.end(), bytes.begin(), bytes.end());
  }
  equal_digest_ = XXH3_64bits(values.data(), values.size());
  return std::nullopt;
}

void HostMover::set_canary(LayerId layer, std::int32_t local_slot, ExpertId expert) {
  const std::array<std::int64_t, 2> value{layer.value(), expert.value()};
  std::memcpy(resolve(layer, local_slot, layout_.canary()).data(), value.data(), sizeof value);
}

std::array<std::int64_t, 2> HostMover::canary(LayerId layer, std::int32_t local_slot) {
  std::array<std::int64_t, 2> value{};
  std::memcpy(value.data(), resolve(layer, local_slot, layout_.canary()).data(), sizeof value);
  return value;
}

void HostMover::stage(std::span<const LayerSchedule> layers) {
  staging_of_.clear();
  checksums_.clear();
  std::int64_t bytes = 0;
  for (const LayerSchedule& layer : layers) {
    staging_of_[layer.layer] = bytes;
    bytes += layer.staging_bytes;  // a multiple of the alignment
    checksums_[layer.layer] = {std::vector<std::uint64_t>(layer.copies.size()),
                               std::vector<std::uint64_t>(layer.copies.size())};
  }
  bytes = std::max(bytes, largest_layer_);
  if (bytes > staging_size_) {
    staging_.reset();  // never two of them at a time
    staging_ = staging_memory(static_cast<std::size_t>(bytes));
    staging_size_ = bytes;
  }
}

void HostMover::start(const LayerSchedule& layer, std::int32_t hop) {
  ROUTEPACK_ASSERT(locals_.empty() && sends_.empty() && receives_.empty(), "a hop begins before the last one ended");
  now_ = &checksums_.at(layer.layer);
  for (std::size_t i = 0; i < layer.copies.size(); ++i) {
    const Copy& copy = layer.copies[i];
    if (copy.hop != hop) continue;
    Moving moving{&copy, i, {}, {}};
    if (copy.kind != CopyKind::Receive) {
      moving.source = copy.from_live ? part(live(copy.piece, copy.piece.from_slot), copy.source_offset, copy.bytes)
                                     : staged(layer, copy);
    }
    if (copy.kind != CopyKind::Send) moving.target = staged(layer, copy);
    if (copy.kind == CopyKind::Local) {
      locals_.push_back(moving);
    } else {
      (copy.kind == CopyKind::Send ? sends_ : receives_)[copy.peer].queue.push_back(moving);
    }
  }
}

bool HostMover::advance_send(std::int32_t peer, Stream& stream) {
  bool progressed = false;
  for (Moving& moving : stream.queue) {
    if (stream.flying.size() >= kFlying) break;
    while (moving.begun < moving.copy->bytes && stream.flying.size() < kFlying) {
      const std::int64_t bytes = std::min(kChunkBytes, moving.copy->bytes - moving.begun);
      const auto chunk = moving.source.subspan(static_cast<std::size_t>(moving.begun), static_cast<std::size_t>(bytes));
      if (moving.copy->from_live) {
        if (moving.begun == 0) stream.checksum.begin(moving.copy->piece);
        stream.checksum.add(chunk);
      }
      stream.flying.push_back({transport_.send(peer, chunk), bytes});
      moving.begun += bytes;
      if (moving.copy->from_live && moving.begun == moving.copy->bytes) {
        now_->source[moving.index] = stream.checksum.digest();
      }
      progressed = true;
    }
  }
  while (!stream.flying.empty() && transport_.poll(stream.flying.front().ticket)) {
    Moving& moving = stream.queue.front();
    moving.ended += stream.flying.front().bytes;
    stream.flying.pop_front();
    if (moving.ended == moving.copy->bytes) stream.queue.pop_front();
    progressed = true;
  }
  return progressed;
}

bool HostMover::advance_receive(std::int32_t peer, Stream& stream) {
  bool progressed = false;
  for (Moving& moving : stream.queue) {
    if (stream.flying.size() >= kFlying) break;
    while (moving.begun < moving.copy->bytes && stream.flying.size() < kFlying) {
      const std::int64_t bytes = std::min(kChunkBytes, moving.copy->bytes - moving.begun);
      const auto chunk = moving.target.subspan(static_cast<std::size_t>(moving.begun), static_cast<std::size_t>(bytes));
      stream.flying.push_back({transport_.receive(peer, chunk), bytes});
      moving.begun += bytes;
    }
  }
  if (!stream.flying.empty() && transport_.poll(stream.flying.front().ticket)) {
    Moving& moving = stream.queue.front();
    const std::int64_t bytes = stream.flying.front().bytes;
    if (moving.ended == 0) stream.checksum.begin(moving.copy->piece);
    stream.checksum.add(moving.target.subspan(static_cast<std::size_t>(moving.ended), static_cast<std::size_t>(bytes)));
    moving.ended += bytes;
    stream.flying.pop_front();
    if (moving.ended == moving.copy->bytes) {
      now_->staged[moving.index] = stream.checksum.digest();
      stream.queue.pop_front();
    }
    progressed = true;
  }
  return progressed;
}

bool HostMover::advance_local() {
  if (locals_.empty()) return false;
  Moving& moving = locals_.front();
  if (moving.ended == 0) {
    local_source_.begin(moving.copy->piece);
    local_staged_.begin(moving.copy->piece);
  }
  const std::int64_t bytes = std::min(kCopyBytes, moving.copy->bytes - moving.ended);
  const auto from = moving.source.subspan(static_cast<std::size_t>(moving.ended), static_cast<std::size_t>(bytes));
  const auto to = moving.target.subspan(static_cast<std::size_t>(moving.ended), static_cast<std::size_t>(bytes));
  std::memcpy(to.data(), from.data(), from.size());
  local_source_.add(from);
  local_staged_.add(to);
  moving.ended += bytes;
  if (moving.ended == moving.copy->bytes) {
    now_->source[moving.index] = local_source_.digest();
    now_->staged[moving.index] = local_staged_.digest();
    locals_.pop_front();
  }
  return true;
}

bool HostMover::advance(bool& progressed) {
  for (auto& [peer, stream] : receives_) progressed |= advance_receive(peer, stream);
  for (auto& [peer, stream] : sends_) progressed |= advance_send(peer, stream);
  progressed |= advance_local();
  const auto over = [](const auto& entry) { return entry.second.queue.empty(); };
  std::erase_if(receives_, over);
  std::erase_if(sends_, over);
  return receives_.empty() && sends_.empty() && locals_.empty();
}

std::int32_t HostMover::waiting_for() const {
  if (!receives_.empty()) return receives_.begin()->first;
  return sends_.empty() ? -1 : sends_.begin()->first;
}

std::uint64_t HostMover::source_checksum(const LayerSchedule& layer, std::size_t copy) {
  return checksums_.at(layer.layer).source[copy];
}

std::uint64_t HostMover::staged_checksum(const LayerSchedule& layer, std::size_t copy) {
  return checksums_.at(layer.layer).staged[copy];
}

std::array<std::int64_t, 2> HostMover::staged_canary(const LayerSchedule& layer, std::size_t copy) {
  std::array<std::int64_t, 2> value{};
  const auto bytes = staged(layer, layer.copies[copy]);
  ROUTEPACK_ASSERT(bytes.size() == sizeof value, "a canary has another size");
  std::memcpy(value.data(), bytes.data(), sizeof value);
  return value;
}

void HostMover::commit(const LayerSchedule& layer, std::size_t index, bool read_back) {
  const Copy& copy = layer.copies[index];
  const Piece& piece = copy.piece;
  const std::span<std::byte> now = resolve(piece.layer, local(piece.to_slot), piece.tensor);
  const std::span<std::byte> before = live(piece, piece.to_slot);
  if (now.data() != before.data() || now.size() != before.size()) {
    throw InvalidInput("the tensor is no longer where it was when the move began");
  }
  const std::span<std::byte> target = part(now, copy.target_offset, copy.bytes);
  const std::span<const std::byte> source = staged(layer, copy);
  if (read_back) local_staged_.begin(piece);
  for (std::size_t at = 0; at < source.size(); at += static_cast<std::size_t>(kCopyBytes)) {
    const std::size_t bytes = std::min(static_cast<std::size_t>(kCopyBytes), source.size() - at);
    std::memcpy(target.data() + at, source.data() + at, bytes);
    if (read_back) local_staged_.add(target.subspan(at, bytes));
  }
  if (read_back && local_staged_.digest() != staged_checksum(layer, index)) {
    throw InvalidInput("what was written reads back differently");
  }
}

void HostMover::release() {
  staging_of_.clear();
  checksums_.clear();
  now_ = nullptr;
}

}  // namespace routepack
