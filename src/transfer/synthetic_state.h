// SPDX-License-Identifier: Apache-2.0
// State of a trainer that never was: every byte says whose it is, so that a wrong one is found and named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "routepack/grid_layout.h"
#include "routepack/placement.h"
#include "routepack/transfer_engine.h"

namespace routepack {

/// Live state of one rank. Byte b of a whole tensor is a function of (seed, layer, logical expert, tensor, b), whatever
/// slot and lane hold it; a step is a function of (seed, tensor) alone, equal everywhere. About 5 GB/s on one core, to
/// fill and to check; pages are touched by the thread that constructs it.
class SyntheticState : public RankState {
 public:
  /// @throws InvalidInput when placement and layout differ in shape, or the rank is not on the grid
  SyntheticState(const GridLayout& layout, std::int32_t rank, const Placement& now, std::uint64_t seed);

  std::span<std::byte> bytes(LayerId layer, std::int32_t local_slot, std::int32_t tensor) override;
  /// None, unless set_gradient() gave one.
  std::span<const std::byte> gradient(LayerId layer, std::int32_t local_slot, std::int32_t parameter) override;
  TrainerFacts facts() override { return facts_; }

  void set_gradient(LayerId layer, std::int32_t local_slot, std::int32_t parameter, std::vector<std::byte> bytes);
  void set_facts(const TrainerFacts& facts) { facts_ = facts; }

  /// Writes again what the slots hold under `now`.
  void fill(const Placement& now);
  /// The first byte that is not what it must be under `expected`, in one line with layer, slot, expert, tensor and
  /// element; nothing when all are right.
  [[nodiscard]] std::optional<std::string> mismatch(const Placement& expected) const;
  /// The same for one layer.
  [[nodiscard]] std::optional<std::string> mismatch(const Placement& expected, LayerId layer) const;
  /// Bytes of all tensors on this rank.
  [[nodiscard]] std::int64_t size() const;

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  [[nodiscard]] std::size_t index(LayerId layer, std::int32_t local_slot, std::int32_t tensor) const;
  [[nodiscard]] std::span<std::byte> part(std::size_t index) const;
  [[nodiscard]] std::uint64_t key(LayerId layer, ExpertId expert, std::int32_t tensor) const;
  /// Where this rank's part begins in the whole tensor, in bytes.
  [[nodiscard]] std::int64_t begin_of(LayerId layer, std::int32_t local_slot, std::int32_t tensor) const;
  [[nodiscard]] ExpertId expert_in(const Placement& placement, LayerId layer, std::int32_t local_slot) const;
  void require_fits(const Placement& placement) const;

  GridLayout layout_;
  std::int32_t rank_, ep_rank_, lane_;
  std::uint64_t seed_;
  std::int32_t tensors_;                                    // without the canary
  std::vector<std::pair<std::size_t, std::size_t>> parts_;  // [L·n·tensors_], offset and bytes
  std::unique_ptr<std::byte[], Free> live_;
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::vector<std::byte>> gradients_;
  TrainerFacts facts_;
};

}  // namespace routepack
