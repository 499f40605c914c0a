// SPDX-License-Identifier: Apache-2.0
// The planner: a window in, a placement and a layout out.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "routepack/bounds.h"
#include "routepack/error.h"
#include "routepack/instance.h"
#include "routepack/layout.h"
#include "routepack/placement.h"
#include "routepack/score.h"

namespace routepack {

/// Phases of planning in order; their times are reported under these names.
enum class Phase { Demand, Place, Rows, Pack, Check };
inline constexpr std::array<std::string_view, 5> kPhaseNames = {"demand", "place", "rows", "pack", "check"};

/// Called by the coordinating thread between phases; the defaults do nothing.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void phase_begins(Phase /*phase*/) {}
};

/// What travels through a planning run instead of globals.
struct RunContext {
  Observer* observer = nullptr;  ///< may be null
  std::stop_token stop;          ///< asked between phases

  /// Tells the observer. @throws Cancelled when a stop was requested.
  void enter(Phase phase) const;
};

/// A stop was requested before there was a plan.
class Cancelled : public Error {
 public:
  using Error::Error;
};

/// How many rows a plan uses and what is known about using fewer.
struct RowCount {
  std::int64_t rows = 0;
  std::int64_t lower_bound = 0;
  std::string because = {};  ///< the rule that binds the lower bound, for people
  [[nodiscard]] bool certified() const { return rows == lower_bound; }
};

/// A plan with everything that was measured about it. The layout's sample indices at or past the window's N are
/// dummies.
struct Plan {
  Placement placement;
  Layout layout;
  RowCount rows;
  std::int64_t dummies = 0;
  Evaluation evaluation;
  Bounds bounds;
  Moves moves;
  double cv_global = 0.0;
  double cv_global_before = 0.0;  ///< at the current placement
  bool complete = true;           ///< false: cut short by a deadline; valid, not reproducible
};

/// Plans one optimizer step (docs/algorithm.md): place experts, fix the rows, fill them. The result passed the same
/// checks as a plan read from a file. `current` is where experts are now; null means identity.
/// @throws InvalidInput when `current` has another shape, or a parameter is not built yet; Cancelled.
std::variant<Plan, Infeasible> make_plan(const Instance& instance, const PlanParams& params,
                                         const Placement* current = nullptr, const RunContext& run = {});

/// @throws InvalidInput, with `where` in front, unless the placement has the instance's layers, experts and EP ranks.
void require_fits(const Placement& placement, const Instance& instance, const std::string& where);

/// What a framework does without routes: samples by falling length, each to the first cell that still holds it, cells
/// in order. The yardstick that `routepack plan` prints beside its own result.
std::variant<Layout, Infeasible> pack_first_fit_decreasing(const Instance& instance);

}  // namespace routepack
