// SPDX-License-Identifier: Apache-2.0
// Arrays from Python without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanobind.h"

namespace routepack::python {

/// A Python array's memory, held until the last copy of this goes. Made and read with the GIL; may be let go without.
class Buffer {
 public:
  /// `array` is anything that routepack._arrays.host_array takes; `name` stands in messages.
  /// @throws what that function raises
  Buffer(nb::handle array, const char* name);

  [[nodiscard]] const std::byte* data() const { return static_cast<const std::byte*>(view_->buf); }
  [[nodiscard]] std::size_t dimensions() const { return static_cast<std::size_t>(view_->ndim); }
  [[nodiscard]] std::int64_t size(std::size_t axis) const { return view_->shape[axis]; }
  [[nodiscard]] std::int64_t stride(std::size_t axis) const { return view_->strides[axis]; }
  /// As numpy spells it.
  [[nodiscard]] const std::string& dtype() const { return dtype_; }
  /// What keeps the memory alive.
  [[nodiscard]] std::shared_ptr<const void> owner() const { return view_; }

  /// The values when they are of type T and lie in C order.
  /// @throws InvalidInput naming the tensor, found and wanted
  template <class T>
  [[nodiscard]] std::span<const T> values(std::size_t dimensions) const;

 private:
  [[noreturn]] void refuse(const std::string& found, const std::string& wanted) const;

  std::string name_;
  std::string dtype_;
  std::shared_ptr<Py_buffer> view_;
};

/// Nothing for None.
std::optional<Buffer> optional_buffer(nb::handle array, const char* name);

/// A read-only numpy array over memory that `owner` keeps alive.
template <class T>
nb::object numpy_view(const T* data, std::vector<std::size_t> shape, nb::handle owner) {
  return nb::cast(nb::ndarray<nb::numpy, const T>(data, shape.size(), shape.data(), owner));
}

/// A numpy array that owns its values.
template <class T>
nb::object numpy_array(std::vector<T> values, std::vector<std::size_t> shape) {
  auto* held = new std::vector<T>(std::move(values));
  const nb::capsule owner(held, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, T>(held->data(), shape.size(), shape.data(), owner));
}

}  // namespace routepack::python
