// SPDX-License-Identifier: Apache-2.0
// The parts of the module, in the order in which they are bound.
#pragma once

#include "nanobind.h"

namespace routepack::python {

void bind_errors(nb::module_& module);
void bind_window(nb::module_& module);
void bind_replay(nb::module_& module);
void bind_problem(nb::module_& module);  // topology, cost, placement
void bind_params(nb::module_& module);   // from the describe() lists
void bind_plan(nb::module_& module);

}  // namespace routepack::python
