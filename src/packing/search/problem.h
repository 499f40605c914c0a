// SPDX-License-Identifier: Apache-2.0
// What all chains of a search share and none changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "packing/arrangement.h"
#include "packing/items.h"
#include "packing/unit_loads.h"
#include "routepack/instance.h"
#include "routepack/placement.h"

namespace routepack::search {

/// An index into Items::items, a cell's place or a row-shard's place.
using Index = std::uint32_t;

/// What a move has to know about an item.
struct ItemFacts {
  std::int64_t tokens = 0;
  std::int64_t squares = 0;
  std::int32_t aligned = 0;
  std::int32_t samples = 0;
};

/// The instance in the form the inner loop wants it. Cells are numbered row by row and inside a row shard by shard, so
/// that the cells of a row-shard are neighbours; row-shards are numbered r·G + g.
class Problem {
 public:
  /// @throws InvalidInput when a row-shard could receive more than kernels::kLoadLimit routed tokens on one rank.
  Problem(const Instance& instance, const Placement& placement, const Items& items, const UnitLoads& loads,
          std::int64_t rows);

  const Instance& instance;
  const Placement& placement;
  const Items& items;
  const UnitLoads& loads;

  std::size_t rows = 0;    ///< R
  std::size_t slots = 0;   ///< D
  std::size_t shards = 0;  ///< G
  [[nodiscard]] std::size_t cells() const { return rows * slots; }
  [[nodiscard]] std::size_t row_shards() const { return rows * shards; }

  /// Where slot d lies inside its row, and back.
  std::vector<Index> column_of;   ///< [D]
  std::vector<Index> slot_of;     ///< [D], by column
  std::vector<Index> shard_of;    ///< [D], by column
  std::vector<Index> column_end;  ///< [G]: the columns of shard g end here; they begin where shard g − 1 ends

  std::vector<Index> row_shard_of;  ///< [cells]
  [[nodiscard]] Index first_cell(Index row_shard) const {
    const std::size_t g = row_shard % shards;
    return static_cast<Index>(row_shard / shards * slots + (g == 0 ? 0 : column_end[g - 1]));
  }
  [[nodiscard]] Index end_cell(Index row_shard) const {
    return static_cast<Index>(row_shard / shards * slots + column_end[row_shard % shards]);
  }

  std::vector<ItemFacts> facts;  ///< by item
  std::vector<Index> movable;    ///< items that may move, longest first; oversized and route-less ones stay
  std::vector<bool> is_movable;  ///< by item

  std::int64_t room = 0;                ///< aligned tokens that a cell holds
  std::int64_t max_samples = 0;         ///< per cell; never 0
  std::int64_t rank_limit = 0;          ///< max_rank_tokens, 0 = none
  bool equal_count = false;             ///< moves keep the samples of every slot
  std::vector<std::int64_t> pad_rates;  ///< Σ_{e on p} pad_counts, in lanes; empty without

  double capacity = 0.0;          ///< C
  double capacity_squared = 0.0;  ///< C²
  /// All layers weigh the same power of two: weighing commutes with summing, to the last bit.
  bool plain_weights = true;
  std::vector<double> layer_weights;  ///< [L]

  // Rough prices, for estimates: they round differently from the scorer.
  std::vector<double> token_costs;  ///< α_s / C
  std::vector<double> pair_costs;   ///< β_s / C²
  double peak_cost = 0.0;           ///< w / C, with plain weights

  /// J becomes an integer of about 2⁻⁶⁰ of the largest total: such sums have no order.
  [[nodiscard]] std::int64_t to_fixed(double joint) const {
    // NOLINTNEXTLINE(bugprone-incorrect-roundings): never negative, and the last bit of 60 decides nothing.
    return static_cast<std::int64_t>(joint * fixed_scale + 0.5);
  }
  double fixed_scale = 1.0;

  /// The cells as items name theirs: cell_of_items [items], places as numbered here.
  [[nodiscard]] Arrangement arrangement(std::span<const Index> cell_of_items) const;
};

}  // namespace routepack::search
