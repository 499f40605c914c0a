// SPDX-License-Identifier: Apache-2.0
// Writing plan files (docs/formats.md has the keys).
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/file.h"
#include "core/json_text.h"
#include "routepack/plan_file.h"
#include "routepack/version.h"

namespace routepack {
namespace {

/// Visitor of describe(): every field under its name.
struct FieldWriter {
  Json& object;
  void integer(std::string_view name, std::int64_t value, std::int64_t, std::int64_t, std::string_view) {
    object[std::string(name)] = value;
  }
  void number(std::string_view name, double value, double, double, std::string_view) {
    object[std::string(name)] = value;
  }
  void bytes(std::string_view name, std::int64_t value, std::int64_t, std::string_view) {
    object[std::string(name)] = value;
  }
  void text(std::string_view name, const std::string& value, std::string_view) { object[std::string(name)] = value; }
  void texts(std::string_view name, const std::string& value, std::string_view) { object[std::string(name)] = value; }
  void flag(std::string_view name, bool value, std::string_view) { object[std::string(name)] = value; }
  template <class Enum>
  void choice(std::string_view name, Enum value, std::string_view) {
    object[std::string(name)] = name_of(value);
  }
};

template <class Described>
Json fields_of(const Described& described) {
  Json object = Json::object();
  describe(described, FieldWriter{object});
  return object;
}

Json cost_of(const PlanRecord& record) {
  Json stages = Json::array();
  for (const Stage& stage : record.stages) {
    stages.push_back({{"name", stage.name}, {"alpha", stage.alpha}, {"beta", stage.beta}});
  }
  Json cost = {{"stages", std::move(stages)}};
  if (record.expert_uniform && record.expert.size() == 1) {
    cost["expert"] = record.expert[0];
  } else {
    cost["expert"] = record.expert;
  }
  return cost;
}

Json bound_of(const PlanRecord& record) {
  Json bound = Json::object();
  if (record.bound) bound["max_shard"] = *record.bound;
  if (record.gap) bound["gap"] = *record.gap;
  if (record.bound_fixed_placement) bound["fixed_placement"] = *record.bound_fixed_placement;
  return bound;
}

Json moves_of(const PlanRecord::MovesRecord& record) {
  Json moves = {{"experts", record.experts}, {"fraction", record.fraction}, {"local", record.local}};
  if (record.bytes) moves["bytes"] = *record.bytes;
  return moves;
}

/// The moves themselves: per layer the swap cycles, and what goes into and out of every rank.
void add_move_list(Json& moves, const MoveList& list, std::size_t layers) {
  moves["between_nodes"] = list.between_nodes;
  moves["same_index"] = list.same_index;
  Json in = Json::array();
  Json out = Json::array();
  for (const RankTraffic& rank : list.ranks) {
    in.push_back(rank.in);
    out.push_back(rank.out);
  }
  moves["bytes_in"] = std::move(in);
  moves["bytes_out"] = std::move(out);
  Json cycles = Json::array();
  for (std::size_t l = 0; l < layers; ++l) cycles.push_back(Json::array());
  for (const MoveCycle& cycle : list.cycles) cycles[cycle.layer].push_back(cycle.slots);
  moves["cycles"] = std::move(cycles);
}

Json placing_of(const PlacementReport& report) {
  Json layers = Json::array();
  for (const LayerEnd end : report.layers) layers.push_back(name_of(end));
  return {{"sticky_swaps", report.sticky_swaps},
          {"swaps_needed", report.swaps_needed},
          {"row_aware_swaps", report.row_aware_swaps},
          {"layers", std::move(layers)}};
}

Json search_of(const SearchReport& report) {
  return {{"ending", name_of(report.ending)},    {"seed", report.seed},     {"seeds", report.seeds},
          {"failed_seeds", report.failed_seeds}, {"levels", report.levels}, {"proposals", report.proposals},
          {"accepted", report.accepted}};
}

Json maps_of(const Placement& placement) {
  Json maps = Json::array();
  for (const auto& layer : placement.physical_to_logical()) {
    Json& map = maps.emplace_back(Json::array());
    for (const ExpertId e : layer) map.push_back(e.value());
  }
  return maps;
}

Json named_numbers(const std::vector<std::pair<std::string, double>>& numbers) {
  constexpr std::array<std::string_view, 2> kTokens = {"expert_peak_sum", "tail_peak"};
  constexpr double kExact = 9007199254740992.0;  // 2^53
  Json object = Json::object();
  for (const auto& [name, value] : numbers) {
    const bool tokens = std::find(kTokens.begin(), kTokens.end(), name) != kTokens.end();
    if (tokens && value >= 0.0 && value < kExact && value == static_cast<double>(static_cast<std::int64_t>(value))) {
      object[name] = static_cast<std::int64_t>(value);
    } else {
      object[name] = value;
    }
  }
  return object;
}

Json document_of(const PlanRecord& record) {
  Json plan = {{"format", "routepack.plan/1"}};
  if (record.window) {
    plan["window"] = {{"samples", record.window->samples},
                      {"layers", record.window->layers},
                      {"experts", record.window->experts},
                      {"fingerprint", record.window->fingerprint}};
  }
  plan["topology"] = {{"ep", record.ep}, {"shards", record.shards}};
  if (record.pipeline_stages.value_or(1) > 1) plan["topology"]["pp"] = *record.pipeline_stages;
  plan["capacity"] = record.capacity;
  plan["constraints"] = fields_of(record.constraints);
  plan["cost"] = cost_of(record);
  plan["sync"] = name_of(record.sync);
  plan["complete"] = record.complete;
  plan["rows"] = record.rows;
  if (record.rows_lower_bound) plan["rows_lower_bound"] = *record.rows_lower_bound;
  if (record.rows_certified) plan["rows_certified"] = *record.rows_certified;
  if (record.dummies > 0) plan["dummies"] = record.dummies;
  plan["physical_to_logical"] = record.physical_to_logical;
  plan["layout"] = record.layout;
  if (record.score) {
    plan["score"] = {
        {"max_shard", record.score->max_shard}, {"total", record.score->total}, {"worst_row", record.score->worst_row}};
  }
  if (Json bound = bound_of(record); !bound.empty()) plan["bound"] = std::move(bound);
  if (record.moves) {
    plan["moves"] = moves_of(*record.moves);
    if (record.placing) add_move_list(plan["moves"], record.placing->moves, record.physical_to_logical.size());
  }
  if (record.placing) {
    plan["placing"] = placing_of(*record.placing);
    if (record.placing->first_batch)
      plan["first_batch"] = {{"physical_to_logical", maps_of(*record.placing->first_batch)}};
  }
  if (record.search) plan["search"] = search_of(*record.search);
  if (!record.metrics.empty()) plan["metrics"] = named_numbers(record.metrics);
  if (!record.timings_ms.empty()) plan["timings_ms"] = named_numbers(record.timings_ms);
  if (record.params) {
    plan["params"] = fields_of(*record.params);
    if (record.params->search) plan["params"]["search"] = fields_of(*record.params->search);
    plan["seed"] = record.params->seed;
  }
  plan["version"] = kVersion;
  return plan;
}

/// Lists of lists and long objects take a line per element, so that people and diff see layers, rows and fields.
bool takes_lines(const std::string& key, const Json& value, std::size_t line_length) {
  constexpr std::size_t kShort = 100;
  if (key == "physical_to_logical" || key == "layout") return !value.empty();
  return value.is_object() && line_length > kShort;
}

void append_lines(std::string& text, const Json& value) {
  const bool object = value.is_object();
  text += object ? '{' : '[';
  std::string_view separator = "\n    ";
  for (const auto& [key, element] : value.items()) {
    text += separator;
    if (object) text += Json(key).dump(-1, ' ', false, Json::error_handler_t::replace) + ": ";
    text += line_json(element);
    separator = ",\n    ";
  }
  text += object ? "\n  }" : "\n  ]";
}

}  // namespace

std::string to_json(const PlanRecord& record) {
  const Json document = document_of(record);
  std::string text = "{";
  std::string_view separator = "\n  ";
  for (const auto& [key, value] : document.items()) {
    text += separator;
    text += '"' + key + "\": ";
    const std::string line = line_json(value);
    if (takes_lines(key, value, line.size())) {
      append_lines(text, value);
    } else {
      text += line;
    }
    separator = ",\n  ";
  }
  text += "\n}\n";
  return text;
}

void save_plan(const PlanRecord& record, const std::filesystem::path& path) {
  write_atomically(path, to_json(record));
}

}  // namespace routepack
