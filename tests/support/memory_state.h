// SPDX-License-Identifier: Apache-2.0
// A trainer's state on one rank, in memory that can be looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "routepack/grid_layout.h"
#include "routepack/placement.h"
#include "routepack/transfer_engine.h"

namespace routepack::testing {

/// State of one rank whose every byte says which expert's it is, wherever it lies. Each tensor lies by itself or all
/// slots of a layer in one, between guard bytes; where it lies never changes.
class MemoryState : public RankState {
 public:
  enum class Storage { PerExpert, Stacked };

  MemoryState(const GridLayout& layout, std::int32_t rank, const Placement& now, Storage storage = Storage::PerExpert);

  std::span<std::byte> bytes(LayerId layer, std::int32_t local_slot, std::int32_t tensor) override;
  std::span<const std::byte> gradient(LayerId layer, std::int32_t local_slot, std::int32_t parameter) override;
  TrainerFacts facts() override { return trainer; }

  /// What is wrong with the bytes of a layer if it is to be as `now` has it; empty when nothing is.
  [[nodiscard]] std::string wrong(const Placement& now, LayerId layer) const;
  /// Guards that were overwritten; empty when none was.
  [[nodiscard]] std::string overrun() const;

  TrainerFacts trainer;
  std::vector<std::byte> gradients;  ///< of every parameter of every slot; empty: none

 private:
  struct Part {
    std::int64_t offset = 0, bytes = 0;
  };
  [[nodiscard]] const Part& part(LayerId layer, std::int32_t local_slot, std::int32_t tensor) const;
  [[nodiscard]] std::byte wanted(const Placement& now, LayerId layer, std::int32_t local_slot, std::int32_t tensor,
                                 std::int64_t byte) const;

  const GridLayout& layout_;
  std::int32_t rank_;
  std::vector<Part> parts_;  // [L, n, tensors]
  std::vector<std::pair<std::int64_t, std::int64_t>> guards_;
  std::vector<std::byte> memory_;
};

}  // namespace routepack::testing
