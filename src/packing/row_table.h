// SPDX-License-Identifier: Apache-2.0
// R rows of G shards while cells join them: what each costs now, and what it would cost with one cell more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "packing/arrangement.h"
#include "packing/cell.h"
#include "packing/unit_loads.h"
#include "routepack/instance.h"
#include "routepack/score.h"

namespace routepack {

/// Row-shards in the order at = r·G + g. Loads are exact integers and doubles are combined as the scorer does, so J and
/// the score of a full table are those of evaluate() to the last bit. Not for several threads at once.
class RowTable {
 public:
  /// Refers to everything given. `pad_rates` [L, P] as from pad_rank_rates; empty without padding load.
  /// O(samples · L·P) time, O((cells + R·G) · L·P) memory.
  RowTable(const Instance& instance, const UnitLoads& loads, std::span<const std::int64_t> pad_rates, std::int64_t rows,
           std::span<const Cell> cells);

  /// What a row-shard costs.
  struct Price {
    double joint = 0.0;     ///< J
    double peaks = 0.0;     ///< Σ_l w_l · max_p W, so C·E
    std::int64_t peak = 0;  ///< max over l, p of W
  };

  [[nodiscard]] std::size_t size() const { return prices_.size(); }  ///< R·G
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::size_t shards() const { return shards_; }
  [[nodiscard]] std::span<const Cell> cells() const { return cells_; }

  /// Whether a slot is free for the cell: its own when it has one, else any of the shard.
  [[nodiscard]] bool has_room(std::size_t at, std::size_t cell) const;
  [[nodiscard]] const Price& price(std::size_t at) const { return prices_[at]; }
  /// The price if the cell joined. O(L·P), but all empty row-shards are alike and asked only once per cell.
  [[nodiscard]] Price price_with(std::size_t at, std::size_t cell);
  /// The cell takes its own slot, or the first free one of the shard. `price` is what price_with said.
  void join(std::size_t at, std::size_t cell, const Price& price);
  /// All cells leave.
  void clear();
  /// Row-shard `at` becomes what row-shard source[at] was, for all at once. `source` is a permutation between shards of
  /// equally many slots, and no cell has a slot of its own.
  void permute(std::span<const std::size_t> source);

  /// Routed tokens of a cell on its busiest rank and layer, without padding.
  [[nodiscard]] std::int64_t peak_of(std::size_t cell) const;
  /// max W of all row-shards.
  [[nodiscard]] std::int64_t peak() const;
  /// max_p W of every layer, [L]. O(L·P).
  void layer_peaks(std::size_t at, std::span<std::int64_t> peaks);
  /// J[r, g], [R, G].
  [[nodiscard]] std::vector<double> joint() const;
  /// Of a full table.
  [[nodiscard]] Score score() const;
  /// The cell at row r, slot d; kNone when nobody took it.
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  [[nodiscard]] std::size_t cell_at(std::int64_t row, SlotId slot) const {
    return places_[static_cast<std::size_t>(row) * slots_ + slot];
  }
  /// Copies of the cells of a full table at their places.
  [[nodiscard]] Arrangement arrangement() const;

 private:
  /// Loads in lane order: 32-bit where no row-shard can exceed it.
  template <class Load>
  struct Lanes {
    std::vector<Load> cells;   // [cells, lanes]
    std::vector<Load> table;   // [R·G, lanes], without pads
    std::vector<Load> zeros;   // [lanes]
    std::vector<Load> peaks;   // [layer lanes], scratch
    std::vector<Load> padded;  // [lanes], scratch
  };

  template <class Load>
  void add_cells(Lanes<Load>& lanes);
  /// max_p of row-shard + cell + pads, into lanes.peaks.
  template <class Load>
  void find_peaks(Lanes<Load>& lanes, std::size_t at, const Load* cell_loads, std::int64_t pads) const;
  [[nodiscard]] std::int64_t pads_of(std::size_t cell) const;
  [[nodiscard]] Price computed_price(std::size_t at, std::size_t cell);

  const Instance& instance_;
  const UnitLoads& loads_;
  std::span<const Cell> cells_;
  std::int64_t rows_;
  std::size_t shards_;
  std::size_t slots_;
  std::vector<std::int64_t> pad_lanes_;  // [lanes]; empty without padding load
  std::variant<Lanes<std::int32_t>, Lanes<std::int64_t>> lanes_;
  std::vector<double> work_;                 // [cells, stages]: dense work of a cell
  std::vector<double> stage_peak_;           // [R·G, stages]
  std::vector<std::int64_t> pads_;           // [R·G]
  std::vector<Price> prices_;                // [R·G]
  std::vector<std::size_t> taken_;           // [R·G]: slots
  std::vector<std::optional<Price>> alone_;  // [cells]: price in an empty row-shard, once known
  std::vector<std::size_t> places_;          // [R, D]
};

/// Consecutive row-shards and the cells that will fill them exactly.
struct Band {
  std::size_t first = 0, last = 0;  ///< row-shards first … last − 1
  std::vector<std::size_t> cells;
};

/// Cells in bands of similar dense work, heaviest band first. A band has 32 rows of up to 8 shards: wide enough for
/// choice, narrow enough that pairing every cell with every row-shard of its band stays linear in the cells. A cell
/// with a fixed slot goes to the row of its turn among the cells of that slot.
std::vector<Band> row_bands(const Instance& instance, std::int64_t rows, std::span<const Cell> cells);

}  // namespace routepack
