// SPDX-License-Identifier: Apache-2.0
// One planning problem: everything a score depends on, except the answer.
#pragma once

#include <cstdint>
#include <optional>

#include "routepack/cost.h"
#include "routepack/error.h"
#include "routepack/params.h"
#include "routepack/topology.h"
#include "routepack/window.h"

namespace routepack {

/// A validated problem. It refers to its window, which must outlive it.
struct Instance {
  /// @throws InvalidInput when P does not divide E, the cost lists another number of layers, the capacity is out of
  ///         range, an option is outside its bounds, or the window is an aggregate.
  Instance(const Window& window, Topology topology, CostModel cost, std::int64_t capacity, Constraints constraints = {},
           Sync sync = Sync::Step);

  const Window& window;
  Topology topology;
  CostModel cost;
  std::int64_t capacity;  ///< C, tokens
  Constraints constraints;
  Sync sync;

  /// Length of a sample as the cap sees it, ceil_m(t_i).
  [[nodiscard]] std::int64_t aligned_length(SampleId i) const;
  /// Length of a cell as the cap sees it, ceil_M(Σ ceil_m(t_i)), from Σ ceil_m(t_i).
  [[nodiscard]] std::int64_t aligned_cell(std::int64_t aligned_lengths) const;
  /// The largest Σ ceil_m(t_i) that a cell may hold: C rounded down to a multiple of M.
  [[nodiscard]] std::int64_t usable_capacity() const;
};

}  // namespace routepack
