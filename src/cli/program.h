// SPDX-License-Identifier: Apache-2.0
// What main() of every executable does with a parsed command line: exceptions become one line and an exit status.
#pragma once

#include <functional>
#include <string>

namespace routepack::cli {

/// Says one line of UTF-8 on standard error, whatever a file or a file name in it contained; returns `status`.
int fail(int status, const std::string& message);

/// What was printed may still be in a buffer: a full disk shows only here. Returns `status`, or that of a failure.
int finish(int status);

/// Runs `body` and gives its exit status, or the one that fits what it throws. `who` goes in front of messages.
int guarded(const std::function<int()>& body, const std::string& who = "");

}  // namespace routepack::cli
