// SPDX-License-Identifier: Apache-2.0
// One layout in the making, its exact price, and what a move would change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "core/bytes.h"
#include "cost/kernels/exchange.h"
#include "cost/row_cost.h"
#include "packing/arrangement.h"
#include "packing/search/problem.h"
#include "routepack/score.h"

namespace routepack::search {

/// Two items change cells, or one goes to another cell.
struct Move {
  static constexpr Index kNobody = 0xffffffff;
  Index item = 0;
  Index partner = kNobody;  ///< an item; kNobody: `item` goes to cell `to` alone
  Index to = 0;             ///< the partner's cell, or the target
};

/// The three components of the score on the integer grid of Problem::to_fixed.
struct FixedScore {
  std::int64_t primary = 0;  ///< sync step: max_g U_g; sync row: Σ_r max_g J[r, g]
  std::int64_t total = 0;    ///< Σ J[r, g]
  std::int64_t worst = 0;    ///< max J[r, g]; kept up only where energies ask for it
  friend auto operator<=>(const FixedScore&, const FixedScore&) = default;
};

/// What a search minimises: a weighted sum of the components (paper equation 16 has 1, 1e-6, 1e-9).
struct EnergyWeights {
  double primary = 1.0;
  double total = 0.0;
  double worst = 0.0;
  [[nodiscard]] double operator()(const FixedScore& score) const {
    return primary * static_cast<double>(score.primary) + total * static_cast<double>(score.total) +
           worst * static_cast<double>(score.worst);
  }
  friend bool operator==(const EnergyWeights&, const EnergyWeights&) = default;
};

/// What a walk over some row-shards of a state carries along: the score as the walk sees it, and room to work. Several
/// walks over disjoint row-shards may run at the same time, each with its own.
struct Totals {
  FixedScore score;
  std::vector<std::int64_t> shard_totals;  ///< [G], U_g on the grid
  std::vector<std::int32_t> scratch;       ///< peaks of two row-shards under trial
};

/// Copyable: a population is a vector of these.
class State {
 public:
  State(const Problem& problem, const Arrangement& arrangement);

  /// What a move leads to; filled by price().
  struct Outcome {
    double joint_a = 0.0, joint_b = 0.0;  ///< J of the row-shards that lose and gain `item`
    double expert_a = 0.0, expert_b = 0.0;
    double dense_a = 0.0, dense_b = 0.0;
    std::int64_t fixed_a = 0, fixed_b = 0;
    FixedScore score;
  };

  /// What a move would add to J of the row-shards that lose and gain `item`, but for rounding: enough to reject most
  /// moves. Both hold half when the two are one row-shard.
  struct Estimate {
    double a = 0.0, b = 0.0;
  };

  /// Whether the two cells may hold what the move brings them: cap, samples per cell, samples per slot, no cell empty.
  [[nodiscard]] bool fits(const Move& move) const;
  /// Estimates a move that fits and joins two different cells. Infinite when a rank would exceed max_rank_tokens.
  [[nodiscard]] Estimate estimate(const Move& move, Totals& totals) const;
  /// What an estimated move would add to the energy, for weights without the third component.
  [[nodiscard]] double energy_change(const EnergyWeights& weights, const Move& move, const Estimate& estimate,
                                     const Totals& totals) const;
  /// Prices a move that fits and joins two different cells. False when a rank would exceed max_rank_tokens.
  /// `with_worst`: the third component too, O(R·G).
  [[nodiscard]] bool price(const Move& move, bool with_worst, Totals& totals, Outcome& outcome) const;
  /// Carries the move out. `outcome` is what price() said.
  void apply(const Move& move, const Outcome& outcome, Totals& totals);

  /// The totals of the whole state as it is now, third component included. O(R·G).
  [[nodiscard]] Totals totals() const;
  /// The score in the binding evaluation order, as evaluate() finds it. O(R·G).
  [[nodiscard]] Score exact_score() const;
  /// J[r, g], bit for bit as evaluate() finds it.
  [[nodiscard]] std::span<const double> joint() const { return joint_; }
  [[nodiscard]] std::int64_t fixed_joint(Index row_shard) const { return fixed_[row_shard]; }

  /// Some row-shards for a state in another process: what is in their cells, order among it as proposals depend on it,
  /// and their loads, which are dearer to sum up than to send.
  void give(std::span<const Index> row_shards, std::vector<std::byte>& out) const;
  /// Takes over row-shards that another state gave; together they hold the same items as before. Calls for different
  /// row-shards may run at the same time.
  void take(ByteReader& bytes);

