// SPDX-License-Identifier: Apache-2.0
// Reading plan files: JSON types and ranges, and nothing about what the numbers mean.
#include "routepack/plan_file.h"

#include <fmt/format.h>

#include <limits>
#include <string_view>
#include <utility>

#include "core/file.h"
#include "core/json_file.h"
#include "routepack/error.h"

namespace routepack {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

/// An object, and what to call it in messages: «plan.json» and below that «topology».
class Reader {
 public:
  Reader(const Json& object, std::string source, std::string path)
      : object_(json_object(object, path.empty() ? source : fmt::format("{}: {}", source, path))),
        source_(std::move(source)),
        path_(std::move(path)) {}

  [[nodiscard]] std::string where(std::string_view key) const {
    return path_.empty() ? fmt::format("{}: {}", source_, key) : fmt::format("{}: {}.{}", source_, path_, key);
  }
  [[nodiscard]] const Json& needed(std::string_view key) const {
    return json_member(object_, key, path_.empty() ? source_ : fmt::format("{}: {}", source_, path_));
  }
  [[nodiscard]] const Json* find(std::string_view key) const {
    const auto found = object_.find(std::string(key));
    return found == object_.end() ? nullptr : &*found;
  }
  [[nodiscard]] Reader object(std::string_view key) const { return Reader(needed(key), source_, below(key)); }
  [[nodiscard]] std::optional<Reader> optional_object(std::string_view key) const {
    const Json* found = find(key);
    return found == nullptr ? std::nullopt : std::optional(Reader(*found, source_, below(key)));
  }
  [[nodiscard]] Reader element(const Json& value, std::string_view key, std::size_t index) const {
    return Reader(value, source_, fmt::format("{}[{}]", below(key), index));
  }

  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t min, std::int64_t max) const {
    return json_integer(needed(key), where(key), min, max);
  }
  [[nodiscard]] std::optional<std::int64_t> optional_integer(std::string_view key, std::int64_t min,
                                                             std::int64_t max) const {
    const Json* found = find(key);
    return found == nullptr ? std::nullopt : std::optional(json_integer(*found, where(key), min, max));
  }
  [[nodiscard]] double number(std::string_view key) const { return json_number(needed(key), where(key)); }
  [[nodiscard]] std::optional<double> optional_number(std::string_view key) const {
    const Json* found = find(key);
    return found == nullptr ? std::nullopt : std::optional(json_number(*found, where(key)));
  }
  [[nodiscard]] std::optional<bool> optional_bool(std::string_view key) const {
    const Json* found = find(key);
    return found == nullptr ? std::nullopt : std::optional(json_bool(*found, where(key)));
  }
  [[nodiscard]] const std::string& string(std::string_view key) const { return json_string(needed(key), where(key)); }

  /// One of the names of an enumeration, in place when the key is there.
  template <class Enum>
  void optional_choice(std::string_view key, Enum& value) const {
    const Json* found = find(key);
    if (found == nullptr) return;
    const std::string& name = json_string(*found, where(key));
    std::string names;
    for (const auto& choice : choices(Enum{})) {
      if (choice.name == name) {
        value = choice.value;
        return;
      }
      names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", choice.name);
    }
    throw FormatError(fmt::format("{}: found {}, wanted one of {}", where(key), describe_json(*found), names));
  }

  /// Every member as a named number.
  [[nodiscard]] std::vector<std::pair<std::string, double>> numbers() const {
    std::vector<std::pair<std::string, double>> numbers;
    for (const auto& [key, value] : object_.items()) numbers.emplace_back(key, json_number(value, where(key)));
    return numbers;
  }

 private:
  [[nodiscard]] std::string below(std::string_view key) const {
    return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  }

  const Json& object_;
  std::string source_;
  std::string path_;
};

/// Visitor of describe(): sets the fields that the object has.
struct FieldReader {
  const Reader& from;
  void integer(std::string_view name, std::int64_t& value, std::int64_t min, std::int64_t max, std::string_view) {
    value = from.optional_integer(name, min, max).value_or(value);
  }
  void number(std::string_view name, double& value, double min, double max, std::string_view) {
    const auto read = from.optional_number(name);
    if (!read) return;
    if (!(*read >= min && *read <= max)) {
      throw FormatError(fmt::format("{}: found {}, wanted {} to {}", from.where(name), *read, min, max));
    }
    value = *read;
  }
  void bytes(std::string_view name, std::int64_t& value, std::int64_t max, std::string_view help) {
    integer(name, value, 0, max, help);
  }
  void text(std::string_view name, std::string& value, std::string_view) {
    if (const Json* found = from.find(name)) value = json_string(*found, from.where(name));
  }
  void texts(std::string_view name, std::string& value, std::string_view help) { text(name, value, help); }
  void flag(std::string_view name, bool& value, std::string_view) { value = from.optional_bool(name).value_or(value); }
  template <class Enum>
  void choice(std::string_view name, Enum& value, std::string_view) {
    from.optional_choice(name, value);
  }
};

