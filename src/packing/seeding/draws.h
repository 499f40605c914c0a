// SPDX-License-Identifier: Apache-2.0
// Random numbers of the seeds, named by what they are for.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/philox.h"

namespace routepack {

/// The numbers (seed, purpose, trial, 0), (seed, purpose, trial, 1), … in turn.
class Draws {
 public:
  enum class Purpose : std::uint32_t { Shuffle, Slots, BestFit, Exchange, Pair, Projection };

  Draws(std::uint64_t seed, Purpose purpose, std::uint32_t trial)
      : key_(seed), counter_{0, trial, static_cast<std::uint32_t>(purpose), kSeeding} {}

  std::uint32_t bits() {
    if (used_ == block_.size()) {
      block_ = philox(key_, counter_);
      ++counter_[0];
      used_ = 0;
    }
    return block_[used_++];
  }
  /// 0 … bound − 1, all alike.
  std::size_t below(std::size_t bound) { return scaled(bits(), static_cast<std::uint32_t>(bound)); }
  /// 0 … bound − 1, each half as likely as the one before; the last two alike.
  std::size_t decaying(std::size_t bound) {
    const auto zeros = static_cast<std::size_t>(std::countl_zero(bits()));
    return zeros < bound ? zeros : bound - 1;
  }

 private:
  static constexpr std::uint32_t kSeeding = 0x73656564;  // sets these streams apart from all others under the same seed

  std::uint64_t key_;
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint32_t, 4> block_{};
  std::size_t used_ = 4;
};

}  // namespace routepack
