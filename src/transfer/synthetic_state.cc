// SPDX-License-Identifier: Apache-2.0
#include "transfer/synthetic_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "core/assert.h"
#include "routepack/error.h"

namespace routepack {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kWord = sizeof(std::uint64_t);

constexpr std::uint64_t rounded_up(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// A bijection of 64 bits whose output bits depend on all input bits: two rounds of multiply and shift (constants of
/// Stafford's thirteenth mix, as in splitmix64).
constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr std::uint64_t kStride = 0x9e3779b97f4a7c15ULL;  // odd: word indices never meet

constexpr std::uint64_t word(std::uint64_t key, std::uint64_t index) {
  return mixed(key + kStride * index);
}

/// Bytes [begin, begin + into.size()) of the tensor that `key` names. A lane's range may begin inside a word.
void generate(std::uint64_t key, std::uint64_t begin, std::span<std::byte> into) {
  std::size_t at = 0;
  std::uint64_t index = begin / kWord;
  if (const std::size_t skipped = begin % kWord; skipped != 0) {
    const std::uint64_t first = word(key, index++);
    at = std::min(kWord - skipped, into.size());
    std::memcpy(into.data(), reinterpret_cast<const std::byte*>(&first) + skipped, at);
  }
  for (; at + kWord <= into.size(); at += kWord) {
    const std::uint64_t whole = word(key, index++);
    std::memcpy(into.data() + at, &whole, kWord);
  }
  if (at < into.size()) {
    const std::uint64_t last = word(key, index);
    std::memcpy(into.data() + at, &last, into.size() - at);
  }
}

/// Index of the first byte that differs from generate(), or nothing.
std::optional<std::size_t> first_difference(std::uint64_t key, std::uint64_t begin, std::span<const std::byte> found) {
  std::array<std::byte, 16384> wanted;
  for (std::size_t at = 0; at < found.size(); at += wanted.size()) {
    const auto block = found.subspan(at, std::min(wanted.size(), found.size() - at));
    generate(key, begin + at, std::span(wanted).first(block.size()));
    if (std::memcmp(block.data(), wanted.data(), block.size()) == 0) continue;
    return at + static_cast<std::size_t>(std::ranges::mismatch(block, wanted).in1 - block.begin());
  }
  return std::nullopt;
}

}  // namespace

void SyntheticState::Free::operator()(std::byte* bytes) const {
  ::operator delete[](bytes, std::align_val_t(kAlignment));
}

SyntheticState::SyntheticState(const GridLayout& layout, std::int32_t rank, const Placement& now, std::uint64_t seed)
    : layout_(layout), rank_(rank), ep_rank_(0), lane_(0), seed_(seed), tensors_(layout.canary()) {
  if (rank < 0 || rank >= layout.grid().ranks()) {
    throw InvalidInput(fmt::format("rank: found {}, wanted 0 … {} of the grid", rank, layout.grid().ranks() - 1));
  }
  ep_rank_ = layout.grid().ep_rank(rank);
  lane_ = layout.grid().lane(rank);
  std::size_t size = 0;
  for (const LayerId layer : IdRange<LayerId>(layout.layers())) {
    for (std::int32_t slot = 0; slot < layout.slots(); ++slot) {
      for (std::int32_t tensor = 0; tensor < tensors_; ++tensor) {
        const auto bytes = static_cast<std::size_t>(layout.bytes_on(layer, slot, tensor, lane_));
        parts_.emplace_back(size, bytes);
        size += rounded_up(bytes);
      }
    }
  }
  live_.reset(static_cast<std::byte*>(::operator new[](std::max(size, kAlignment), std::align_val_t(kAlignment))));
  fill(now);
}

std::size_t SyntheticState::index(LayerId layer, std::int32_t local_slot, std::int32_t tensor) const {
  ROUTEPACK_ASSERT(layer.value() < layout_.layers() && local_slot >= 0 && local_slot < layout_.slots() && tensor >= 0 &&
                       tensor < tensors_,
                   "a tensor that the layout does not have");
  const auto slots = static_cast<std::size_t>(layout_.slots());
  return (layer * slots + static_cast<std::size_t>(local_slot)) * static_cast<std::size_t>(tensors_) +
         static_cast<std::size_t>(tensor);
}

std::span<std::byte> SyntheticState::part(std::size_t index) const {
  return {live_.get() + parts_[index].first, parts_[index].second};
}

std::span<std::byte> SyntheticState::bytes(LayerId layer, std::int32_t local_slot, std::int32_t tensor) {
  return part(index(layer, local_slot, tensor));
}

std::span<const std::byte> SyntheticState::gradient(LayerId layer, std::int32_t local_slot, std::int32_t parameter) {
  const auto found = gradients_.find({layer.value(), local_slot, parameter});
  return found == gradients_.end() ? std::span<const std::byte>() : found->second;
}

void SyntheticState::set_gradient(LayerId layer, std::int32_t local_slot, std::int32_t parameter,
                                  std::vector<std::byte> bytes) {
  gradients_[{layer.value(), local_slot, parameter}] = std::move(bytes);
}

std::uint64_t SyntheticState::key(LayerId layer, ExpertId expert, std::int32_t tensor) const {
  const bool equal = layout_.tensors()[static_cast<std::size_t>(tensor)].spread == Spread::Equal;
  const std::uint64_t owner = equal ? 0 : (std::uint64_t{layer} << 32) + std::uint64_t{expert} + 1;
  return mixed(mixed(mixed(seed_) + owner) + static_cast<std::uint64_t>(tensor));
}

std::int64_t SyntheticState::begin_of(LayerId layer, std::int32_t local_slot, std::int32_t tensor) const {
  const ExpertTensor& what = layout_.tensors()[static_cast<std::size_t>(tensor)];
  if (what.spread != Spread::Sharded) return 0;
  return layout_.range_of(layer, local_slot, *what.parameter, lane_).begin * bytes_of(what.type);
}

ExpertId SyntheticState::expert_in(const Placement& placement, LayerId layer, std::int32_t local_slot) const {
  const std::int32_t slot = ep_rank_ * layout_.slots() + local_slot;
  return placement.physical_to_logical()[layer][static_cast<std::size_t>(slot)];
}

void SyntheticState::require_fits(const Placement& placement) const {
  if (placement.layers() == layout_.layers() && placement.experts() == layout_.experts() &&
      placement.ranks() == layout_.grid().ep) {
    return;
  }
  throw InvalidInput(fmt::format("placement: found {} layers of {} experts on {} ranks, wanted {} of {} on {}",
                                 placement.layers(), placement.experts(), placement.ranks(), layout_.layers(),
                                 layout_.experts(), layout_.grid().ep));
}

void SyntheticState::fill(const Placement& now) {
  require_fits(now);
  for (const LayerId layer : IdRange<LayerId>(layout_.layers())) {
    for (std::int32_t slot = 0; slot < layout_.slots(); ++slot) {
      const ExpertId expert = expert_in(now, layer, slot);
      for (std::int32_t tensor = 0; tensor < tensors_; ++tensor) {
        generate(key(layer, expert, tensor), static_cast<std::uint64_t>(begin_of(layer, slot, tensor)),
                 bytes(layer, slot, tensor));
      }
    }
  }
}

std::optional<std::string> SyntheticState::mismatch(const Placement& expected, LayerId layer) const {
  require_fits(expected);
  for (std::int32_t slot = 0; slot < layout_.slots(); ++slot) {
    const ExpertId expert = expert_in(expected, layer, slot);
    for (std::int32_t tensor = 0; tensor < tensors_; ++tensor) {
      const std::span<const std::byte> found = part(index(layer, slot, tensor));
      const std::uint64_t of = key(layer, expert, tensor);
      const auto begin = static_cast<std::uint64_t>(begin_of(layer, slot, tensor));
      const auto at = first_difference(of, begin, found);
      if (!at) continue;
      std::byte wanted{};
      generate(of, begin + *at, {&wanted, 1});
      const ExpertTensor& what = layout_.tensors()[static_cast<std::size_t>(tensor)];
      return fmt::format(
          "rank {}, layer {}, slot {}, tensor {}, element {}: found byte 0x{:02x}, wanted 0x{:02x} of "
          "expert {}",
          rank_, layer.value(), ep_rank_ * layout_.slots() + slot, what.name,
          (begin + *at) / static_cast<std::uint64_t>(bytes_of(what.type)), std::to_integer<unsigned>(found[*at]),
          std::to_integer<unsigned>(wanted), expert.value());
    }
  }
  return std::nullopt;
}

std::optional<std::string> SyntheticState::mismatch(const Placement& expected) const {
  for (const LayerId layer : IdRange<LayerId>(layout_.layers())) {
    if (auto wrong = mismatch(expected, layer)) return wrong;
  }
  return std::nullopt;
}

std::int64_t SyntheticState::size() const {
  std::size_t sum = 0;
  for (const auto& [offset, bytes] : parts_) sum += bytes;
  return static_cast<std::int64_t>(sum);
}

}  // namespace routepack
