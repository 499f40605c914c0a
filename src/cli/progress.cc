// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "cli/report.h"

namespace routepack::cli {
namespace {

std::size_t terminal_columns() {
  constexpr std::size_t kUsual = 80;
  struct winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

}  // namespace

ProgressLine::ProgressLine() {
  const char* term = std::getenv("TERM");
  shown_ = ::isatty(STDERR_FILENO) == 1 && (term == nullptr || std::string_view(term) != "dumb");
}

void ProgressLine::say(const std::string& text) const {
  if (!shown_) return;
  // A full line would wrap, and its beginning could not be written over.
  fmt::print(stderr, "\r\x1b[K{}", shortened(printable(text), terminal_columns() - 1));
  std::fflush(stderr);
}

void ProgressLine::clear() const {
  if (!shown_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

void warn(const std::string& message) {
  const std::string line = fmt::format("routepack: warning: {}\n", one_line(message));
  std::fwrite(line.data(), 1, line.size(), stderr);  // who cannot be warned is not stopped
}

void note(const std::string& message) {
  const std::string line = fmt::format("routepack: {}\n", one_line(message));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace routepack::cli
