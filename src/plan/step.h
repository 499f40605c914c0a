// SPDX-License-Identifier: Apache-2.0
// One optimizer step on its way to a layout: how many rows, what each cell holds, and the same again once experts have
// moved.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "exec/deadline.h"
#include "exec/executor.h"
#include "packing/arrangement.h"
#include "packing/fit.h"
#include "packing/items.h"
#include "routepack/error.h"
#include "routepack/instance.h"
#include "routepack/layout.h"
#include "routepack/params.h"
#include "routepack/placement.h"
#include "routepack/plan.h"
#include "routepack/score.h"

namespace routepack {

/// What all phases of planning share.
struct Planning {
  const PlanParams& params;
  SearchParams search;
  Executor& executor;        ///< with a team: work that it shares
  Executor& local;           ///< work that every process does for itself, and must do alike
  const Deadline& deadline;  ///< or a stop that the caller asks for
  const RunContext& run;

  /// The deadline for work that every process does for itself: none in a team, where clocks differ.
  [[nodiscard]] std::stop_token stop_alone() const { return executor.alone() ? deadline.token() : std::stop_token(); }
};

/// Packs one instance. Refers to it; it must outlive the step.
class Step {
 public:
  /// The items of the window, or why some of them can never be packed.
  static std::variant<Step, Infeasible> make(const Instance& instance);

  /// Rows, seeds and search under a placement. `demand` is that of the window, [L, E].
  std::optional<Infeasible> pack(const Placement& placement, std::span<const std::int64_t> demand,
                                 const Planning& planning);
  /// Searches on from the layout there is, under another placement. The score under it never gets worse.
  void repack(const Placement& placement, std::span<const std::int64_t> demand, const Planning& planning);

  [[nodiscard]] const Instance& instance() const { return *instance_; }
  [[nodiscard]] const Arrangement& arrangement() const { return arrangement_; }
  [[nodiscard]] Layout layout() const;
  /// Rows in the order that the parameters ask for, under the placement that was packed for last.
  [[nodiscard]] Layout ordered_layout(const Placement& placement, RowOrder order, Executor& executor) const;
  [[nodiscard]] const RowCount& rows() const { return rows_; }
  [[nodiscard]] const SearchReport& report() const { return report_; }
  [[nodiscard]] std::int64_t dummies() const { return items_.dummies; }
  [[nodiscard]] bool complete() const { return complete_; }

 private:
  Step(const Instance& instance, Items items) : instance_(&instance), items_(std::move(items)) {}

  const Instance* instance_;
  Items items_;
  Arrangement arrangement_;
  RowCount rows_;
  SearchReport report_;
  bool complete_ = true;
};

}  // namespace routepack
