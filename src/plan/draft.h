// SPDX-License-Identifier: Apache-2.0
// One way to place experts, with the layouts that were made for it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/placing.h"
#include "plan/step.h"
#include "routepack/error.h"
#include "routepack/instance.h"
#include "routepack/placement.h"

namespace routepack {

/// What the steps that share a placement ask of the experts, [L, E], one by one and together.
struct Demands {
  Demands(std::span<const Instance* const> instances, const Placement& placement, Executor& executor);

  std::vector<std::vector<std::int64_t>> of_step;
  std::vector<std::int64_t> total;
  double bound = 0.0;  ///< Σ over steps of what no placement and packing goes below
};

/// Refers to the demands and the planning given; they must outlive it.
class Draft {
 public:
  /// Steps that nobody packed yet, and a placing that moved no expert yet.
  Draft(std::vector<Step> steps, Placing placing, const Demands& demands, const Planning& planning)
      : steps_(std::move(steps)), placing_(std::move(placing)), demands_(&demands), planning_(&planning) {}

  /// Moves experts as `start` says and packs every step for that.
  std::optional<Infeasible> place_and_pack(PlacingStart start);
  /// Lets experts suit the rows and rows the experts in turn, while it pays.
  void refine();

  /// Fewer rows first, then the sum of the first score components of the steps.
  [[nodiscard]] bool better_than(const Draft& other) const;
  [[nodiscard]] std::span<const Step> steps() const { return steps_; }
  [[nodiscard]] const Placing& placing() const { return placing_; }
  /// False when a deadline or a stop left something undone.
  [[nodiscard]] bool complete() const { return complete_; }

 private:
  std::vector<Step> steps_;
  Placing placing_;
  const Demands* demands_;
  const Planning* planning_;
  bool complete_ = true;
};

}  // namespace routepack