void read_topology(const Reader& topology, PlanRecord& record) {
  record.ep = static_cast<std::int32_t>(topology.integer("ep", 1, kMaxInt32));
  record.shards = json_index_lists(topology.needed("shards"), topology.where("shards"));
  record.pipeline_stages = topology.optional_integer("pp", 1, kMaxInt32);
}

void read_cost(const Reader& cost, PlanRecord& record) {
  const Json& stages = json_array(cost.needed("stages"), cost.where("stages"));
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Reader stage = cost.element(stages[s], "stages", s);
    record.stages.push_back(
        Stage{.name = stage.string("name"), .alpha = stage.number("alpha"), .beta = stage.number("beta")});
  }
  const Json& expert = cost.needed("expert");
  record.expert_uniform = !expert.is_array();
  if (record.expert_uniform) {
    if (!expert.is_number()) {
      throw FormatError(fmt::format("{}: found {}, wanted a number, or a list with one number per layer",
                                    cost.where("expert"), describe_json(expert)));
    }
    record.expert = {json_number(expert, cost.where("expert"))};
    return;
  }
  record.expert.clear();
  for (std::size_t l = 0; l < expert.size(); ++l) {
    record.expert.push_back(json_number(expert[l], cost.where(fmt::format("expert[{}]", l))));
  }
}

void read_stamp(const Reader& window, PlanRecord& record) {
  record.window = PlanRecord::WindowStamp{.samples = window.integer("samples", 0, kMaxInt64),
                                          .layers = window.integer("layers", 0, kMaxInt64),
                                          .experts = window.integer("experts", 0, kMaxInt64),
                                          .fingerprint = window.string("fingerprint")};
}

/// What a planner says about its result.
void read_figures(const Reader& plan, PlanRecord& record) {
  record.rows_lower_bound = plan.optional_integer("rows_lower_bound", 0, kMaxInt64);
  record.rows_certified = plan.optional_bool("rows_certified");
  if (const auto score = plan.optional_object("score")) {
    record.score = Score{.max_shard = score->number("max_shard"),
                         .total = score->number("total"),
                         .worst_row = score->number("worst_row")};
  }
  if (const auto bound = plan.optional_object("bound")) {
    record.bound = bound->optional_number("max_shard");
    record.gap = bound->optional_number("gap");
    record.bound_fixed_placement = bound->optional_number("fixed_placement");
  }
  if (const auto moves = plan.optional_object("moves")) {
    record.moves = PlanRecord::MovesRecord{.experts = moves->integer("experts", 0, kMaxInt64),
                                           .local = moves->optional_integer("local", 0, kMaxInt64).value_or(0),
                                           .fraction = moves->number("fraction"),
                                           .bytes = moves->optional_integer("bytes", 0, kMaxInt64)};
  }
  if (const auto metrics = plan.optional_object("metrics")) record.metrics = metrics->numbers();
}

/// How the plan came about.
void read_provenance(const Reader& plan, PlanRecord& record) {
  if (const auto timings = plan.optional_object("timings_ms")) record.timings_ms = timings->numbers();
  if (const auto params = plan.optional_object("params")) {
    describe(record.params.emplace(), FieldReader{*params});
    if (const auto search = params->optional_object("search")) {
      describe(record.params->search.emplace(), FieldReader{*search});
    }
  }
  const auto seed = plan.optional_integer("seed", 0, kMaxInt64);
  if (seed && record.params && record.params->seed != *seed) {
    throw FormatError(
        fmt::format("{}: found {}, wanted {}, as in params.seed", plan.where("seed"), *seed, record.params->seed));
  }
  if (const Json* version = plan.find("version")) json_string(*version, plan.where("version"));
}

}  // namespace

PlanRecord parse_plan(const std::string& json, const std::string& source) {
  const Json document = parse_json(json, source);
  check_format(document, "routepack.plan", 1, source);
  const Reader plan(document, source, "");
  PlanRecord record;
  record.source = source;
  if (const auto window = plan.optional_object("window")) read_stamp(*window, record);
  read_topology(plan.object("topology"), record);
  record.capacity = plan.integer("capacity", 1, kMaxCapacity);
  if (const auto constraints = plan.optional_object("constraints")) {
    describe(record.constraints, FieldReader{*constraints});
  }
  read_cost(plan.object("cost"), record);
  plan.optional_choice("sync", record.sync);
  record.complete = plan.optional_bool("complete").value_or(true);
  record.rows = plan.integer("rows", 0, kMaxInt32);
  record.dummies = plan.optional_integer("dummies", 0, kMaxInt32).value_or(0);
  record.physical_to_logical = json_index_lists(plan.needed("physical_to_logical"), plan.where("physical_to_logical"));
  record.layout = json_index_tables(plan.needed("layout"), plan.where("layout"));
  read_figures(plan, record);
  read_provenance(plan, record);
  return record;
}

PlanRecord load_plan(const std::filesystem::path& path) {
  return parse_plan(read_text(path), path.string());
}

}  // namespace routepack
