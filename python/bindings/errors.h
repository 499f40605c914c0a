// SPDX-License-Identifier: Apache-2.0
// What Python raised, for messages.
#pragma once

#include <string>

#include "nanobind.h"

namespace routepack::python {

/// Type and message in one line. With the GIL.
std::string one_line(const nb::python_error& error);

}  // namespace routepack::python
