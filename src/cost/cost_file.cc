// SPDX-License-Identifier: Apache-2.0
// Cost files (docs/formats.md).
#include <fmt/format.h>

#include <utility>

#include "core/file.h"
#include "core/json_text.h"
#include "core/toml.h"
#include "routepack/cost.h"
#include "routepack/error.h"

namespace routepack {
namespace {

std::vector<Stage> read_stages(const TomlTable& root) {
  std::vector<Stage> stages;
  for (const TomlTable& table : root.tables("stage").value_or(std::vector<TomlTable>{})) {
    table.refuse_unknown_keys({"name", "alpha", "beta"});
    stages.push_back(Stage{.name = table.string("name").value_or(fmt::format("stage{}", stages.size())),
                           .alpha = table.number("alpha", 0.0, kMaxCost).value_or(0.0),
                           .beta = table.number("beta", 0.0, kMaxCost).value_or(0.0)});
  }
  return stages;
}

/// JSON's escapes are TOML's, but for DEL, which TOML wants escaped.
std::string toml_string(const std::string& text) {
  std::string quoted;
  for (const char c : line_json(Json(text))) {
    if (c == '\x7f') {
      quoted += "\\u007f";
    } else {
      quoted += c;
    }
  }
  return quoted;
}

}  // namespace

CostModel CostModel::load(const std::filesystem::path& path) {
  return parse(read_text(path, kMaxTomlBytes), path.string());
}

CostModel CostModel::parse(const std::string& toml, const std::string& where) {
  const TomlTable root = TomlTable::parse(toml, where);
  root.refuse_unknown_keys({"expert", "stage"});
  std::vector<Stage> stages = read_stages(root);
  if (stages.empty() && !root.has("expert")) {
    throw FormatError(
        fmt::format("{}: found no costs, wanted «expert», «[[stage]]» or both; `routepack plan` without "
                    "--cost prints a template",
                    where));
  }
  if (!root.is_array("expert")) {
    return CostModel(std::move(stages), root.number("expert", 0.0, kMaxCost).value_or(1.0), where);
  }
  std::vector<double> expert = *root.numbers("expert", 0.0, kMaxCost);
  if (expert.empty()) root.fail("expert", "found an empty list, wanted one weight per MoE layer");
  return CostModel(std::move(stages), std::move(expert), where);
}

std::string CostModel::file_template() {
  return R"(# What a token costs, in any one unit: only the ratios matter.
#
# Expert side: weight of a routed token at an MoE layer. One number, or a list with one number per MoE layer.
expert = 1.0

# Dense side: one [[stage]] per type of attention. A cell with lengths t under the cap C costs
# alpha * sum(t / C) + beta * sum((t / C)^2).
[[stage]]
name = "linear"  # any text, for reports
alpha = 60.0     # grows with the tokens: projections, linear or windowed attention
beta = 0.0

[[stage]]
name = "full"
alpha = 36.0
beta = 100.0     # grows with the pairs of tokens: full attention
)";
}

std::string CostModel::to_toml() const {
  std::string text = "expert = ";
  if (uniform_) {
    text += number_text(expert_[0]);
  } else {
    text += line_json(Json(expert_));
  }
  text += '\n';
  for (const Stage& stage : stages_) {
    text += fmt::format("\n[[stage]]\nname = {}\nalpha = {}\nbeta = {}\n", toml_string(stage.name),
                        number_text(stage.alpha), number_text(stage.beta));
  }
  return text;
}

}  // namespace routepack
