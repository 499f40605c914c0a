// SPDX-License-Identifier: Apache-2.0
// routepack compare: the same windows under every placement and packer, and who does best.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/add_options.h"
#include "cli/command.h"
#include "cli/compare_report.h"
#include "cli/comparison.h"
#include "cli/derived_cost.h"
#include "cli/options.h"
#include "cli/process.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "packing/peers/peers.h"

namespace routepack::cli {
namespace {

struct CompareArguments {
  std::vector<std::string> windows;
  std::string placements;
  std::string strategies = "all";
  std::string baseline = "identity/dp-local-ffd";
  std::string params_file;
  bool steps = false;
  bool json = false;
  bool csv = false;
  bool list = false;
  bool placement_given = false;
  StepTimingOptions time;
  PlanSetup setup;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const peers::Peer& peer : peers::all()) names.emplace_back(peer.name);
  names.emplace_back(kOurs);
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

void require_known(const std::string& option, const std::string& name, const std::vector<std::string>& known) {
  if (std::ranges::find(known, name) != known.end()) return;
  throw UsageError(fmt::format("{}: found \"{}\", wanted one of {}", option, name, joined(known)));
}

/// A comma-separated list without repetitions.
std::vector<std::string> names_of(const std::string& option, const std::string& text,
                                  const std::vector<std::string>& known) {
  std::vector<std::string> names = split(text, ',');
  for (auto name = names.begin(); name != names.end(); ++name) {
    require_known(option, *name, known);
    if (std::find(names.begin(), name, *name) != name)
      throw UsageError(fmt::format("{}: {} occurs twice", option, *name));
  }
  return names;
}

std::vector<std::string> known_placements(const CompareArguments& args) {
  std::vector<std::string> known = {"identity"};
  if (!args.setup.current.empty()) known.emplace_back("current");
  if (args.steps) known.emplace_back("keep");
  known.insert(known.end(), {"lpt", "sticky", "joint"});
  return known;
}

Combination baseline_of(const CompareArguments& args) {
  const auto parts = split(args.baseline, '/');
  if (parts.size() > 2) {
    throw UsageError(fmt::format("--baseline: found \"{}\", wanted PLACEMENT/STRATEGY or STRATEGY", args.baseline));
  }
  const Combination baseline{.placement = parts.size() == 2 ? parts.front() : "identity", .strategy = parts.back()};
  require_known("--baseline", baseline.placement, known_placements(args));
  require_known("--baseline", baseline.strategy, strategy_names());
  if (baseline.placement == "joint" && baseline.strategy != kOurs) {
    throw UsageError(fmt::format("--baseline: joint/{}: only {} places experts jointly", baseline.strategy, kOurs));
  }
  return baseline;
}

ComparisonPlan comparison_plan(const CompareArguments& args) {
  const auto known = known_placements(args);
  const auto placements = args.placements.empty() ? known : names_of("--placements", args.placements, known);
  const auto strategies =
      args.strategies == "all" ? strategy_names() : names_of("--strategies", args.strategies, strategy_names());
  ComparisonPlan plan{.combinations = {}, .baseline = baseline_of(args), .steps = args.steps};
  const auto is_placed = [&](const Combination& what) { return what.placement == plan.baseline.placement; };
  for (const std::string& placement : placements) {
    for (const std::string& strategy : strategies) {
      // Only our planner lets experts and rows suit each other.
      if (placement != "joint" || strategy == kOurs) plan.combinations.push_back({placement, strategy});
    }
  }
  if (std::ranges::find(plan.combinations, plan.baseline) == plan.combinations.end()) {
    plan.combinations.insert(std::ranges::find_if(plan.combinations, is_placed), plan.baseline);
  }
  return plan;
}

std::string list_of_strategies() {
  std::string text;
  for (const peers::Peer& peer : peers::all()) {
    text += fmt::format("{}{}\n    {}\n    {}\n", peer.name, peer.keeps_cap ? "" : " (does not keep the cap)",
                        peer.description, peer.source);
  }
  return text + fmt::format("{}\n    our planner\n", kOurs);
}

int run_compare(CompareArguments& args, PlanOptions& options) {
  if (args.list) {
    fmt::print("{}", list_of_strategies());
    return kFine;
  }
  if (args.placement_given) throw UsageError("--placement: compare tries several, wanted --placements");
  catch_interrupts();
  if (args.json && args.csv) throw UsageError("--json and --csv exclude each other");
  if (!args.params_file.empty()) options.apply_file(args.params_file);
  options.apply_command_line();
  if (args.windows.empty()) throw UsageError("WINDOW is missing: the file to compare on");
  if (args.setup.cap == 0) throw UsageError("--cap is missing: the token cap of one cell");

  const ComparisonPlan plan = comparison_plan(args);
  (void)args.setup.topology();
  if (const std::string derived = describe_derived_cost(args.setup); !derived.empty()) note(derived);
  Comparer comparer(args.setup, args.time, plan);
  std::vector<WindowComparison> windows;
  for (const std::string& window : args.windows) windows.push_back(comparer.measure(window));
  if (args.json) {
    print_json(comparison_json(windows, plan));
  } else if (args.csv) {
    fmt::print("{}", comparison_csv(windows, plan));
  } else {
    std::string text;
    for (const WindowComparison& window : windows) text += (text.empty() ? "" : "\n") + window_text(window, plan);
    if (windows.size() > 1) text += "\n" + summary_text(windows, plan);
    fmt::print("{}", text);
  }
  return kFine;
}

}  // namespace

void add_compare(CLI::App& app, Action& action) {
  const auto args = std::make_shared<CompareArguments>();
  CLI::App* command = app.add_subcommand("compare", "Today's packers and ours on the same windows");
  command->add_option("WINDOW", args->windows, "window files (safetensors); several: one table each, and means");
  command->add_option("--placements", args->placements,
                      "comma-separated: identity, current (with --current), keep (with --steps), lpt, sticky, joint "
                      "(ours only; default: all)");
  command->add_option("--strategies", args->strategies, "comma-separated packers, see --list (default: all)");
  command->add_option("--baseline", args->baseline,
                      "PLACEMENT/STRATEGY that percentages refer to (default: identity/dp-local-ffd)");
  command->add_flag("--steps", args->steps, "windows follow each other: placements are carried along, moves counted");
  command->add_option("--params", args->params_file, "read options from a TOML file; the command line wins");
  command->add_flag("--list", args->list, "print the strategies and where they come from, and stop");
  command->add_flag("--json", args->json, "machine-readable result on standard output");
  command->add_flag("--csv", args->csv, "one line per window, placement and strategy on standard output");
  AddOptions add{.command = *command, .group_name = "Simulated steps"};
  add.text("timing", args->time.timing, "timing file, as calibrate writes it: simulates every layout by it", "FILE");
  add.integer("tile", args->time.tile, 1, 1 << 20, "with --device: an expert's tokens count as the next multiple");
  add.flag("recompute", args->time.recompute,
           "with --device: every layer's forward pass again before its backward pass");
  const auto options = std::make_shared<PlanOptions>(*command, args->setup);
  command->footer(R"(Examples:
  routepack compare examples/windows/gptoss20b-mmlu-354.safetensors \
      --dp 8 --ep 8 --cap 2048 --cost examples/gptoss20b.toml --baseline lpt/areal-ffd
  routepack compare step1.safetensors step2.safetensors --steps --dp 16 --ep 8 --cap 8192 \
      --cost cost.toml --strategies areal-kk,routepack --csv)");
  command->callback([command, args, options, &action] {
    args->placement_given = command->count("--placement") > 0;
    action = [args, options] { return run_compare(*args, *options); };
  });
}

}  // namespace routepack::cli
