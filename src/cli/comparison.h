// SPDX-License-Identifier: Apache-2.0
// Every placement with every packer on a window: what compare measures, without a word about how it is printed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/options.h"
#include "cli/step_timing.h"
#include "routepack/placement.h"
#include "routepack/score.h"
#include "routepack/simulate.h"

namespace routepack::cli {

inline constexpr const char* kOurs = "routepack";  ///< the planner among the strategies

/// A placement and a strategy by name; spelled «lpt/areal-ffd».
struct Combination {
  std::string placement;
  std::string strategy;
  [[nodiscard]] std::string name() const { return placement + "/" + strategy; }
  friend bool operator==(const Combination&, const Combination&) = default;
};

/// What is compared with what.
struct ComparisonPlan {
  std::vector<Combination> combinations;  ///< grouped by placement
  Combination baseline;                   ///< one of them
  bool steps = false;                     ///< windows follow each other, placements are carried along
};

/// One combination on one window.
struct Entry {
  Combination what;
  std::string reason;  ///< why there is no layout; then only the time counts
  std::string remedy;  ///< what would help
  std::optional<Evaluation> evaluation;
  std::int64_t rows = 0;
  std::int64_t cells_over_cap = 0;
  std::int64_t fullest_cell = 0;          ///< aligned tokens
  std::int64_t dummies_removed = 0;       ///< one-token samples a packer needed and that were not scored
  std::vector<std::string> broken_rules;  ///< names of verify's rules
  bool more_rows = false;                 ///< than the fewest of an entry that keeps all rules
  std::int64_t rank = 0;                  ///< 1 = best; 0 = not ranked by the objective
  double gap = 0.0;                       ///< to the bound over any placement
  double planning_ms = 0.0;               ///< placing and packing, without reading, checking and scoring
  std::optional<double> step_seconds;     ///< simulated, with a device

  [[nodiscard]] bool keeps_rules() const { return evaluation && broken_rules.empty(); }
};

struct PlacementUse {
  std::string name;
  Moves moves;  ///< from where the experts were before
  double ms = 0.0;
  double cv = 0.0;                     ///< of the rank demand over the whole window
  std::optional<double> move_seconds;  ///< of the state over the device's links, with a device and a model
};

struct WindowComparison {
  std::filesystem::path path;
  std::int32_t samples = 0;
  std::int64_t tokens = 0;
  double bound = 0.0;
  std::int64_t fewest_rows = 0;                  ///< of the entries that keep all rules
  std::optional<std::int64_t> rows_lower_bound;  ///< what our planner proved
  std::vector<PlacementUse> placements;
  std::vector<Entry> entries;

  [[nodiscard]] const Entry& of(const Combination& what) const;
};

/// to / from − 1; nothing when the baseline has no layout or 0.
std::optional<double> change_of(const Entry& baseline, const Entry& entry,
                                const std::function<double(const Evaluation&)>& figure);

/// Measures windows one after the other. Placements: `identity`; `current`, where the setup's file says that experts
/// are; `lpt`, placed afresh for the window; `keep`, what `lpt` gave for the first window; `sticky`, few swaps from
/// where the window before left them; `joint`, with our planner only, swaps that suit the rows too.
class Comparer {
 public:
  Comparer(const PlanSetup& setup, const StepTimingOptions& time, ComparisonPlan plan);

  /// @throws InvalidInput, Cancelled; InfeasibleError when no combination has a layout
  WindowComparison measure(const std::filesystem::path& path);

 private:
  const PlanSetup& setup_;
  ComparisonPlan plan_;
  std::optional<double> step_seconds(const Instance& instance, const Placement& placement, const Layout& layout) const;
  std::optional<double> move_seconds(const Placement& before, const Placement& now) const;

  std::optional<StepTiming> timing_;  // with --device or --timing
  std::optional<Device> device_;
  std::optional<Placement> start_;              // --current
  std::map<std::string, Placement> in_effect_;  // by placement name, with steps: after the window before
};

}  // namespace routepack::cli
