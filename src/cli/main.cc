// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "cli/command.h"
#include "cli/process.h"
#include "cli/program.h"
#include "routepack/version.h"

namespace routepack::cli {
namespace {

constexpr const char* kFooter = R"(Examples:
  routepack inspect examples/windows/gptoss20b-mmlu-354.safetensors
  routepack plan examples/windows/gptoss20b-mmlu-354.safetensors -o plan.json \
      --dp 8 --ep 8 --cap 2048 --cost examples/gptoss20b.toml
  routepack verify examples/windows/gptoss20b-mmlu-354.safetensors plan.json

Exit status: 0 fine; 2 unreadable, malformed or contradictory input, or wrong use; 3 no layout exists;
4 verify found a broken rule, or the self-test of transfer failed; 130 interrupted; 1 a bug of ours.

With the Python package, not in this executable: convert, report, calibrate, evaluate.)";

/// Subcommands that this executable does not have: said in one line instead of «unknown».
void add_those_of_python(CLI::App& app, Action& action) {
  for (const char* name : {"convert", "report", "calibrate", "evaluate"}) {
    CLI::App* sub = app.add_subcommand(name, "comes with the Python package")->group("");
    sub->prefix_command();
    sub->set_help_flag();
    sub->callback([&action, name] {
      action = [name]() -> int {
        throw UsageError(fmt::format("{}: comes with the Python package (docs/python-package.md)", name));
      };
    });
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Expert placement and sample packing for one MoE RL training step.", "routepack"};
  app.require_subcommand(1);
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("routepack ") + kVersion);
  app.get_formatter()->column_width(34);
  Action action;
  add_plan(app, action);
  add_score(app, action);
  add_verify(app, action);
  add_inspect(app, action);
  add_compare(app, action);
  add_generate(app, action);
  add_manifest(app, action);
  add_transfer(app, action);
  add_simulate(app, action);
  add_those_of_python(app, action);
  const auto known = [&](const CLI::App* sub) { return sub->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' &&
      std::ranges::none_of(app.get_subcommands([](CLI::App*) { return true; }), known)) {
    return fail(kBadInput, fmt::format("found subcommand \"{}\", wanted one of those in routepack --help", argv[1]));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wish) {  // --help, --version
    return finish(app.exit(wish));
  } catch (const CLI::ParseError& error) {
    return fail(kBadInput, fmt::format("{} (see routepack --help)", error.what()));
  }
  return finish(action());
}

}  // namespace

}  // namespace routepack::cli

int main(int argc, char** argv) {
  using namespace routepack;
  using namespace routepack::cli;
  prepare_process();
  return guarded([&] { return run(argc, argv); });
}
