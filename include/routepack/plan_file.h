// SPDX-License-Identifier: Apache-2.0
// Plan files, `routepack.plan/1` (docs/formats.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "routepack/cost.h"
#include "routepack/params.h"
#include "routepack/plan.h"

namespace routepack {

/// A plan file as read: the JSON types are right and nothing else is promised. `verify` judges it, and `check_record`
/// turns it into validated types. Fields that only a planner writes are optional.
struct PlanRecord {
  std::string source = "plan";  ///< where it came from, for messages

  std::int32_t ep = 0;
  std::vector<std::vector<std::int32_t>> shards;
  std::int64_t capacity = 0;
  std::int64_t rows = 0;
  std::vector<std::vector<std::int32_t>> physical_to_logical;
  std::vector<std::vector<std::vector<std::int32_t>>> layout;
  std::vector<Stage> stages;
  std::vector<double> expert = {1.0};
  bool expert_uniform = true;
  Constraints constraints;
  Sync sync = Sync::Step;
  std::int64_t dummies = 0;
  bool complete = true;

  struct WindowStamp {
    std::int64_t samples = 0, layers = 0, experts = 0;
    std::string fingerprint;
  };
  std::optional<WindowStamp> window;
  std::optional<std::int64_t> pipeline_stages;  ///< topology.pp
  std::optional<std::int64_t> rows_lower_bound;
  std::optional<bool> rows_certified;
  std::optional<Score> score;
  std::optional<double> bound;  ///< over any placement
  std::optional<double> gap;
  std::optional<double> bound_fixed_placement;
  struct MovesRecord {
    std::int64_t experts = 0;
    std::int64_t local = 0;
    double fraction = 0.0;
    std::optional<std::int64_t> bytes;
  };
  std::optional<MovesRecord> moves;
  /// JSON names and values of the metrics, in file order.
  std::vector<std::pair<std::string, double>> metrics;

  // Only written, never needed to read a plan.
  std::vector<std::pair<std::string, double>> timings_ms;
  std::optional<PlanParams> params;
  std::optional<SearchReport> search;
  std::optional<PlacementReport> placing;
};

/// Everything a plan file says about `plan`.
PlanRecord make_record(const Instance& instance, const PlanParams& params, const Plan& plan);

/// JSON text of a plan, keys in the order of docs/formats.md, one line per layer map and per row.
std::string to_json(const PlanRecord& record);
/// @throws IoError; the file appears whole or not at all.
void save_plan(const PlanRecord& record, const std::filesystem::path& path);

/// Unknown keys are ignored, another major version is refused.
/// @throws FormatError naming the key, what was found and what was wanted.
PlanRecord parse_plan(const std::string& json, const std::string& source);
/// @throws IoError, FormatError
PlanRecord load_plan(const std::filesystem::path& path);

/// «xxh3:» and 16 hex digits over the canonical JSON without timings_ms, params.threads and version.
std::string plan_hash(const std::string& json);

/// A record turned into validated types, ready to be scored.
struct CheckedPlan {
  Instance instance;
  Placement placement;
  Layout layout;
};

/// @throws InvalidInput when the plan is for another window or breaks a rule that scoring needs (permutations, shards,
///         every sample once, shapes).
CheckedPlan check_record(const PlanRecord& record, const Window& window);

}  // namespace routepack
