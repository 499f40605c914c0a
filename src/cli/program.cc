// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

#include "cli/report.h"
#include "routepack/error.h"
#include "routepack/plan.h"
#include "routepack/version.h"

namespace routepack::cli {

int fail(int status, const std::string& message) {
  const std::string line = fmt::format("routepack: error: {}\n", one_line(message));
  std::fwrite(line.data(), 1, line.size(), stderr);  // nobody is left to be told when this fails
  return status;
}

int finish(int status) {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return fail(kBadInput, "standard output: cannot write");
  return status;
}

int guarded(const std::function<int()>& body, const std::string& who) {
  try {
    return body();
  } catch (const InfeasibleError& error) {
    return fail(kInfeasible, who + error.what());
  } catch (const UsageError& error) {
    return fail(kBadInput, who + error.what());
  } catch (const Cancelled& error) {
    return fail(kInterrupted, who + error.what());
  } catch (const InternalError& error) {
    return fail(kBug, who + error.what());
  } catch (const Error& error) {
    return fail(kBadInput, who + error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(kBadInput, who + error.what());
  } catch (const std::bad_alloc&) {
    return fail(kBadInput, who + "not enough memory for this input");
  } catch (const std::system_error& error) {
    return fail(kBadInput, who + "the system gave no thread: " + error.what());
  } catch (const std::exception& error) {
    return fail(kBug, who + "unexpected: " + error.what());
  }
}

int run_rank_of_job(int argc, char** argv, std::int32_t rank, const std::string& about, std::string_view name,
                    const std::function<void(CLI::App&, Action&)>& add) {
  const bool speaks = rank == 0;
  const auto body = [&]() -> int {
    CLI::App app{about, std::string(name)};
    app.require_subcommand(1);
    app.set_version_flag("--version", fmt::format("{} {}", name, kVersion));
    app.get_formatter()->column_width(34);
    Action action;
    add(app, action);
    try {
      app.parse(argc, argv);
      return finish(action());
    } catch (const CLI::Success& wish) {
      return speaks ? finish(app.exit(wish)) : int{kFine};
    } catch (const CLI::ParseError& error) {  // the same on all ranks: said once
      return speaks ? fail(kBadInput, fmt::format("{} (see {} --help)", error.what(), name)) : int{kBadInput};
    } catch (const UsageError&) {
      if (!speaks) return kBadInput;
      throw;
    }
  };
  return guarded(body, speaks ? "" : fmt::format("rank {}: ", rank));
}

}  // namespace routepack::cli
