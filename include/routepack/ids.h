// SPDX-License-Identifier: Apache-2.0
// Distinct integer ids, so that a row is never passed where a slot is meant.
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace routepack {

/// A non-negative index into one kind of thing. It converts to `std::size_t`, so it indexes a vector directly; it is
/// made from a number only explicitly, and ids of two kinds neither convert into each other nor compare.
template <class Tag>
class Id {
 public:
  constexpr Id() = default;
  template <std::integral Number>
  constexpr explicit Id(Number value) : value_(static_cast<std::int32_t>(value)) {}

  [[nodiscard]] constexpr std::int32_t value() const { return value_; }
  // NOLINTNEXTLINE(google-explicit-constructor): indexing is what ids are for.
  constexpr operator std::size_t() const { return static_cast<std::size_t>(value_); }

  friend constexpr bool operator==(Id a, Id b) { return a.value_ == b.value_; }
  friend constexpr std::strong_ordering operator<=>(Id a, Id b) { return a.value_ <=> b.value_; }
  template <class Other>
  friend constexpr bool operator==(Id, Id<Other>) = delete;

 private:
  std::int32_t value_ = 0;
};

using SampleId = Id<struct SampleTag>;  ///< i: one whole trajectory
using RowId = Id<struct RowTag>;        ///< r: one synchronised microbatch on every data-parallel slot
using SlotId = Id<struct SlotTag>;      ///< d: a data-parallel slot
using ShardId = Id<struct ShardTag>;    ///< g: an EDP shard, the slots whose ranks share one EP communicator
using LayerId = Id<struct LayerTag>;    ///< l: an MoE layer, counted among the window's layers
using ExpertId = Id<struct ExpertTag>;  ///< e: a logical expert
using RankId = Id<struct RankTag>;      ///< p: a physical EP rank of a communicator

/// The ids 0, 1, …, count − 1, for range-for.
template <class IdType>
class IdRange {
 public:
  class Iterator {
   public:
    using value_type = IdType;
    using difference_type = std::ptrdiff_t;
    constexpr Iterator() = default;
    constexpr explicit Iterator(std::int32_t at) : at_(at) {}
    constexpr IdType operator*() const { return IdType(at_); }
    constexpr Iterator& operator++() {
      ++at_;
      return *this;
    }
    constexpr Iterator operator++(int) {
      const Iterator before = *this;
      ++at_;
      return before;
    }
    friend constexpr bool operator==(Iterator a, Iterator b) { return a.at_ == b.at_; }

   private:
    std::int32_t at_ = 0;
  };

  constexpr explicit IdRange(std::int64_t count) : count_(static_cast<std::int32_t>(count)) {}
  [[nodiscard]] constexpr Iterator begin() const { return Iterator(0); }
  [[nodiscard]] constexpr Iterator end() const { return Iterator(count_); }

 private:
  std::int32_t count_;
};

}  // namespace routepack
