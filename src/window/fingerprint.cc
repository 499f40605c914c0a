// SPDX-License-Identifier: Apache-2.0
#include "window/fingerprint.h"

#include <algorithm>
#include <array>

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

FingerprintBuilder::FingerprintBuilder(const WindowArrays& arrays) {
  for (const std::int64_t size : {arrays.samples, arrays.layers, arrays.experts, arrays.top_k}) {
    hash_.value(static_cast<std::uint64_t>(size));
  }
  if (arrays.lengths.empty()) {
    hash_.value(std::int32_t{0});  // an aggregate without lengths
  } else {
    hash_.array(arrays.lengths);
  }
  const auto begin_optional = [&](bool present) {
    hash_.value(static_cast<std::uint8_t>(present ? 1 : 0));
    return present;
  };
  if (begin_optional(!arrays.recorded.empty())) {
    const bool per_layer = arrays.recorded.size() == static_cast<std::size_t>(arrays.samples * arrays.layers);
    hash_widened<std::int32_t>(hash_, arrays.recorded, per_layer ? 1 : static_cast<std::size_t>(arrays.layers));
  }
  if (begin_optional(!arrays.atomic.empty())) hash_.array(arrays.atomic);
  if (begin_optional(!arrays.pad_counts.empty())) hash_.array(arrays.pad_counts);
}

void FingerprintBuilder::add_counts(std::span<const std::uint16_t> counts) {
  hash_widened<std::uint32_t>(hash_, counts, 1);
}

void FingerprintBuilder::add_counts(std::span<const std::uint32_t> counts) {
  hash_widened<std::uint32_t>(hash_, counts, 1);
}

std::string Window::fingerprint() const {
  if (!fingerprint_.empty()) return fingerprint_;
  if (!parts_.empty()) {
    Xxh3 hash;
    hash.value(static_cast<std::uint64_t>(parts_.size()));
    for (const Window& part : parts_) hash.text(part.fingerprint());
    return hash.digest();
  }
  FingerprintBuilder hash(arrays_);
  std::visit([&](auto counts) { hash.add_counts(counts); }, arrays_.counts);
  return hash.digest();
}

}  // namespace routepack
