// SPDX-License-Identifier: Apache-2.0
#include "run.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <thread>

#include "bindings.h"
#include "routepack/error.h"

namespace routepack::python {
namespace {

/// How long a Ctrl-C may wait to be seen.
constexpr std::chrono::milliseconds kBetweenSignals{5};

bool in_main_thread() {
  const nb::module_ threading = nb::module_::import_("threading");
  return threading.attr("get_ident")().equal(threading.attr("main_thread")().attr("ident"));
}

}  // namespace

void Switch::take() {
  const std::lock_guard lock(mutex_);
  if (taken_) throw InvalidInput("control: found one that ended another plan, wanted a new one for each plan");
  taken_ = true;
}

void Switch::cut() {
  const std::lock_guard lock(mutex_);
  cut_ = true;
  if (layouts_exist_) stop_.request_stop();
}

void Switch::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  stop_.request_stop();
}

void Switch::layouts_exist() {
  const std::lock_guard lock(mutex_);
  layouts_exist_ = true;
  if (cut_) stop_.request_stop();
}

void Switch::begin_again() {
  const std::lock_guard lock(mutex_);
  layouts_exist_ = false;
  if (!cancelled_) stop_ = std::stop_source();
}

bool Switch::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

Conductor::Conductor(std::shared_ptr<Switch> end, std::int64_t windows, nb::object progress, nb::object placed)
    : end_(std::move(end)),
      windows_(windows),
      progress_(std::move(progress)),
      placed_(std::move(placed)),
      main_thread_(in_main_thread()) {
  end_->take();
}

