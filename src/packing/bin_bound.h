// SPDX-License-Identifier: Apache-2.0
// Fewer bins than this cannot hold the units.
#pragma once

#include <cstdint>
#include <span>

#include "packing/bins.h"

namespace routepack {

/// Martello and Toth's L2: with a threshold K, units over U − K meet no unit of K or more, units over U/2 meet no other
/// such unit, and what the latter leave free must hold the units from K to U/2. `sizes` falls; `copies` says how many
/// of each. Contains the bound Σ size / U. O(sizes).
std::int64_t l2_bound(std::span<const std::int64_t> sizes, std::span<const std::int64_t> copies, std::int64_t capacity);

/// A dual-feasible function: whatever fits into a bin of `capacity`, its values add up to at most `whole`.
/// So Σ f(size) / whole, rounded up, is a bound on bins. Values stay below 2·capacity·parameter.
struct DualFeasible {
  enum class Family {
    FeketeSchepers,  ///< u^(k), parameter k ≥ 1: rounds x(k + 1) down, in units of 1/k
    Ccm,             ///< Carlier, Clautiaux and Moukrim, parameter λ from 1 to U/2: counts whole λ, from both ends
    Vanderbeck,      ///< parameter k ≥ 2: counts parts of U/k strictly exceeded, from both ends
  };
  Family family = Family::FeketeSchepers;
  std::int64_t parameter = 1;
  std::int64_t capacity = 1;

  [[nodiscard]] std::int64_t whole() const;
  [[nodiscard]] std::int64_t operator()(std::int64_t size) const;
};

/// A proven number of bins, and what it needed.
struct BinBound {
  std::int64_t bins = 0;
  bool by_count = false;   ///< the limit on counts takes part
  bool by_tokens = false;  ///< sizes take part
};

/// The largest of: counts; L2; dual-feasible functions, alone and after a threshold that drops small units; all of
/// these again on sizes that each sample raises by δ in bins raised by δ · max_count, which joins counts and sizes.
/// Parameters are thinned out for many kinds: at most about two million steps.
BinBound least_bins(const BinProblem& problem);

}  // namespace routepack
