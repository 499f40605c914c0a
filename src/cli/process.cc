// SPDX-License-Identifier: Apache-2.0
#include "cli/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <new>
#include <string_view>

#include "cli/command.h"

namespace routepack::cli {
namespace {

volatile std::sig_atomic_t interrupt_seen = 0;

void note_interrupt(int /*signal*/) {
  interrupt_seen = 1;
}

/// Ends the process from a place where nothing but system calls is safe.
[[noreturn]] void end_with(int status, std::string_view line) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(status);
}

void on_bus_error(int /*signal*/) {
  end_with(kBadInput, "routepack: error: a file was truncated, or could not be read, while it was in use\n");
}

void on_terminate() {
  try {
    if (const auto current = std::current_exception()) std::rethrow_exception(current);
  } catch (const std::bad_alloc&) {
    end_with(kBadInput, "routepack: error: not enough memory for this input\n");
  } catch (...) {
    end_with(kBug, "routepack: error: internal error: an exception left a destructor\n");
  }
  end_with(kBug, "routepack: error: internal error: terminated\n");
}

void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void prepare_process() {
  // Opened for reading only: writing to them fails, as it would have without them.
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) == -1) [[maybe_unused]]
      const int opened = ::open("/dev/null", O_RDONLY);
  }
  handle(SIGXFSZ, SIG_IGN, 0);
  handle(SIGBUS, on_bus_error, 0);
  std::set_terminate(on_terminate);
}

void catch_interrupts() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // What nohup or a shell's & made ignored stays ignored.
    struct sigaction before{};
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    handle(signal, note_interrupt, static_cast<int>(SA_RESETHAND));
  }
}

bool interrupted() {
  return interrupt_seen != 0;
}

}  // namespace routepack::cli
