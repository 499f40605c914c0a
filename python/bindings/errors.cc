// SPDX-License-Identifier: Apache-2.0
// Our exceptions become the classes of routepack._errors, with the same message.
#include <cstring>
#include <exception>

#include "bindings.h"
#include "routepack/error.h"
#include "routepack/plan.h"

namespace routepack::python {
namespace {

/// A file name in a message need not be UTF-8.
void raise(const char* name, const char* message) {
  try {
    const nb::object type = nb::module_::import_("routepack._errors").attr(name);
    const nb::object text =
        nb::steal(PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::strlen(message)), "surrogateescape"));
    PyErr_SetObject(type.ptr(), text.ptr());
  } catch (nb::python_error& error) {
    error.restore();
  }
}

}  // namespace

void bind_errors(nb::module_& /*module*/) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const FormatError& error) {
      raise("FormatError", error.what());
    } catch (const InvalidInput& error) {
      raise("InvalidInput", error.what());
    } catch (const IoError& error) {
      raise("IoError", error.what());
    } catch (const InternalError& error) {
      raise("InternalError", error.what());
    } catch (const Cancelled& error) {
      raise("Cancelled", error.what());
    } catch (const Error& error) {
      raise("Error", error.what());
    }
  });
}

}  // namespace routepack::python
