// SPDX-License-Identifier: Apache-2.0
// The content hash of a window, taken piece by piece.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/hash.h"
#include "routepack/window.h"

namespace routepack {

/// Hashes what docs/formats.md says: everything but the counts at once, then the counts in C order, in pieces.
class FingerprintBuilder {
 public:
  /// Does not look at `arrays.counts`.
  explicit FingerprintBuilder(const WindowArrays& arrays);
  void add_counts(std::span<const std::uint16_t> counts);
  void add_counts(std::span<const std::uint32_t> counts);
  /// «xxh3:» and 16 hex digits.
  [[nodiscard]] std::string digest() const { return hash_.digest(); }

 private:
  Xxh3 hash_;
};

}  // namespace routepack
