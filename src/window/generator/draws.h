// SPDX-License-Identifier: Apache-2.0
// Experts of one token: weighted draws without replacement, many tokens a microsecond.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "window/generator/random.h"

namespace routepack {

/// Draws index e with probability ∝ exp(logits[e]) in constant time (Walker's alias method, built after Vose).
/// Probabilities are rounded to multiples of 2^-32 / E; experts more than e^18 times rarer than the likeliest count as
/// that rare, so that every expert can be drawn.
class AliasTable {
 public:
  explicit AliasTable(std::size_t experts);
  void build(std::span<const double> logits);

  [[nodiscard]] std::uint32_t draw(std::uint32_t bits) const {
    const std::uint64_t scaled = static_cast<std::uint64_t>(bits) * columns_.size();
    const auto column = static_cast<std::uint32_t>(scaled >> 32);
    const Column& c = columns_[column];
    return static_cast<std::uint32_t>(scaled) < c.keep_below ? column : c.other;
  }

 private:
  struct Column {
    std::uint32_t keep_below, other;
  };
  std::vector<Column> columns_;
  std::vector<double> mass_;
  std::vector<std::uint32_t> light_, heavy_;
};

/// Top-k sets of tokens, counted. Drawing with the table and rejecting repeats inside a token gives the sets of
/// Plackett and Luce, which are those of top-k over logits plus Gumbel noise.
class TokenCounter {
 public:
  explicit TokenCounter(std::size_t experts) : seen_(experts, 0) {}

  /// Adds the experts of `tokens` tokens to `counts`, [E]. Needs 1 ≤ top_k ≤ E.
  void add(const AliasTable& table, std::int64_t top_k, std::int64_t tokens, RandomStream& random,
           std::span<std::uint32_t> counts);

 private:
  std::vector<std::uint64_t> seen_;  ///< the last token that took an expert
  std::uint64_t token_ = 0;
};

}  // namespace routepack
