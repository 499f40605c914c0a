// SPDX-License-Identifier: Apache-2.0
// Python objects behind the engine's interfaces: memory and messages of a framework.
#pragma once

#include "nanobind.h"
#include "routepack/transfer_engine.h"

namespace routepack::python {

/// Calls the methods of routepack.transfer.Mover on an object. What it raises becomes a routepack error, so that the
/// engine can tell the other ranks; KeyboardInterrupt and its like pass through.
std::unique_ptr<StateMover> make_python_mover(nb::object mover);
/// The same with routepack.transfer.Postbox.
std::unique_ptr<Postbox> make_python_postbox(nb::object postbox);

}  // namespace routepack::python
