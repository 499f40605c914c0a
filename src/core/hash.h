// SPDX-License-Identifier: Apache-2.0
// XXH3-64 over a stream of values in little-endian order.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace routepack {

static_assert(std::endian::native == std::endian::little, "file formats are little-endian and are used in place");

class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;

  void bytes(std::span<const std::byte> bytes);
  void text(std::string_view text) { bytes(std::as_bytes(std::span(text))); }
  template <class T>
    requires std::is_arithmetic_v<T>
  void value(T value) {
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  template <class T>
  void array(std::span<const T> values) {
    bytes(std::as_bytes(values));
  }
  /// «xxh3:» and 16 hex digits.
  [[nodiscard]] std::string digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace routepack
