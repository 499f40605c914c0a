// SPDX-License-Identifier: Apache-2.0
// One layer under a fixed layout: who is where, what every rank carries in every row-shard, and who is busiest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/row_loads.h"
#include "routepack/ids.h"
#include "routepack/moves.h"

namespace routepack {

/// Integers throughout. Loads are kept times the share of their row-shard, so that shares cost nothing in inner loops.
/// `Load` is the type of the row loads. Vectors over row-shards have stride() numbers; those past R·G are zeros.
template <class Load>
class LayerSwaps {
 public:
  /// `rank_of` [E] is where experts are; `home` is where they come from. Refers to both `rows` and `home`.
  LayerSwaps(const RowLoads& rows, LayerId layer, const Placement& home, std::span<const std::int32_t> rank_of);

  /// How much each row-shard counts, [R·G], from 1 to RowLoads::kMostShare; 1 after construction. O(E·R·G).
  void set_shares(std::span<const std::int32_t> shares);
  /// Exchanges two experts on different ranks. O(H·R·G), and O(P) for each row-shard whose three busiest may change.
  void apply(ExpertId a, ExpertId b);
  /// How much lower Σ share · peak would become if two experts on different ranks were exchanged. O(P·R·G).
  [[nodiscard]] std::int64_t gain(ExpertId a, ExpertId b) const;

  /// max_p W[r, g, l, p], without the share.
  [[nodiscard]] std::int64_t peak(std::size_t row_shard) const;
  /// The ranks that are busiest in some row-shard, in the order of row-shards; of equally busy ones, one.
  [[nodiscard]] std::vector<RankId> peak_ranks() const;
  [[nodiscard]] std::span<const std::int32_t> rank_of() const { return rank_of_; }

  [[nodiscard]] const RowLoads& rows() const { return *rows_; }
  [[nodiscard]] std::size_t ranks() const { return ranks_; }
  [[nodiscard]] std::size_t experts() const { return rank_of_.size(); }
  [[nodiscard]] std::size_t row_shards() const { return row_shards_; }
  [[nodiscard]] std::size_t stride() const { return stride_; }
  [[nodiscard]] std::span<const std::int32_t> shares() const { return shares_; }
  [[nodiscard]] std::span<const ExpertId> members(std::size_t p) const {
    return std::span(members_).subspan(p * per_rank_, per_rank_);
  }
  [[nodiscard]] std::int32_t home_rank(ExpertId e) const { return home_rank_[e]; }
  [[nodiscard]] std::int32_t home_index(ExpertId e) const { return home_index_[e]; }
  /// Experts of a rank that are at home elsewhere, and those of all ranks.
  [[nodiscard]] std::int64_t guests(std::size_t p) const { return guests_[p]; }
  [[nodiscard]] std::int64_t all_guests() const { return all_guests_; }

  /// Loads over row-shards: of all experts [E, stride], of one, of a rank with its padding.
  [[nodiscard]] const Load* expert_loads() const { return expert_.data(); }
  [[nodiscard]] const Load* expert(ExpertId e) const { return &expert_[e * stride_]; }
  [[nodiscard]] const Load* rank(std::size_t p) const { return &rank_[p * stride_]; }
  /// The extremes among a rank's experts in each row-shard.
  [[nodiscard]] const Load* coolest(std::size_t p) const { return &coolest_[p * stride_]; }
  [[nodiscard]] const Load* hottest(std::size_t p) const { return &hottest_[p * stride_]; }
  /// The loads of all experts in one row-shard, [E].
  [[nodiscard]] const Load* row(std::size_t row_shard) const { return &by_row_[row_shard * experts()]; }

  /// The three busiest ranks of a row-shard and their loads; a load of 0 where there are fewer ranks.
  struct Busiest {
    Load first = 0, second = 0, third = 0;
    std::int32_t first_rank = -1, second_rank = -1, third_rank = -1;
    friend bool operator==(const Busiest&, const Busiest&) = default;
  };
  [[nodiscard]] const Busiest& busiest(std::size_t row_shard) const { return busiest_[row_shard]; }
  [[nodiscard]] std::span<const Busiest> all_busiest() const { return busiest_; }
  /// Of equally busy ranks, the ones that another process named for the same loads: which they are depends on the way
  /// there, and decides what is tried next.
  void settle_ties(std::vector<Busiest> busiest);
  /// Σ of the busiest rank's load.
  [[nodiscard]] std::int64_t peak_sum() const { return peak_sum_; }

  [[nodiscard]] bool has_padding() const { return !rows_->pads.empty(); }
  /// Padding of one expert in 1/65536 tokens, and of a rank's experts together.
  [[nodiscard]] std::int64_t pad_rate(ExpertId e) const { return rows_->pad_counts[layer_ * experts() + e]; }
  [[nodiscard]] std::int64_t pad_rate_of_rank(std::size_t p) const { return pad_rate_[p]; }
  [[nodiscard]] Load padding(std::size_t row_shard, std::int64_t rate) const {
    return static_cast<Load>(((rows_->pads[row_shard] * rate + 32768) >> 16) * shares_[row_shard]);
  }
  /// What rank p carries in each row-shard when e is gone, [stride].
  void loads_without(std::size_t p, ExpertId e, Load* out) const;

  /// Counts the swaps applied. When a rank last changed; when the busiest of a row-shard did; when a peak last rose.
  [[nodiscard]] std::int64_t clock() const { return clock_; }
  [[nodiscard]] std::int64_t rank_changed(std::size_t p) const { return rank_changed_[p]; }
  [[nodiscard]] std::int64_t row_changed(std::size_t row_shard) const { return row_changed_[row_shard]; }
  [[nodiscard]] std::int64_t peak_rose() const { return peak_rose_; }

 private:
  void rebuild();
  void find_busiest(std::size_t row_shard);
  void find_extremes(std::size_t p);

  const RowLoads* rows_;
  LayerId layer_;
  std::size_t ranks_, per_rank_, row_shards_, stride_;
  std::span<const std::int32_t> home_rank_;
  std::vector<std::int32_t> home_index_;  // local slot at home, [E]
  std::vector<std::int32_t> shares_;      // [R·G]
  std::vector<std::int32_t> rank_of_;     // [E]
  std::vector<ExpertId> members_;         // [P, H]
  std::vector<std::int64_t> guests_;      // [P]
  std::int64_t all_guests_ = 0;
  std::vector<std::int64_t> pad_rate_;          // [P]
  std::vector<Load> expert_, by_row_;           // [E, stride] and [R·G, E]
  std::vector<Load> rank_, coolest_, hottest_;  // [P, stride]
  std::vector<Busiest> busiest_;                // [R·G]
  std::int64_t peak_sum_ = 0;
  std::int64_t clock_ = 0, peak_rose_ = 0;
  std::vector<std::int64_t> rank_changed_, row_changed_;  // [P], [R·G]
};

extern template class LayerSwaps<std::int32_t>;
extern template class LayerSwaps<std::int64_t>;

}  // namespace routepack
