// SPDX-License-Identifier: Apache-2.0
// What to try next. Draws are named by (seed, level, chain, step), never taken from a shared stream.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "packing/search/chain.h"
#include "packing/search/state.h"
#include "routepack/params.h"

namespace routepack::search {

/// The random bits of one step.
using Bits = std::array<std::uint32_t, 4>;

/// Turns random bits into moves.
class Proposer {
 public:
  /// The region must outlive the proposer and hold two items at least.
  Proposer(const Problem& problem, const Region& region, const SearchParams& params, const Task& task);

  /// The bits of one step, a pure function of the task and the step.
  [[nodiscard]] Bits bits(std::int64_t step) const;
  /// Asks the memory for what the step will probably read.
  void prefetch(const Bits& bits) const;
  /// The move of one step; false when the draw names no move between two cells.
  [[nodiscard]] bool draw(const State& state, const Bits& bits, Move& move) const;
  /// −ln u of a step's own u ∈ (0, 1).
  [[nodiscard]] static double exponential(const Bits& bits);

 private:
  /// How a step finds its pair.
  enum class Kind { Guided, Relocation, Near, Anywhere };
  [[nodiscard]] Kind kind(const Bits& bits) const;
  [[nodiscard]] Index item(const Bits& bits) const;
  [[nodiscard]] Index partner(Kind kind, const Bits& bits) const;
  [[nodiscard]] bool draw_guided(const State& state, const Bits& bits, Move& move) const;

  const Problem& problem_;
  const Region& region_;
  std::vector<Index> row_shards_;  // of the region, for guided proposals
  std::uint64_t key_;
  std::array<std::uint32_t, 3> name_;
  std::uint32_t movable_;
  std::uint32_t guided_below_;  // kinds by thresholds on 16 bits
  std::uint32_t relocation_below_;
  std::uint32_t near_below_;
  std::uint32_t near_width_;
  std::uint32_t guided_relocation_below_;
};

}  // namespace routepack::search
