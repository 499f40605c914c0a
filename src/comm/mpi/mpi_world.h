// SPDX-License-Identifier: Apache-2.0
// Processes of one MPI job as ranks. Built once per MPI library; this header does not show which.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "routepack/transport.h"

namespace routepack {

/// MPI of this process, from MPI_Init_thread (funneled) to MPI_Finalize. Make one, in the main thread.
///
/// After the constructor no call waits for another rank. Errors of MPI come back as PeerLost, but a dead peer mostly
/// shows as silence, so callers need deadlines all the same. Seen when a rank is killed (SIGKILL) on one host:
///   Messages from the dead rank stay pending, even those it had announced; small ones to it are done at once, large
///   ones stay pending, and the survivors exchange messages and notes as before. That holds for Open MPI 4.1.4 and
///   MPICH 4.0.2 over shared memory and TCP; only MPICH over TCP reports an error, on a large send.
///   Over TCP, Open MPI would end survivors by SIGPIPE: the constructor has it ignored unless there is a handler. And
///   now and then (1 in 5 kills) it never comes back from MPI_Test, busy with the connection to the dead rank: no
///   deadline of ours helps there, hence when_stuck().
/// By default both launchers end the job then, and the survivors with it; tests/mpi/launch.py has the options that let
/// them live. A survivor ends with leave(): MPI_Finalize would wait for the dead.
class MpiWorld {
 public:
  /// Collective. @throws Error when MPI does not come up
  MpiWorld(int& argc, char**& argv);
  /// Finalizes when all is done here and every rank comes to this point within ten seconds. Otherwise, or while an
  /// exception unwinds, the process goes on without: MPI_Finalize could wait for ever. It is a call for when_stuck():
  /// MPICH 4.0.2 over UCX and TCP does so now and then (1 in 30 to 1 in 150 jobs), although ranks fall silent before.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  Transport& transport();
  /// When MPI has not returned from a call for `limit`, `then` runs in a thread of its own, and after it leave(1).
  /// Without this call: after a minute, saying nothing.
  void when_stuck(std::chrono::milliseconds limit, std::function<void()> then);
  /// First line of the library's own description of itself.
  [[nodiscard]] std::string library() const;
  /// After a failure: true when every rank comes to this point, or to the destructor, within `patience`. The process
  /// then ends by itself, through the destructor, and the launcher tells its status. Otherwise leave() is the way out.
  [[nodiscard]] bool all_end(std::chrono::milliseconds patience) noexcept;
  /// Ends the process at once, without MPI_Finalize, destructors or exit handlers. Stdio is flushed. A launcher without
  /// recovery options then ends the other ranks, and Hydra may tell how it did so in place of `status`.
  [[noreturn]] void leave(int status) noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace routepack
