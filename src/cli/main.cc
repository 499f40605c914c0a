// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "cli/command.h"
#include "core/json.h"
#include "routepack/error.h"
#include "routepack/plan.h"
#include "routepack/version.h"

namespace routepack::cli {
namespace {

volatile std::sig_atomic_t interrupt_seen = 0;

void note_interrupt(int /*signal*/) {
  interrupt_seen = 1;
}

/// One line of UTF-8 whatever a file or a file name contained: programs read it, and people too.
int fail(int status, const std::string& message) {
  std::string line = Json(message).dump(-1, ' ', false, Json::error_handler_t::replace);
  line = Json::parse(line).get<std::string>();
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  fmt::print(stderr, "routepack: error: {}\n", line);
  return status;
}

/// What was printed may still be in a buffer: a full disk shows only here.
int finish(int status) {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return fail(kBadInput, "standard output: cannot write");
  return status;
}

constexpr const char* kFooter = R"(Examples:
  routepack inspect examples/windows/gptoss20b-mmlu-354.safetensors
  routepack plan examples/windows/gptoss20b-mmlu-354.safetensors -o plan.json \
      --dp 8 --ep 8 --cap 2048 --cost examples/gptoss20b.toml
  routepack verify examples/windows/gptoss20b-mmlu-354.safetensors plan.json

Exit status: 0 fine; 2 unreadable, malformed or contradictory input, or wrong use; 3 no layout exists;
4 verify found a broken rule; 130 interrupted; 1 a bug of ours.

Not built yet: compare, generate, transfer, simulate.
With the Python package, not in this executable: convert, report, calibrate, evaluate.)";

/// Subcommands of the documentation that this version does not have: said in one line instead of «unknown».
void add_not_built(CLI::App& app, Action& action) {
  for (const char* name :
       {"compare", "generate", "transfer", "simulate", "convert", "report", "calibrate", "evaluate"}) {
    CLI::App* sub = app.add_subcommand(name, "not built yet")->group("");
    sub->prefix_command();
    sub->set_help_flag();
    sub->callback([&action, name] {
      action = [name]() -> int { throw UsageError(fmt::format("{}: this subcommand is not built yet", name)); };
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
  add_not_built(app, action);
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

void catch_interrupts() {
  struct sigaction on_interrupt{};
  on_interrupt.sa_handler = note_interrupt;
  on_interrupt.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &on_interrupt, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error of write(), not the end of the process
}

bool interrupted() {
  return interrupt_seen != 0;
}

}  // namespace routepack::cli

int main(int argc, char** argv) {
  using namespace routepack;
  using namespace routepack::cli;
  catch_interrupts();
  try {
    return run(argc, argv);
  } catch (const InfeasibleError& error) {
    return fail(kInfeasible, error.what());
  } catch (const UsageError& error) {
    return fail(kBadInput, error.what());
  } catch (const Cancelled& error) {
    return fail(kInterrupted, error.what());
  } catch (const InternalError& error) {
    return fail(kBug, error.what());
  } catch (const Error& error) {
    return fail(kBadInput, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kBadInput, "not enough memory for this input");
  } catch (const std::exception& error) {
    return fail(kBug, std::string("unexpected: ") + error.what());
  }
}
