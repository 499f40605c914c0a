// SPDX-License-Identifier: Apache-2.0
// Where experts go, before packing and after it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/sticky.h"
#include "plan/step.h"
#include "routepack/moves.h"
#include "routepack/placement.h"

namespace routepack {

/// Where a placing begins.
enum class PlacingStart {
  AsAsked,   ///< what params.placement says; joint begins like sticky
  FromFresh  ///< fresh LPT under the names of ranks that keep most experts at home
};

/// Moves experts step by step and keeps account of the budget.
class Placing {
 public:
  /// `demand` is that of all windows together, [L, E]; `bound` what no plan goes below.
  /// @throws InvalidInput for moves that cannot be read or that need bytes nobody gave
  Placing(const Instance& instance, const Placement& home, std::span<const std::int64_t> demand, double bound,
          const PlanParams& params);

  /// The placement before packing: as it is, fresh LPT, or the few swaps that balance the whole window.
  void place(PlacingStart start, Executor& executor);
  /// Nothing limits or prices moves.
  [[nodiscard]] bool free() const { return free_; }
  /// From now on home is the placement there is, and the budget what is left of it.
  void commit();
  /// Swaps that suit the rows of the steps, until none pays. False when none did.
  bool refine(std::span<const Step> steps, const Planning& planning);

  [[nodiscard]] const Placement& placement() const { return placement_; }
  /// After commit(): the placement of the first batch.
  [[nodiscard]] const std::optional<Placement>& first_batch() const { return first_batch_; }
  [[nodiscard]] PlacementReport report() const;
  [[nodiscard]] bool complete() const { return complete_; }

 private:
  const Instance* instance_;
  Placement home_;
  std::span<const std::int64_t> demand_;
  const PlanParams* params_;
  std::int64_t expert_bytes_;
  bool free_ = false;
  MoveBudget budget_;
  MoveLedger ledger_;
  Placement placement_;
  std::optional<Placement> first_batch_;
  std::vector<StickyLayer> layers_;
  std::int64_t row_aware_swaps_ = 0;
  bool complete_ = true;
};

}  // namespace routepack
