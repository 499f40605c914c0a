// SPDX-License-Identifier: Apache-2.0
// A fixed layout as placement sees it: the load of every expert in every row-shard, and what the rest of a row costs.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "exec/executor.h"
#include "routepack/instance.h"
#include "routepack/layout.h"

namespace routepack {

/// Expert loads of a layout, [L, E, R·G], the row-shard (r, g) at r·G + g. 32-bit integers whenever kMostShare times
/// all routed and padding tokens of a layer stay below 2³¹, and 64-bit ones otherwise.
struct RowLoads {
  /// Row-shards may count up to this many times in sums over them.
  static constexpr std::int64_t kMostShare = 16;

  std::int32_t rows = 0, shards = 0, layers = 0, experts = 0, ranks = 0;
  std::variant<std::vector<std::int32_t>, std::vector<std::int64_t>> loads;
  std::vector<std::int64_t> pads;         ///< padding tokens, [R·G]; empty when padding carries no load
  std::vector<std::uint32_t> pad_counts;  ///< [L, E], expert load of one of them in 1/65536; empty likewise
  std::vector<double> dense;              ///< A[r, g], [R·G]
  std::vector<double> weights;            ///< w_l, [L]
  std::int64_t capacity = 1;              ///< C
  std::int64_t max_rank_tokens = 0;       ///< no W[r, g, l, p] may pass it; 0 = no limit
  Sync sync = Sync::Step;

  [[nodiscard]] std::size_t row_shards() const {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(shards);
  }
};

/// O(N·L·E) operations, in parallel over row-shards. Dummies carry no load.
RowLoads aggregate_rows(const Instance& instance, const Layout& layout, Executor& executor);

}  // namespace routepack