  [[nodiscard]] Index cell_of(Index item) const { return cell_of_[item]; }
  [[nodiscard]] const std::vector<Index>& cells_of_items() const { return cell_of_; }
  [[nodiscard]] std::span<const Index> items_in(Index cell) const { return members_[cell]; }
  /// The cell of a row-shard with most dense work over all stages, and the row-shard's dense and expert parts.
  [[nodiscard]] Index dense_straggler(Index row_shard) const;
  [[nodiscard]] double dense_part(Index row_shard) const { return dense_[row_shard]; }
  [[nodiscard]] const Problem& problem() const { return *problem_; }

  /// Whether every kept quantity equals its value from scratch, bit for bit. O(N·L·P).
  [[nodiscard]] bool agrees_with_scratch() const;
  /// The same for one row-shard and its cells. O(items in it · L·P).
  [[nodiscard]] bool agrees_with_scratch(Index row_shard) const;

 private:
  struct CellSums {
    std::int64_t tokens = 0;
    std::int64_t squares = 0;
    std::int64_t aligned = 0;
    std::int64_t samples = 0;
    bool closed = false;
  };
  /// The slowest cell of a row-shard at one stage and the pace of the next.
  struct Slowest {
    double first = 0.0;
    double second = 0.0;
    Index cell = 0;
  };
  /// A and the padding tokens of two row-shards.
  struct Dense {
    double a = 0.0, b = 0.0;
    std::int64_t pads_a = 0, pads_b = 0;
  };

  [[nodiscard]] CellSums changed(const CellSums& cell, Index leaves, Index joins) const;
  [[nodiscard]] double stage_cost(const Stage& stage, const CellSums& cell) const;
  [[nodiscard]] std::int64_t pads(const CellSums& cell) const;
  [[nodiscard]] Dense dense_after(const Move& move, Index from, Index a, Index b) const;
  [[nodiscard]] bool expert_after(const Move& move, Index a, Index b, const Dense& dense, Totals& totals,
                                  Outcome& outcome) const;
  template <class Lane>
  [[nodiscard]] kernels::PeakSums sums_after(const Move& move, Index a, Index b) const;
  template <class Lane>
  [[nodiscard]] bool weighed_after(const Move& move, Index a, Index b, Totals& totals, Outcome& outcome) const;
  [[nodiscard]] bool padded_after(Index row_shard, Index leaves, Index joins, std::int64_t pads, double& expert) const;
  [[nodiscard]] FixedScore score_after(Index a, Index b, const Outcome& outcome, bool with_worst,
                                       const Totals& totals) const;
  [[nodiscard]] std::int64_t row_peak(std::size_t row) const;
  void move_member(Index item, Index to);
  void exchange_loads(Index row_shard, Index leaves, Index joins);
  void refresh_slowest(Index row_shard);
  void set_sums(Index cell, const CellSums& sums);
  void set_members(Index cell, std::vector<Index> items, bool closed);
  void place_members(Index cell);
  void make_anew(Index row_shard);
  void derive(Index row_shard);
  [[nodiscard]] double rough_cost(std::size_t stage, std::int64_t tokens, std::int64_t squares) const;
  template <class Lane>
  [[nodiscard]] const Lane* loads_of(Index item) const;
  template <class Lane>
  [[nodiscard]] const Lane* row_loads(Index row_shard) const;

  const Problem* problem_;
  std::vector<Index> cell_of_;               // [items]
  std::vector<Index> place_in_cell_;         // [items]
  std::vector<std::vector<Index>> members_;  // [cells]
  std::vector<CellSums> cells_;              // [cells]
  std::vector<double> stage_costs_;          // [cells, stages]
  std::vector<Slowest> slowest_;             // [row-shards, stages]
  std::vector<std::int64_t> pads_;           // [row-shards]
  std::vector<std::int32_t> loads_;          // [row-shards, lanes], without pads
  std::vector<std::int16_t> relative_;       // [row-shards, lanes], where items are narrow
  std::vector<std::int32_t> peaks_;          // [row-shards, layer lanes], without pads
  std::vector<std::int64_t> peak_sums_;      // [row-shards]
  std::vector<double> expert_;               // [row-shards], E
  std::vector<double> joint_;                // [row-shards], J
  std::vector<double> dense_;                // [row-shards], A
  std::vector<std::int64_t> fixed_;          // [row-shards], J on the grid
};

}  // namespace routepack::search
