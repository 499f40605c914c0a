// SPDX-License-Identifier: Apache-2.0
// Timing files (docs/formats.md).
#include <fmt/format.h>

#include <utility>

#include "core/file.h"
#include "core/toml.h"
#include "routepack/simulate.h"
#include "simulate/interleave.h"

namespace routepack {
namespace {

constexpr double kLongest = 1e6;  // seconds; anything longer is a mistake
constexpr std::int64_t kMostLayers = 10'000;

double seconds(const TomlTable& table, std::string_view key) {
  return table.number(key, 0.0, kLongest).value_or(0.0);
}

double need_seconds(const TomlTable& table, std::string_view key) {
  const auto value = table.number(key, 0.0, kLongest);
  if (!value) table.fail(key, "missing, wanted seconds");
  return *value;
}

}  // namespace

StepTiming StepTiming::load(const std::filesystem::path& path) {
  return parse(read_text(path, kMaxTomlBytes), path.string());
}

StepTiming StepTiming::parse(const std::string& toml, const std::string& where) {
  const TomlTable root = TomlTable::parse(toml, where);
  root.refuse_unknown_keys({"tile", "dense_layers", "expert", "all_to_all", "stage", "fixed"});
  StepTiming timing;
  timing.tile = root.integer("tile", 1, 1 << 20).value_or(1);
  const TomlTable fixed = root.table("fixed").value_or(TomlTable::parse("", where));
  fixed.refuse_unknown_keys({"row", "step", "layer", "forward_share"});
  const double share = fixed.number("forward_share", 0.0, 1.0).value_or(1.0 / 3.0);
  const auto split = [share](double both) {
    const double forward = both * share;
    return PerPass{forward, both - forward};
  };
  const auto expert = root.table("expert");
  if (!expert) root.fail("expert", "missing, wanted a table with token = seconds");
  expert->refuse_unknown_keys({"token", "active"});
  timing.expert = split(need_seconds(*expert, "token"));
  timing.active = split(seconds(*expert, "active"));
  if (const auto all_to_all = root.table("all_to_all")) {
    all_to_all->refuse_unknown_keys({"token", "fixed"});
    // Dispatch and combine of a pass carry the same.
    const auto half = [&](std::string_view key) { return split(seconds(*all_to_all, key) / 2.0); };
    timing.exchange = half("token");
    timing.exchange_fixed = half("fixed");
  }
  timing.row = seconds(fixed, "row");
  timing.layer_fixed = split(seconds(fixed, "layer"));
  timing.optimizer = seconds(fixed, "step");

  const auto stages = root.tables("stage");
  if (!stages || stages->empty()) root.fail("stage", "missing, wanted at least one [[stage]]");
  std::vector<std::int64_t> counts;
  std::vector<LayerTiming> layer_of;  // by stage
  std::int64_t all = 0;
  for (const TomlTable& stage : *stages) {
    stage.refuse_unknown_keys({"name", "layers", "token", "pair"});
    const std::string name = stage.string("name").value_or("");
    if (name.empty()) stage.fail("name", "missing, wanted the name of the stage");
    const auto layers = stage.integer("layers", 1, kMostLayers);
    if (!layers) stage.fail("layers", "missing, wanted the number of layers of this stage");
    const auto each = [&](std::string_view key) {
      return split(need_seconds(stage, key) / static_cast<double>(*layers));
    };
    layer_of.push_back({.stage = name, .token = each("token"), .pair = each("pair")});
    counts.push_back(*layers);
    all += *layers;
  }
  if (all > kMostLayers) root.fail("stage", fmt::format("found {} layers, wanted at most {}", all, kMostLayers));
  const std::int64_t dense_layers = root.integer("dense_layers", 0, all).value_or(0);
  for (const std::size_t s : interleave(counts)) {
    timing.layers.push_back(layer_of[s]);
    timing.layers.back().routed = std::cmp_greater(timing.layers.size(), dense_layers);
  }
  return timing;
}

}  // namespace routepack
