// SPDX-License-Identifier: Apache-2.0
// Searches that find a packing or prove that there is none, as far as their work reaches.
#pragma once

#include <cstdint>
#include <vector>

#include "packing/bins.h"

namespace routepack {

enum class Proof { Fits, Impossible, Unknown };

struct ExactAnswer {
  Proof proof = Proof::Unknown;
  Packing packing;  ///< when it fits: at most as many bins as asked for
};

/// Bin completion (Korf): the largest unit left gets every undominated set of companions, fullest bin first; a branch
/// ends when more capacity is wasted than there is to waste, or when L2 asks for more bins than are left. `Unknown`
/// when the work or a bin's list of sets ran out before the proof was complete.
ExactAnswer pack_exactly(const BinProblem& problem, std::int64_t bins, Work& work);

/// Slots that each take the same number of samples in the same number of cells, no cell empty. `alone` marks units
/// that share their cell with nothing. Every unit is tried in every cell that differs from the ones tried before.
struct EqualProblem {
  BinProblem bins;          ///< units marked alone may exceed the capacity
  std::vector<bool> alone;  ///< per unit
  std::int64_t slots = 1;
  std::int64_t rows = 1;
};

/// A packing of slots · rows bins, slot by slot, when it fits.
ExactAnswer pack_equal_counts(const EqualProblem& problem, Work& work);

}  // namespace routepack