void Conductor::conduct(const std::function<void()>& work) {
  std::exception_ptr failure;
  const auto guarded = [&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  {
    const nb::gil_scoped_release unlocked;
    std::thread worker;
    if (main_thread_) {
      inline_ = false;
      try {
        worker = std::thread([&] {
          guarded();
          const std::lock_guard lock(mutex_);
          done_ = true;
          changed_.notify_all();
        });
      } catch (const std::system_error&) {
        inline_ = true;  // a container's limit on threads costs promptness, not the plan
      }
    }
    if (inline_) {
      guarded();
    } else {
      wait_for_worker();
      worker.join();
    }
  }
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  if (failure) std::rethrow_exception(failure);
}

void Conductor::wait_for_worker() {
  std::unique_lock lock(mutex_);
  while (!done_) {
    if (call_ == nullptr && !changed_.wait_for(lock, kBetweenSignals, [this] { return call_ != nullptr || done_; })) {
      lock.unlock();
      look_for_signals();
      lock.lock();
      continue;
    }
    if (call_ == nullptr) continue;
    lock.unlock();
    (*call_)();  // the worker waits and keeps it
    lock.lock();
    call_ = nullptr;
    changed_.notify_all();
  }
}

void Conductor::look_for_signals() {
  if (thrown_) return;
  run_or_cancel([] {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  });
}

void Conductor::run_or_cancel(const Call& call) noexcept {
  const nb::gil_scoped_acquire gil;
  try {
    if (!thrown_) call();
  } catch (...) {
    thrown_ = std::current_exception();
    end_->cancel();
  }
}

void Conductor::hand_over(const Call& call) {
  if (inline_) {
    call();
    return;
  }
  std::unique_lock lock(mutex_);
  call_ = &call;
  changed_.notify_all();
  changed_.wait(lock, [this] { return call_ == nullptr; });
}

void Conductor::tell(const Call& call) {
  hand_over([&] { run_or_cancel(call); });
  leave_if_cancelled();
}

void Conductor::in_python(const Call& call) {
  std::exception_ptr failure;
  hand_over([&] {
    const nb::gil_scoped_acquire gil;
    try {
      call();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

void Conductor::begin_again() {
  end_->begin_again();
  layouts_ = 0;
  best_ = gap_ = kNoLayout;
}

void Conductor::leave_if_cancelled() const {
  if (end_->cancelled()) throw Cancelled("planning was cancelled");
}

void Conductor::end_phase() {
  const auto now = Clock::now();
  if (!phase_.empty()) {
    const auto known = std::ranges::find(timings_ms_, phase_, &std::pair<std::string, double>::first);
    const double ms = std::chrono::duration<double, std::milli>(now - phase_begun_).count();
    if (known == timings_ms_.end()) {
      timings_ms_.emplace_back(phase_, ms);
    } else {
      known->second += ms;  // several windows go through the same phases
    }
  }
  phase_begun_ = now;
}

std::vector<std::pair<std::string, double>> Conductor::finish() {
  end_phase();
  timings_ms_.emplace_back("total", std::chrono::duration<double, std::milli>(Clock::now() - begun_).count());
  return std::move(timings_ms_);
}

void Conductor::phase_begins(Phase phase) {
  leave_if_cancelled();
  end_phase();
  phase_ = kPhaseNames[static_cast<std::size_t>(phase)];
  if (phase == Phase::Seed && ++layouts_ == windows_) end_->layouts_exist();
  if (phase < Phase::Search) best_ = gap_ = kNoLayout;  // of another window, or of another try
  report_progress({phase_, {.best = best_, .gap = gap_}});
}

void Conductor::level_ends(const SearchProgress& progress) {
  leave_if_cancelled();
  best_ = progress.best;
  gap_ = progress.gap;
  report_progress({phase_, progress});
}

void Conductor::report_progress(const Progress& progress) {
  if (progress_.is_none()) return;
  tell([&] {
    if (progress_(nb::cast(progress)).is(nb::handle(Py_False))) end_->cut();
  });
}

void Conductor::placed(const Placement& placement) {
  if (placed_.is_none()) return;
  tell([&] { placed_(nb::cast(placement)); });
}

void bind_run(nb::module_& module) {
  nb::class_<Switch>(module, "PlanControl",
                     "Ends a plan from another thread: `plan(..., control=control)`. One control ends one plan.\n\n"
                     ">>> control = PlanControl()\n"
                     ">>> control.cancel()\n"
                     ">>> control.cancelled\n"
                     "True")
      .def(nb::init<>())
      .def("cut", &Switch::cut,
           "End with the best plan as soon as there is a valid one; it says complete=False if that cost anything.")
      .def("cancel", &Switch::cancel, "End without a plan: `plan` raises Cancelled.")
      .def_prop_ro("cancelled", &Switch::cancelled);
  nb::class_<Progress>(module, "Progress",
                       "How far a plan is: told when a phase begins (level 0) and when a temperature level ends.")
      .def_ro("phase", &Progress::phase, "demand, place, loads, rows, seed, search, refine or check")
      .def_prop_ro(
          "level", [](const Progress& self) { return self.search.level; }, "Temperatures passed")
      .def_prop_ro(
          "levels", [](const Progress& self) { return self.search.levels; }, "Temperatures of the whole search")
      .def_prop_ro(
          "temperature", [](const Progress& self) { return self.search.temperature; }, "Relative to the energy")
      .def_prop_ro(
          "acceptance", [](const Progress& self) { return self.search.acceptance; },
          "Accepted of the proposals of this level")
      .def_prop_ro(
          "best", [](const Progress& self) { return self.search.best; },
          "First component of the best score so far; inf before there is a layout")
      .def_prop_ro(
          "gap", [](const Progress& self) { return self.search.gap; },
          "Of that to the bound with the placement there is; inf before there is a layout")
      .def_prop_ro(
          "proposals", [](const Progress& self) { return self.search.proposals; }, "Moves priced so far")
      .def("__repr__", [](const Progress& self) {
        if (self.search.levels == 0) return fmt::format("<routepack.Progress: {}>", self.phase);
        return fmt::format("<routepack.Progress: {}, level {} of {}, best {:.2f}, gap {:.2f} %>", self.phase,
                           self.search.level, self.search.levels, self.search.best, 100.0 * self.search.gap);
      });
}

}  // namespace routepack::python
