// SPDX-License-Identifier: Apache-2.0
// Whole random problems small enough to try every answer, and the rules of a feasible layout written a second time.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "routepack/instance.h"
#include "routepack/layout.h"
#include "routepack/placement.h"
#include "support/builders.h"

namespace routepack::testing {

using Cells = std::vector<std::vector<std::vector<std::int32_t>>>;  ///< cells[r][d] lists samples
using Maps = std::vector<std::vector<std::int32_t>>;                ///< physical_to_logical

/// Values that a test may change before it turns them into an instance.
struct Problem {
  WindowSpec spec;
  std::int32_t ranks = 1;
  std::vector<std::vector<std::int32_t>> shards;
  std::int32_t pipeline_stages = 1;
  std::vector<Stage> stages;
  std::vector<double> expert;  ///< one weight, or one per layer
  std::int64_t capacity = 1;
  Constraints constraints;
  Sync sync = Sync::Step;

  [[nodiscard]] std::int32_t samples() const { return static_cast<std::int32_t>(spec.samples); }
  [[nodiscard]] std::int32_t slots() const;
  /// Tokens of a sample; one past the window is a dummy of one token.
  [[nodiscard]] std::int64_t length(std::int32_t sample) const;
  [[nodiscard]] std::uint32_t count(std::int32_t sample, std::int64_t layer, std::int64_t expert_id) const;
};

/// A problem's window and instance together, since the one refers to the other.
struct Scene {
  explicit Scene(const Problem& problem);
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;
  Window window;
  Instance instance;
};

/// Bounds of a drawn problem.
struct Shape {
  std::int32_t min_samples = 1, max_samples = 8;
  std::int32_t max_layers = 3;
  std::int32_t max_slots = 4;
  std::int32_t max_ranks = 4;
  std::int32_t max_slots_per_rank = 3;  ///< expert slots
  std::int32_t max_length = 20;
  bool padding = true;  ///< pad_counts and multiples may occur
};

/// Draws a problem without constraints beyond alignment, inside a rapidcheck property: any shards (interleaved,
/// unequal), skewed routes, recorded tokens in all forms, fractional costs, and a capacity that holds every sample.
Problem draw_problem(const Shape& shape);

Layout to_layout(const Cells& cells, const Problem& problem);
Placement to_placement(const Maps& maps, std::int32_t ranks);
Maps random_maps(std::mt19937_64& random, std::int64_t layers, std::int64_t experts);
Maps identity_maps(std::int64_t layers, std::int64_t experts);
Maps maps_of(const Placement& placement);
/// Every sample in a random cell, no cell empty. `samples` ≥ rows · slots. Caps are not looked at.
Cells random_cells(std::mt19937_64& random, std::int32_t samples, std::int32_t rows, std::int32_t slots);
std::int32_t below(std::mt19937_64& random, std::int32_t end);

/// Σ ceil_m(t) of a cell, rounded up to M.
std::int64_t aligned_tokens(const Problem& problem, const std::vector<std::int32_t>& cell);
/// W[r, g, l, p] with padding, straight from the formula.
std::int64_t rank_load(const Problem& problem, const Maps& maps, const Cells& cells, std::size_t row, std::size_t shard,
                       std::int64_t layer, std::int32_t rank);
/// Whether a cell may be a part of a layout, as far as that can be seen from the cell alone (and from a part of it:
/// what is false for a part is false for the whole).
bool cell_may_hold(const Problem& problem, const std::vector<std::int32_t>& cell);
/// Every rule of a feasible layout except max_rank_tokens.
bool feasible_without_routes(const Problem& problem, const Cells& cells, std::int32_t dummies);
/// Calls `visit` with every layout of `rows` rows that is feasible without looking at max_rank_tokens, until it returns
/// false. Each layout comes once; the order of samples inside a cell is by index. Returns false when it was stopped.
bool for_each_layout(const Problem& problem, std::int32_t rows, std::int32_t dummies,
                     const std::function<bool(const Cells&)>& visit);
/// How many dummies equal_count and add_dummies ask for.
std::int32_t dummies_wanted(const Problem& problem);

}  // namespace routepack::testing
