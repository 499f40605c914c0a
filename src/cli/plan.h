// SPDX-License-Identifier: Apache-2.0
// routepack plan as one rank of an MPI job.
#pragma once

#include <string_view>

#include "routepack/transport.h"

namespace routepack::cli {

/// Runs `plan ...` of the command line, the same on all ranks, which plan together. Rank 0 speaks and writes for all.
/// Returns the exit status. `name` is the executable's.
int run_plan_rank(int argc, char** argv, Transport& transport, std::string_view name);

}  // namespace routepack::cli
