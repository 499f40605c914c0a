// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "core/hash.h"
#include "routepack/window.h"

namespace routepack {
namespace {

/// Hashes each value `repeat` times over as a `Wide`, through a buffer instead of a widened copy of the tensor.
template <class Wide, class Narrow>
void hash_widened(Xxh3& hash, std::span<const Narrow> values, std::size_t repeat) {
  if constexpr (std::is_same_v<Wide, Narrow>) {
    if (repeat == 1) return hash.array(values);
  }
  std::array<Wide, 4096> buffer;
  std::size_t filled = 0;
  const auto flush = [&] {
    hash.array(std::span<const Wide>(buffer.data(), filled));
    filled = 0;
  };
  if (repeat == 1) {
    while (!values.empty()) {
      filled = std::min(values.size(), buffer.size());
      std::ranges::copy(values.first(filled), buffer.begin());
      values = values.subspan(filled);
      flush();
    }
    return;
  }
  for (const Narrow value : values) {
    for (std::size_t r = 0; r < repeat; ++r) {
      if (filled == buffer.size()) flush();
      buffer[filled++] = value;
    }
  }
  flush();
}

}  // namespace

std::string Window::fingerprint() const {
  Xxh3 hash;
  for (const std::int64_t size : {arrays_.samples, arrays_.layers, arrays_.experts, arrays_.top_k}) {
    hash.value(static_cast<std::uint64_t>(size));
  }
  if (arrays_.lengths.empty()) {
    hash.value(std::int32_t{0});  // an aggregate without lengths
  } else {
    hash.array(arrays_.lengths);
  }
  const auto begin_optional = [&](bool present) {
    hash.value(static_cast<std::uint8_t>(present ? 1 : 0));
    return present;
  };
  if (begin_optional(!arrays_.recorded.empty())) {
    const bool per_layer = arrays_.recorded.size() == static_cast<std::size_t>(arrays_.samples * arrays_.layers);
    hash_widened<std::int32_t>(hash, arrays_.recorded, per_layer ? 1 : static_cast<std::size_t>(arrays_.layers));
  }
  if (begin_optional(!arrays_.atomic.empty())) hash.array(arrays_.atomic);
  if (begin_optional(!arrays_.pad_counts.empty())) hash.array(arrays_.pad_counts);
  std::visit([&](auto counts) { hash_widened<std::uint32_t>(hash, counts, 1); }, arrays_.counts);
  return hash.digest();
}

}  // namespace routepack
