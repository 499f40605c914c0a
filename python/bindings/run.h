// SPDX-License-Identifier: Apache-2.0
// A planning run as Python drives it: the GIL is free while it plans, Ctrl-C ends it, callables are told how it goes.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "nanobind.h"
#include "routepack/placement.h"
#include "routepack/plan.h"

namespace routepack::python {

/// Ends one plan from any thread.
class Switch {
 public:
  /// The run that it ends begins. @throws InvalidInput the second time
  void take();
  /// End with the best layout as soon as there is one.
  void cut();
  /// End without a plan.
  void cancel();
  /// From now on every window has a layout, and a cut takes effect.
  void layouts_exist();
  /// Planning begins a second time: a cut waits for layouts again.
  void begin_again();
  [[nodiscard]] bool cancelled() const;
  [[nodiscard]] std::stop_token token() const { return stop_.get_token(); }

 private:
  mutable std::mutex mutex_;
  std::stop_source stop_;
  bool taken_ = false, cut_ = false, cancelled_ = false, layouts_exist_ = false;
};

/// The score of no layout.
inline constexpr double kNoLayout = std::numeric_limits<double>::infinity();

/// What a progress callable is told.
struct Progress {
  std::string phase;
  SearchProgress search;  ///< zeros at the beginning of a phase, but for what is known of the layout in the making
};

/// Runs a piece of planning. In the main thread the work goes to a thread of its own and this one looks after signals
/// every few milliseconds; elsewhere signals never arrive and the work stays here. Callables are called in the calling
/// thread either way, one at a time, while the planner waits.
class Conductor : public Observer {
 public:
  /// `progress` and `placed` are callables or None. Made with the GIL.
  Conductor(std::shared_ptr<Switch> end, std::int64_t windows, nb::object progress, nb::object placed);

  using Call = std::function<void()>;

  /// Takes the GIL off for as long as `work` runs. @throws what `work`, a callable or a signal handler threw
  void conduct(const std::function<void()>& work);
  [[nodiscard]] RunContext context(Communicator* team = nullptr) { return {this, end_->token(), team}; }

  // For `work`:

  /// @throws Cancelled
  void leave_if_cancelled() const;
  /// Runs `call` in the calling thread with the GIL. @throws what it threw
  void in_python(const Call& call);
  /// What a callable or a signal handler threw, if any: the reason why `work` ends.
  [[nodiscard]] std::exception_ptr thrown() const { return thrown_; }
  /// Planning begins a second time.
  void begin_again();
  [[nodiscard]] std::chrono::milliseconds since_begin() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun_);
  }
  /// Milliseconds per phase in order of appearance, and «total».
  std::vector<std::pair<std::string, double>> finish();

  void phase_begins(Phase phase) override;
  void level_ends(const SearchProgress& progress) override;
  void placed(const Placement& placement) override;

 private:
  using Clock = std::chrono::steady_clock;

  void tell(const Call& call);
  void hand_over(const Call& call);
  void run_or_cancel(const Call& call) noexcept;
  void report_progress(const Progress& progress);
  void look_for_signals();
  void wait_for_worker();
  void end_phase();

  std::shared_ptr<Switch> end_;
  std::int64_t windows_, layouts_ = 0;
  nb::object progress_, placed_;
  bool main_thread_ = false, inline_ = true;

  std::mutex mutex_;
  std::condition_variable changed_;
  const Call* call_ = nullptr;  // what the worker wants called
  bool done_ = false;
  std::exception_ptr thrown_;  // by a callable or a signal handler

  std::vector<std::pair<std::string, double>> timings_ms_;
  std::string phase_;
  double best_ = kNoLayout, gap_ = kNoLayout;  // of the layout in the making
  Clock::time_point begun_ = Clock::now(), phase_begun_ = begun_;
};

}  // namespace routepack::python
