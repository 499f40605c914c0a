// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "bindings.h"
#include "routepack/version.h"

NB_MODULE(_core, module) {
  using namespace routepack::python;
  module.doc() = "The compiled part of routepack. Import routepack instead.";
  // At exit a daemon thread of somebody else may hold a window for ever: that is no news for users. Our tests ask.
  nb::set_leak_warnings(std::getenv("ROUTEPACK_LEAK_WARNINGS") != nullptr);
  module.attr("version") = routepack::kVersion;
  bind_errors(module);
  bind_window(module);
  bind_replay(module);
  bind_problem(module);
  bind_params(module);
  bind_run(module);
  bind_plan_reports(module);
  bind_plan(module);
  bind_planning(module);
  bind_team(module);
  bind_transfer(module);
}
