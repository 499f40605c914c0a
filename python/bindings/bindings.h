// SPDX-License-Identifier: Apache-2.0
// The parts of the module, in the order in which they are bound.
#pragma once

#include "nanobind.h"

namespace routepack::python {

void bind_errors(nb::module_& module);
void bind_window(nb::module_& module);
void bind_replay(nb::module_& module);
void bind_problem(nb::module_& module);       // topology, cost, placement
void bind_params(nb::module_& module);        // from the describe() lists
void bind_run(nb::module_& module);           // control and progress of a run
void bind_plan_reports(nb::module_& module);  // what is known about a plan
void bind_plan(nb::module_& module);
void bind_planning(nb::module_& module);  // plan, plan_many
void bind_team(nb::module_& module);      // windows that a team holds together
void bind_transfer(nb::module_& module);  // layouts, schedules, engine

}  // namespace routepack::python
