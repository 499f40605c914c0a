// SPDX-License-Identifier: Apache-2.0
// The long options of a plan: one table made from the describe() lists serves the command line, parameter files and
// --dump-params.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/toml.h"
#include "routepack/instance.h"
#include "routepack/params.h"
#include "routepack/topology.h"

namespace routepack::cli {

/// Everything that a plan needs beside the window, as given by the user.
struct PlanSetup {
  std::int64_t dp = 0, ep = 0, tp = 1, cp = 1, etp = 1, pp = 1;
  std::string shards;
  std::int64_t cap = 0;
  std::string cost;
  std::string model_config;
  std::string device;
  Sync sync = Sync::Step;
  std::string current;
  Constraints constraints;
  PlanParams params;

  /// @throws UsageError when an option is missing, InvalidInput when the sizes contradict each other
  [[nodiscard]] Topology topology() const;
  [[nodiscard]] CostModel cost_model() const;
};

template <class Visitor>
void describe(PlanSetup& s, Visitor&& v) {
  constexpr std::int64_t kMany = 1 << 20;
  v.group("Topology");
  v.integer("dp", s.dp, 1, kMany, "data-parallel slots D");
  v.integer("ep", s.ep, 1, kMany, "expert-parallel ranks P");
  v.integer("tp", s.tp, 1, kMany, "tensor parallel size");
  v.integer("cp", s.cp, 1, kMany, "context parallel size");
  v.integer("etp", s.etp, 1, kMany, "expert tensor parallel size");
  v.integer("pp", s.pp, 1, kMany, "pipeline stages: at least that many rows");
  v.text("shards", s.shards,
         "instead of Megatron's rule: slots whose ranks share a communicator, e.g. '[[0,2],[1,3]]'");
  v.group("Objective");
  v.integer("cap", s.cap, 1, kMaxCapacity, "token cap C of one cell");
  v.text("cost", s.cost, "cost file (TOML)");
  v.text("model_config", s.model_config, "instead: the model's config.json, from which the cost is derived");
  v.text("device", s.device, "device file (TOML): weighs a derived cost by the rates that the device reaches");
  v.choice("sync", s.sync, "shards meet once per step, or in every row");
  v.group("Constraints");
  describe(s.constraints, v);
  v.group("Planning");
  v.text("current", s.current, "plan or placement file: where experts are now (default: identity)");
  describe(s.params, v);
}

/// The problem that the setup poses for a window. Messages start with `where`, the window's file.
Instance instance_of(const PlanSetup& setup, const Window& window, const std::string& where);

/// Adds all options of `setup` to a subcommand and remembers what was given there, so that a parameter file can be read
/// in between: defaults < file < command line.
class PlanOptions {
 public:
  PlanOptions(CLI::App& command, PlanSetup& setup);

  /// Reads a parameter file. @throws IoError, FormatError
  void apply_file(const std::filesystem::path& path);
  /// Applies what the command line gave. @throws UsageError
  void apply_command_line();
  /// The effective options as a parameter file; options without a value stay out.
  [[nodiscard]] std::string to_toml() const;

 private:
  struct Option {
    std::string name;  // with dashes
    std::function<void(const std::string&)> set;
    std::function<void(const TomlTable&)> read;
    std::function<std::string()> write;  // empty text: no value
    CLI::Option* on_command_line = nullptr;
    std::string given;
  };
  friend struct CollectOptions;

  PlanParams& params_;
  std::optional<TomlTable> search_table_;
  std::vector<std::unique_ptr<Option>> options_;
};

}  // namespace routepack::cli
