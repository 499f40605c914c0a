// SPDX-License-Identifier: Apache-2.0
// routepack verify: does a plan keep every rule?
#include "routepack/verify.h"

#include <fmt/core.h>

#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/report.h"
#include "routepack/plan_file.h"
#include "routepack/window.h"

namespace routepack::cli {
namespace {

struct VerifyArguments {
  std::string window;
  std::string plan;
  bool json = false;
};

int run_verify(const VerifyArguments& args) {
  const Window window = Window::load(args.window);
  const PlanRecord plan = load_plan(args.plan);
  const Verdict verdict = verify(window, plan);
  if (args.json) {
    Json violations = Json::array();
    for (const Violation& v : verdict.violations) violations.push_back({{"rule", v.rule}, {"message", v.message}});
    print_json({{"accepted", verdict.accepted()}, {"violations", violations}, {"checked", verdict.checked}});
  } else if (verdict.accepted()) {
    fmt::print("{}: accepted, {} rules checked\n", args.plan, verdict.checked.size());
  } else {
    for (const Violation& v : verdict.violations) fmt::print("{}: {}\n", v.rule, v.message);
    fmt::print("{}: rejected, {} violation{}\n", args.plan, verdict.violations.size(),
               verdict.violations.size() == 1 ? "" : "s");
  }
  return verdict.accepted() ? kFine : kRejected;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  const auto args = std::make_shared<VerifyArguments>();
  CLI::App* command = app.add_subcommand("verify", "Check every rule of a plan independently of the planner");
  command->add_option("WINDOW", args->window, "window file")->required();
  command->add_option("PLAN", args->plan, "plan file")->required();
  command->add_flag("--json", args->json, "machine-readable result on standard output");
  command->footer(R"(Exit status 0 when every rule holds, 4 when one is broken.

Example:
  routepack verify examples/windows/gptoss20b-mmlu-354.safetensors plan.json)");
  command->callback([args, &action] { action = [args] { return run_verify(*args); }; });
}

}  // namespace routepack::cli
