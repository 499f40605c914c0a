// SPDX-License-Identifier: Apache-2.0
#include "support/memory_state.h"

#include <stdexcept>

namespace routepack::testing {
namespace {

constexpr std::int64_t kGuard = 64;
constexpr std::byte kGuardByte{0xA5};

/// A byte that depends on all of where it belongs (splitmix64's mixer).
std::byte mixed(std::uint64_t layer, std::uint64_t expert, std::uint64_t tensor, std::uint64_t byte) {
  std::uint64_t x = ((layer * 1024 + expert) * 64 + tensor) * (std::uint64_t{1} << 32U) + byte + 1;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return static_cast<std::byte>((x ^ (x >> 31U)) & 0xFFU);
}

}  // namespace

MemoryState::MemoryState(const GridLayout& layout, std::int32_t rank, const Placement& now, Storage storage)
    : layout_(layout), rank_(rank) {
  const std::int32_t tensors = layout.canary(), slots = layout.slots();
  parts_.resize(static_cast<std::size_t>(layout.layers() * slots * tensors));
  std::int64_t end = 0;
  const auto guard = [&] {
    guards_.emplace_back(end, end + kGuard);
    end += kGuard;
  };
  guard();
  for (std::int32_t layer = 0; layer < layout.layers(); ++layer) {
    for (std::int32_t tensor = 0; tensor < tensors; ++tensor) {
      for (std::int32_t slot = 0; slot < slots; ++slot) {
        Part& part = parts_[static_cast<std::size_t>((layer * slots + slot) * tensors + tensor)];
        const bool equal = layout.tensors()[static_cast<std::size_t>(tensor)].spread == Spread::Equal;
        const std::int64_t bytes = equal ? layout.tensors()[static_cast<std::size_t>(tensor)].bytes()
                                         : layout.bytes_on(LayerId(layer), slot, tensor, layout.grid().lane(rank));
        part = {end, bytes};
        end += bytes;
        if (storage == Storage::PerExpert || slot + 1 == slots) guard();
      }
    }
  }
  memory_.assign(static_cast<std::size_t>(end), kGuardByte);
  for (const LayerId layer : IdRange<LayerId>(layout.layers())) {
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      for (std::int32_t tensor = 0; tensor < tensors; ++tensor) {
        const auto target = bytes(layer, slot, tensor);
        for (std::size_t k = 0; k < target.size(); ++k) {
          target[k] = wanted(now, layer, slot, tensor, static_cast<std::int64_t>(k));
        }
      }
    }
  }
}

const MemoryState::Part& MemoryState::part(LayerId layer, std::int32_t local_slot, std::int32_t tensor) const {
  return parts_.at(
      static_cast<std::size_t>((layer.value() * layout_.slots() + local_slot) * layout_.canary() + tensor));
}

std::span<std::byte> MemoryState::bytes(LayerId layer, std::int32_t local_slot, std::int32_t tensor) {
  if (tensor < 0 || tensor >= layout_.canary()) throw std::logic_error("asked for a tensor that is not the trainer's");
  const Part& at = part(layer, local_slot, tensor);
  return std::span(memory_).subspan(static_cast<std::size_t>(at.offset), static_cast<std::size_t>(at.bytes));
}

std::span<const std::byte> MemoryState::gradient(LayerId, std::int32_t, std::int32_t) {
  return gradients;
}

std::byte MemoryState::wanted(const Placement& now, LayerId layer, std::int32_t local_slot, std::int32_t tensor,
                              std::int64_t byte) const {
  const ExpertTensor& it = layout_.tensors()[static_cast<std::size_t>(tensor)];
  if (it.spread == Spread::Equal)
    return mixed(0, 0, static_cast<std::uint64_t>(tensor), static_cast<std::uint64_t>(byte));
  const ExpertGrid& grid = layout_.grid();
  const auto slot = static_cast<std::size_t>(grid.ep_rank(rank_) * layout_.slots() + local_slot);
  const ExpertId expert = now.physical_to_logical()[layer][slot];
  std::int64_t first = 0;
  if (it.spread == Spread::Sharded) {
    first = layout_.range_of(layer, local_slot, *it.parameter, grid.lane(rank_)).begin * bytes_of(it.type);
  }
  return mixed(layer, expert, static_cast<std::uint64_t>(tensor), static_cast<std::uint64_t>(first + byte));
}

std::string MemoryState::wrong(const Placement& now, LayerId layer) const {
  for (std::int32_t slot = 0; slot < layout_.slots(); ++slot) {
    for (std::int32_t tensor = 0; tensor < layout_.canary(); ++tensor) {
      const Part& at = part(layer, slot, tensor);
      for (std::int64_t k = 0; k < at.bytes; ++k) {
        if (memory_[static_cast<std::size_t>(at.offset + k)] == wanted(now, layer, slot, tensor, k)) continue;
        return "rank " + std::to_string(rank_) + " layer " + std::to_string(layer.value()) + " slot " +
               std::to_string(slot) + " tensor " + layout_.tensors()[static_cast<std::size_t>(tensor)].name + " byte " +
               std::to_string(k);
      }
    }
  }
  return "";
}

std::string MemoryState::overrun() const {
  for (const auto& [begin, end] : guards_) {
    for (std::int64_t k = begin; k < end; ++k) {
      if (memory_[static_cast<std::size_t>(k)] != kGuardByte) return "guard at " + std::to_string(k);
    }
  }
  return "";
}

}  // namespace routepack::testing
