// SPDX-License-Identifier: Apache-2.0
// XXH3-64 of a piece's bytes, seeded by which piece it is: the right bytes in the wrong place do not pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "routepack/move_schedule.h"

namespace routepack {

class PieceChecksum {
 public:
  PieceChecksum();
  ~PieceChecksum();
  PieceChecksum(PieceChecksum&&) noexcept;
  PieceChecksum& operator=(PieceChecksum&&) noexcept;

  void begin(const Piece& piece);
  /// Any cut of the bytes gives the same digest.
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace routepack
