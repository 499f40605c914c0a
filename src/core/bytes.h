// SPDX-License-Identifier: Apache-2.0
// Numbers and lists as bytes for another process of the same program on the same kind of machine.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "core/assert.h"

namespace routepack {

template <class T>
void put(std::vector<std::byte>& out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto bytes = std::as_bytes(std::span(&value, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

/// The length in front.
template <class T>
void put_list(std::vector<std::byte>& out, std::span<const T> values) {
  put(out, static_cast<std::uint64_t>(values.size()));
  const auto bytes = std::as_bytes(values);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

/// Takes back what put() and put_list() wrote, in the same order. What does not fit is a bug.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : left_(bytes) {}

  [[nodiscard]] std::span<const std::byte> take(std::size_t size) {
    ROUTEPACK_ASSERT(size <= left_.size(), fmt::format("found {} bytes, wanted {}", left_.size(), size));
    const auto taken = left_.first(size);
    left_ = left_.subspan(size);
    return taken;
  }
  template <class T>
  [[nodiscard]] T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  template <class T>
  [[nodiscard]] std::vector<T> get_list() {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto count = get<std::uint64_t>();
    ROUTEPACK_ASSERT(count <= left_.size() / sizeof(T), fmt::format("a list of {} in {} bytes", count, left_.size()));
    std::vector<T> values(static_cast<std::size_t>(count));
    if (count > 0) std::memcpy(values.data(), take(values.size() * sizeof(T)).data(), values.size() * sizeof(T));
    return values;
  }
  [[nodiscard]] bool empty() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

}  // namespace routepack
