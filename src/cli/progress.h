// SPDX-License-Identifier: Apache-2.0
// What goes to standard error while a command works: one line that is written over itself, and warnings.
#pragma once

#include <string>

namespace routepack::cli {

/// Says on a terminal what is being done, no wider than the terminal is. Silent elsewhere, and with TERM=dumb, which
/// cannot write over a line.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  [[nodiscard]] bool shown() const { return shown_; }
  void say(const std::string& text) const;
  /// Leaves the line empty for what comes next.
  void clear() const;

 private:
  bool shown_;
};

/// One line on standard error, «routepack: warning: …»; the exit status stays.
void warn(const std::string& message);
/// Says on standard error what was concluded for the user, in one line.
void note(const std::string& message);

}  // namespace routepack::cli
