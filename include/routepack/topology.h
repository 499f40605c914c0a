// SPDX-License-Identifier: Apache-2.0
// Which data-parallel slots meet in which expert-parallel communicator.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "routepack/ids.h"

namespace routepack {

/// Sizes of Megatron's parallel groups inside one pipeline stage, ranks in order tp-cp-ep-dp-pp.
struct MegatronGrid {
  std::int32_t dp = 0;   ///< D, data-parallel slots
  std::int32_t ep = 0;   ///< P, expert-parallel ranks
  std::int32_t tp = 1;   ///< tensor parallel
  std::int32_t cp = 1;   ///< context parallel
  std::int32_t etp = 1;  ///< expert tensor parallel
  std::int32_t pp = 1;   ///< pipeline stages: at least that many rows are asked for
};

/// A partition of the D slots into G shards, and the P ranks of each shard's communicator. Immutable.
class Topology {
 public:
  /// Megatron's rule: slot d starts at rank d·TP·CP, and rank / (ETP·EP) is its shard, so |D_g| = ETP·EP / (TP·CP).
  /// @throws InvalidInput unless TP·CP divides ETP·EP and ETP·EP divides D·TP·CP.
  static Topology megatron(const MegatronGrid& grid);

  /// Shards given slot by slot.
  /// @throws InvalidInput unless they partition 0 … D − 1 and none is empty.
  static Topology from_shards(std::int32_t ranks, std::vector<std::vector<SlotId>> shards,
                              std::int32_t pipeline_stages = 1);

  [[nodiscard]] std::int32_t slots() const { return static_cast<std::int32_t>(shard_of_.size()); }  ///< D
  [[nodiscard]] std::int32_t ranks() const { return ranks_; }                                       ///< P
  [[nodiscard]] std::int32_t shards() const { return static_cast<std::int32_t>(shards_.size()); }   ///< G
  [[nodiscard]] std::int32_t pipeline_stages() const { return pipeline_stages_; }

  [[nodiscard]] IdRange<SlotId> slot_ids() const { return IdRange<SlotId>(slots()); }
  [[nodiscard]] IdRange<ShardId> shard_ids() const { return IdRange<ShardId>(shards()); }
  [[nodiscard]] std::span<const SlotId> slots_of(ShardId g) const { return shards_[g]; }
  [[nodiscard]] ShardId shard_of(SlotId d) const { return shard_of_[d]; }

 private:
  Topology() = default;

  std::int32_t ranks_ = 0;
  std::int32_t pipeline_stages_ = 1;
  std::vector<std::vector<SlotId>> shards_;
  std::vector<ShardId> shard_of_;
};

}  // namespace routepack
