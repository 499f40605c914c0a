// SPDX-License-Identifier: Apache-2.0
// What main() of every executable does with a parsed command line: exceptions become one line and an exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "cli/command.h"

namespace routepack::cli {

/// Says one line of UTF-8 on standard error, whatever a file or a file name in it contained; returns `status`.
int fail(int status, const std::string& message);

/// What was printed may still be in a buffer: a full disk shows only here. Returns `status`, or that of a failure.
int finish(int status);

/// Runs `body` and gives its exit status, or the one that fits what it throws. `who` goes in front of messages.
int guarded(const std::function<int()>& body, const std::string& who = "");

/// One rank of an MPI job whose ranks all got the same command line, with the subcommands that `add` adds. What is
/// wrong with that line is said once, by rank 0. Returns the exit status.
int run_rank_of_job(int argc, char** argv, std::int32_t rank, const std::string& about, std::string_view name,
                    const std::function<void(CLI::App&, Action&)>& add);

}  // namespace routepack::cli
