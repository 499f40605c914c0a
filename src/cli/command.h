// SPDX-License-Identifier: Apache-2.0
// What every subcommand shares: how it joins the command line, and the exit statuses.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace routepack::cli {

enum ExitStatus : int { kFine = 0, kBug = 1, kBadInput = 2, kInfeasible = 3, kRejected = 4, kInterrupted = 130 };

/// Thrown for wrong use of the command line: one line, exit status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown when no layout exists: one line, exit status 3.
class InfeasibleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What the chosen subcommand will do after parsing; returns the exit status.
using Action = std::function<int()>;

// Each adds its subcommand to `app`; choosing it on the command line sets `action`.
void add_plan(CLI::App& app, Action& action);
void add_score(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_manifest(CLI::App& app, Action& action);
void add_compare(CLI::App& app, Action& action);
void add_transfer(CLI::App& app, Action& action);
void add_simulate(CLI::App& app, Action& action);

}  // namespace routepack::cli
