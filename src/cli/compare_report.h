// SPDX-License-Identifier: Apache-2.0
// A comparison as tables for people, as JSON and as CSV. Names of keys and columns are documented and stable.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/comparison.h"
#include "core/json.h"

namespace routepack::cli {

/// One combination over all windows: means over those where it and the baseline are ranked by the objective.
struct Average {
  Combination what;
  std::int64_t ranked = 0;  ///< windows where it is
  std::int64_t best = 0;    ///< windows where it is first
  std::optional<double> joint_change, attention_change, expert_peak_sum_change, tail_peak_change;
  double ep_efficiency = 0.0, gap = 0.0, planning_ms = 0.0;
};

std::vector<Average> averages(std::span<const WindowComparison> windows, const ComparisonPlan& plan);

/// One table, at most 100 columns wide, and what its marks mean.
std::string window_text(const WindowComparison& window, const ComparisonPlan& plan);
std::string summary_text(std::span<const WindowComparison> windows, const ComparisonPlan& plan);

Json comparison_json(std::span<const WindowComparison> windows, const ComparisonPlan& plan);
std::string comparison_csv(std::span<const WindowComparison> windows, const ComparisonPlan& plan);

}  // namespace routepack::cli
