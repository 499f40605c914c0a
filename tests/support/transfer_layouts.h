// SPDX-License-Identifier: Apache-2.0
// Grid layouts with every kind of expert state that RoutePack moves, small enough to look at every byte.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "routepack/grid_layout.h"
#include "routepack/placement.h"

namespace routepack::testing {

struct NamedLayout {
  std::string name;
  GridLayout layout;
};

/// Adam with one bucket, and with buckets that cut parameters; biases, bf16 moments and remainders and a step; fp8
/// blocks with scales and amax history; dist-Muon whole tensors; ragged explicit ranges; weights alone.
std::vector<NamedLayout> layouts_of_every_kind(const ExpertGrid& grid, std::int32_t layers = 2, std::int32_t slots = 2);

/// A partition of `elements` over some of the lanes in any order, whole tensors included.
std::vector<LaneRange> random_ranges(std::mt19937_64& random, std::int64_t elements, std::int32_t lanes);

/// Any kind above, or random shapes under random bucket rules or random explicit ranges.
GridLayout random_layout(std::mt19937_64& random, const ExpertGrid& grid, std::int32_t layers, std::int32_t slots);

/// Of the layout's shape.
Placement random_placement(std::mt19937_64& random, const GridLayout& layout);
Placement identity_of(const GridLayout& layout);
/// `base` with two slots of one layer exchanged.
Placement swapped(const Placement& base, std::int32_t layer, std::int32_t slot, std::int32_t other);
/// Maps given as physical_to_logical.
Placement placement_of(std::int32_t ranks, const std::vector<std::vector<std::int32_t>>& maps);

}  // namespace routepack::testing
