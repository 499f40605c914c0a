// SPDX-License-Identifier: Apache-2.0
// Items as bins know them: sizes and counts. Oversized items have cells of their own and are left out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/bins.h"
#include "packing/items.h"
#include "routepack/instance.h"

namespace routepack {

struct Reduced {
  BinProblem problem;
  std::vector<std::vector<std::size_t>> members;  ///< per unit: indices into Items::items
  std::vector<std::size_t> alone;                 ///< oversized items
  bool merged = false;                            ///< some unit holds several items
};

enum class RoutelessItems {
  Apart,   ///< one unit each, like all others
  Merged,  ///< first-fit into as few units as it takes, when there are others to protect
};

/// The given items (by rising index, so by falling size). The capacity is rounded down to what the sizes can reach.
Reduced reduce(const Instance& instance, const Items& items, std::span<const std::size_t> wanted,
               RoutelessItems routeless);

/// All items, nothing merged.
Reduced reduce(const Instance& instance, const Items& items);

}  // namespace routepack
