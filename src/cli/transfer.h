// SPDX-License-Identifier: Apache-2.0
// routepack transfer, in the ordinary executable (threads as ranks) and as one rank of an MPI job.
#pragma once

#include <string_view>

namespace routepack {
class Transport;
}

namespace routepack::cli {

/// What main() of an MPI executable does between making its world and leaving it: parses the command line, whose one
/// subcommand is `transfer`, runs the self-test on this rank and returns the exit status: 0 only where every rank
/// verified, the same on all ranks that still talk. Never throws. Rank 0 prints reports, help and wrong use; a rank
/// that fails alone says so with its number on standard error. `name` is the executable's, for help and messages.
int run_transfer_rank(int argc, char** argv, Transport& transport, std::string_view name);

}  // namespace routepack::cli
