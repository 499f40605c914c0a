// SPDX-License-Identifier: Apache-2.0
#include "buffer.h"

#include <fmt/format.h>

#include <type_traits>

#include "routepack/error.h"

namespace routepack::python {
namespace {

template <class T>
constexpr const char* dtype_of() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return "uint8";
  if constexpr (std::is_same_v<T, std::uint16_t>) return "uint16";
  if constexpr (std::is_same_v<T, std::uint32_t>) return "uint32";
  if constexpr (std::is_same_v<T, std::int32_t>) return "int32";
  if constexpr (std::is_same_v<T, std::int64_t>) return "int64";
}

}  // namespace

Buffer::Buffer(nb::handle array, const char* name) : name_(name) {
  const nb::object host = nb::module_::import_("routepack._arrays").attr("host_array")(array, name);
  dtype_ = nb::cast<std::string>(host.attr("dtype").attr("name"));
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(host.ptr(), view.get(), PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0) throw nb::python_error();
  view_ = std::shared_ptr<Py_buffer>(view.release(), [](Py_buffer* held) {
    if (Py_IsInitialized() != 0) {
      const nb::gil_scoped_acquire gil;  // the last copy may go on a worker thread
      PyBuffer_Release(held);
    }
    delete held;
  });
}

void Buffer::refuse(const std::string& found, const std::string& wanted) const {
  throw InvalidInput(fmt::format("{}: found {}, wanted {}", name_, found, wanted));
}

template <class T>
std::span<const T> Buffer::values(std::size_t wanted_dimensions) const {
  if (dtype_ != dtype_of<T>()) refuse(dtype_, fmt::format("{0}; array.astype(\"{0}\") converts", dtype_of<T>()));
  if (dimensions() != wanted_dimensions) {
    refuse(fmt::format("{} dimensions", dimensions()), fmt::format("{}", wanted_dimensions));
  }
  if (PyBuffer_IsContiguous(view_.get(), 'C') == 0) {
    refuse("strides", "values in C order; numpy.ascontiguousarray(array) makes a copy that is");
  }
  if (reinterpret_cast<std::uintptr_t>(view_->buf) % alignof(T) != 0) {
    refuse("memory that is not aligned", "aligned values; array.copy() makes a copy that is");
  }
  return {static_cast<const T*>(view_->buf), static_cast<std::size_t>(view_->len) / sizeof(T)};
}
template std::span<const std::uint8_t> Buffer::values(std::size_t) const;
template std::span<const std::uint16_t> Buffer::values(std::size_t) const;
template std::span<const std::uint32_t> Buffer::values(std::size_t) const;
template std::span<const std::int32_t> Buffer::values(std::size_t) const;
template std::span<const std::int64_t> Buffer::values(std::size_t) const;

std::optional<Buffer> optional_buffer(nb::handle array, const char* name) {
  if (array.is_none()) return std::nullopt;
  return Buffer(array, name);
}

}  // namespace routepack::python
