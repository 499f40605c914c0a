// SPDX-License-Identifier: Apache-2.0
// Counting token by token: rows of eight int32, those of all layers of a token side by side in memory.
//
// Increments are what takes time: a core stores one per cycle. Everything else hides behind them when three things
// hold. Memory is read in one direction and whole cache lines, so that it comes by itself. Counters of all layers fit
// into the first-level cache together, which takes counters of one byte. And no increment waits for the one before: the
// same counter comes again a token later at the earliest. Four rows at a time are looked at with vectors right before
// they are counted; a token that turns out not to be in order is taken back by the same walk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace routepack::replay {

/// Tokens that a counter of one byte can take: a token in order names an expert of a layer once.
inline constexpr std::size_t kMostTokens = std::numeric_limits<std::uint8_t>::max();

/// With more, emptying the counters every kMostTokens tokens would take longer than filling them.
inline constexpr std::size_t kMostTokenExperts = 1024;

/// Rows [layers, 8] of a token, one after another.
struct TokenRows {
  std::span<const std::byte* const> tokens;  ///< of each token
  std::ptrdiff_t offset = 0;                 ///< from there to its first row, in bytes
  std::size_t layers = 0;
  /// Where memory goes on: the token `stride` bytes later comes next, if it begins before `end`. 0: nobody knows.
  std::ptrdiff_t stride = 0;
  const std::byte* end = nullptr;
};

/// Adds leading tokens to `counters`, [layers, experts], and says how many: it stops before
/// the first that names an id of `experts` or more, or one twice in a row. It leaves no trace of that one.
/// @pre at most kMostTokens tokens since the counters were 0; 8 ≤ experts ≤ kMostTokenExperts
std::size_t count_tokens(const TokenRows& rows, std::uint32_t experts, std::uint8_t* counters);

/// 0 when there are none.
std::uint8_t largest_counter(std::span<const std::uint8_t> counters);

/// Adds counters to `table` and sets them to 0.
void move_counters(std::span<std::uint8_t> counters, std::uint32_t* table);

namespace scalar {
/// The definition of the vector form above.
std::size_t count_tokens(const TokenRows& rows, std::uint32_t experts, std::uint8_t* counters);
}  // namespace scalar

/// The counters of one sample, emptied into a table before they can overflow.
class TokenCounters {
 public:
  /// Beyond that the counters leave the first-level cache for good.
  static bool fit(std::size_t layers, std::size_t experts) {
    return experts >= 8 && experts <= kMostTokenExperts && layers * experts <= kMostCounters;
  }

  /// @param table [layers, experts]; complete after finish()
  TokenCounters(std::size_t layers, std::size_t experts, std::uint32_t* table);

  /// As count_tokens, for any number of tokens. @pre rows.layers is the last ones of the table's layers
  std::size_t count(const TokenRows& rows);
  void finish();

 private:
  static constexpr std::size_t kMostCounters = std::size_t{1} << 16;

  /// Emptying every counter costs more than finding the largest, which is far from full with many experts.
  void make_room();

  std::size_t layers_;
  std::size_t experts_;
  std::uint32_t* table_;
  std::size_t room_ = kMostTokens;  // tokens that no counter can overflow with
  std::vector<std::uint8_t> counters_;
};

}  // namespace routepack::replay
