// SPDX-License-Identifier: Apache-2.0
// One rank of an MPI job. Built once per MPI library, as routepack-mpi (Open MPI) and routepack-mpich.
#include <fmt/format.h>

#include <chrono>
#include <string_view>
#include <thread>

#include "cli/command.h"
#include "cli/mpi/ping.h"
#include "cli/plan.h"
#include "cli/process.h"
#include "cli/program.h"
#include "cli/transfer.h"
#include "comm/mpi/mpi_world.h"

namespace routepack::cli {
namespace {

constexpr const char* kName = ROUTEPACK_PROGRAM;
/// In this time ranks fail that fail for the same reason.
constexpr std::chrono::milliseconds kAllFail{500};

int overview(const MpiWorld& world) {
  fmt::print(
      "One rank of a job under {1}: start it with that library's launcher (mpirun -np 4 {0} …).\n\n"
      "  {0} ping       every pair of ranks exchanges messages; latency and bandwidth\n"
      "  {0} plan       plans a window, all ranks together; rank 0 writes\n"
      "  {0} transfer   moves synthetic expert state between the ranks and checks every byte\n\n"
      "Options: {0} ping --help, {0} plan --help, {0} transfer --help. Exit status: that of routepack.\n",
      kName, world.library());
  return finish(kFine);
}

int run_rank(int argc, char** argv, MpiWorld& world) {
  Transport& transport = world.transport();
  const std::string_view first = argc > 1 ? argv[1] : "--help";
  if (first == "--help" || first == "-h") return transport.rank() == 0 ? overview(world) : int{kFine};
  if (first == "ping") return run_ping_rank(argc, argv, transport, kName);
  if (first == "plan") return run_plan_rank(argc, argv, transport, kName);
  return run_transfer_rank(argc, argv, transport, kName);
}

}  // namespace
}  // namespace routepack::cli

int main(int argc, char** argv) {
  using namespace routepack;
  using namespace routepack::cli;
  prepare_process();
  return guarded([&] {
    MpiWorld world(argc, argv);
    world.when_stuck(std::chrono::seconds(30), [rank = world.transport().rank()] {
      fmt::print(stderr, "{}: error: rank {}: MPI does not return from a call; a peer may have died\n", kName, rank);
    });
    const int status = run_rank(argc, argv, world);
    // Ranks that fail together end together, and the launcher tells their status. Otherwise it ends all of them as soon
    // as one has left: the others give rank 0, which says why, the time to fail, too.
    const auto leaving = std::chrono::steady_clock::now() + kAllFail;
    if (status == kFine || world.all_end(kAllFail)) return status;
    if (world.transport().rank() != 0) std::this_thread::sleep_until(leaving);
    world.leave(status);
  });
}
