// SPDX-License-Identifier: Apache-2.0
// routepack-mpi ping: does every pair of ranks talk, and how fast?
#pragma once

#include <string_view>

#include "routepack/transport.h"

namespace routepack::cli {

/// This rank's part: parses the command line, takes part in every pair's exchange, and returns the exit status: 0 when
/// all that this rank saw was right and in time. Rank 0 prints the table, help and wrong use; whoever fails says so.
/// Never throws. After a failure messages may still be under way: leave the job at once.
int run_ping_rank(int argc, char** argv, Transport& transport, std::string_view name);

}  // namespace routepack::cli
