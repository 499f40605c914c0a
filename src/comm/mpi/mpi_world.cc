// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_world.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>
#include <utility>

#include "comm/mpi/mpi_transport.h"

namespace routepack {
namespace {

/// How long the destructor waits for the other ranks.
constexpr std::chrono::seconds kGoodbye{10};
/// How long a call that must not wait may take unless somebody says otherwise.
constexpr std::chrono::seconds kStuck{60};

/// A signal that would end the process does nothing; whoever has a handler keeps it.
void ignore_by_default(int signal) {
  const auto before = std::signal(signal, SIG_IGN);
  if (before != SIG_DFL && before != SIG_ERR) std::signal(signal, before);
}

}  // namespace

class MpiWorld::Impl {
 public:
  Impl(int& argc, char**& argv) {
    int provided = MPI_THREAD_SINGLE;
    int status = MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    if (status == MPI_SUCCESS) status = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (status == MPI_SUCCESS) status = MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    if (status != MPI_SUCCESS) throw Error(fmt::format("MPI does not start: error {}", status));
    if (provided < MPI_THREAD_FUNNELED) throw Error("MPI: found no support for other threads, wanted \"funneled\"");
    ignore_by_default(SIGPIPE);
    transport_.emplace();
  }
  ~Impl() {
    const bool unwinding = std::uncaught_exceptions() > 0;
    if (unwinding || !transport_ || !(ending_ || all_end(kGoodbye))) return;
    const Watchdog::Call call(transport_->watchdog());
    MPI_Finalize();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  MpiTransport& transport() { return *transport_; }
  bool all_end(std::chrono::milliseconds patience) noexcept { return ending_ = transport_->say_goodbye(patience); }

 private:
  std::optional<MpiTransport> transport_;
  bool ending_ = false;  // every rank is about to call MPI_Finalize
};

MpiWorld::MpiWorld(int& argc, char**& argv) : impl_(std::make_unique<Impl>(argc, argv)) {
  when_stuck(kStuck, [] {});
}
MpiWorld::~MpiWorld() = default;

Transport& MpiWorld::transport() {
  return impl_->transport();
}

void MpiWorld::when_stuck(std::chrono::milliseconds limit, std::function<void()> then) {
  impl_->transport().watchdog().set(limit, [this, then = std::move(then)] {
    then();
    leave(1);
  });
}

std::string MpiWorld::library() const {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string line = text;  // Open MPI counts a final zero
  line.resize(std::min(line.find('\n'), line.size()));
  std::ranges::replace(line, '\t', ' ');
  return line;
}

bool MpiWorld::all_end(std::chrono::milliseconds patience) noexcept {
  return impl_->all_end(patience);
}

void MpiWorld::leave(int status) noexcept {
  std::fflush(nullptr);  // all streams
  ::_exit(status);
}

}  // namespace routepack
