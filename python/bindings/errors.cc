// SPDX-License-Identifier: Apache-2.0
// Our exceptions become the classes of routepack._errors, with the same message.
#include "errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string_view>

#include "bindings.h"
#include "routepack/error.h"
#include "routepack/plan.h"
#include "routepack/transport.h"

namespace routepack::python {
namespace {

/// A file name in a message need not be UTF-8.
nb::object text_of(std::string_view message) {
  return nb::steal(PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "surrogateescape"));
}

void raise(const char* name, const char* message) {
  try {
    const nb::object type = nb::module_::import_("routepack._errors").attr(name);
    PyErr_SetObject(type.ptr(), text_of(message).ptr());
  } catch (nb::python_error& error) {
    error.restore();
  }
}

/// Its class puts the rank in front of what happened.
void raise(const PeerLost& lost) {
  try {
    const nb::object type = nb::module_::import_("routepack._errors").attr("PeerLost");
    std::string_view what = lost.what();
    if (const std::string rank = fmt::format("rank {} is lost: ", lost.rank()); what.starts_with(rank)) {
      what.remove_prefix(rank.size());
    }
    PyErr_SetObject(type.ptr(), type(lost.rank(), text_of(what)).ptr());
  } catch (nb::python_error& error) {
    error.restore();
  }
}

}  // namespace

std::string one_line(const nb::python_error& error) {
  // C code may raise a type alone, and so does Python's own handler of Ctrl-C.
  std::string text = error.value().is_valid() ? nb::str(error.value()).c_str() : "";
  std::ranges::replace(text, '\n', ' ');
  return std::string(nb::str(error.type().attr("__name__")).c_str()) + (text.empty() ? "" : ": ") + text;
}

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
    } catch (const PeerLost& error) {
      raise(error);
    } catch (const Error& error) {
      raise("Error", error.what());
    }
  });
}

}  // namespace routepack::python
