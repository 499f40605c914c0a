// SPDX-License-Identifier: Apache-2.0
// The set of units that fills one bin best.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "packing/bins.h"

namespace routepack {

/// A supply of kinds from which bin after bin is filled. Kinds that are used up are dropped now and then.
class SlackSearch {
 public:
  /// Everything the problem has.
  SlackSearch(const Kinds& kinds, std::int64_t capacity, std::int64_t max_count);
  /// The units given, as rising kinds.
  SlackSearch(const Kinds& kinds, std::span<const std::uint32_t> units, std::int64_t capacity, std::int64_t max_count);

  [[nodiscard]] bool empty() const { return units_ == 0; }

  /// Takes the largest unit left and the units found to fill the bin best, and returns their kinds. Looks no further
  /// once at most `good_enough` stays free, or after `limit` steps. A seed other than 0 leaves out an eighth of the
  /// kinds, chosen by it.
  std::vector<std::uint32_t> next_bin(std::int64_t good_enough, std::int64_t limit, std::uint64_t seed, Work& work);

 private:
  void add(const Kinds& kinds, std::uint32_t kind, std::int64_t copies);
  void extend(std::size_t from, std::int64_t slack, std::int64_t room);
  [[nodiscard]] std::size_t first_at_most(std::int64_t size, std::size_t from) const;
  void drop_used_up();

  std::vector<std::int64_t> size_;   // falling
  std::vector<std::int64_t> count_;  // samples of a unit
  std::vector<std::int64_t> left_;   // copies in supply
  std::vector<std::uint32_t> kind_;
  std::int64_t capacity_;
  std::int64_t max_count_;
  std::int64_t units_ = 0;
  std::size_t used_up_ = 0;

  // One search.
  std::vector<std::size_t> chosen_, best_;
  std::int64_t best_slack_ = 0;
  std::int64_t smallest_ = 0;
  std::int64_t good_enough_ = 0;
  std::int64_t steps_left_ = 0;
  std::uint64_t seed_ = 0;
  bool done_ = false;
};

/// SplitMix64: one well-mixed number per counter.
constexpr std::uint64_t mixed(std::uint64_t counter) {
  std::uint64_t z = counter + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace routepack
