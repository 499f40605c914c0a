// SPDX-License-Identifier: Apache-2.0
#include "packing/row_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace routepack {
namespace {

/// Martello and Toth's L2 bound on cells: with a threshold K, items over U − K meet no item of K or more, items over
/// U/2 meet no other such item, and what the latter leave free must hold the items from K to U/2.
std::int64_t cells_for_tokens(const std::vector<std::int64_t>& falling, std::int64_t usable) {
  std::vector<std::int64_t> prefix(falling.size() + 1, 0);
  for (std::size_t k = 0; k < falling.size(); ++k) prefix[k + 1] = prefix[k] + falling[k];
  const auto count_above = [&](std::int64_t size) {
    return static_cast<std::size_t>(std::ranges::partition_point(falling, [&](std::int64_t s) { return s > size; }) -
                                    falling.begin());
  };
  std::int64_t best = ceil_div(prefix.back(), usable);
  const std::size_t large = count_above(usable / 2);
  for (std::size_t end = large; end <= falling.size(); ++end) {
    // K is the smallest size that counts; every item before `end` is at least K.
    if (end < falling.size() && end > large && falling[end] == falling[end - 1]) continue;
    const std::int64_t threshold = end > large ? falling[end - 1] : usable / 2 + 1;
    const std::size_t alone = std::min(large, count_above(usable - threshold));
    const auto shared = static_cast<std::int64_t>(large - alone);
    const std::int64_t free_space = shared * usable - (prefix[large] - prefix[alone]);
    const std::int64_t left_over = std::max<std::int64_t>(0, prefix[end] - prefix[large] - free_space);
    best = std::max(best, static_cast<std::int64_t>(large) + ceil_div(left_over, usable));
  }
  return best;
}

}  // namespace

RowBound row_bound(const Instance& instance, const Items& items, std::span<const std::int64_t> rank_demand) {
  const Constraints& rules = instance.constraints;
  const std::int64_t slots = instance.topology.slots();
  RowBound bound{1, "one row at least"};
  const auto raise = [&](std::int64_t rows, auto&& because) {
    if (rows > bound.rows) bound = {rows, because()};
  };

  std::vector<std::int64_t> falling;
  std::int64_t alone = 0;
  std::int64_t samples = 0;
  for (const Item& item : items.items) {
    if (item.oversized) {
      ++alone;
    } else {
      falling.push_back(item.totals.aligned);
      samples += item.count;
    }
  }
  const std::int64_t cells = alone + cells_for_tokens(falling, instance.usable_capacity());
  raise(ceil_div(cells, slots),
        [&] { return fmt::format("the tokens need {} cells of capacity {}", cells, instance.capacity); });
  if (rules.max_samples_per_cell > 0) {
    raise(ceil_div(alone + ceil_div(samples, rules.max_samples_per_cell), slots),
          [&] { return fmt::format("max_samples_per_cell {}", rules.max_samples_per_cell); });
  }
  if (rules.max_rank_tokens > 0 && !rank_demand.empty()) {
    const std::int64_t peak = *std::ranges::max_element(rank_demand);
    raise(ceil_div(peak, rules.max_rank_tokens * instance.topology.shards()),
          [&] { return fmt::format("max_rank_tokens {}", rules.max_rank_tokens); });
  }
  raise(rules.min_rows, [&] { return fmt::format("min_rows {}", rules.min_rows); });
  raise(instance.topology.pipeline_stages(),
        [&] { return fmt::format("{} pipeline stages", instance.topology.pipeline_stages()); });
  raise(round_up(bound.rows, rules.row_multiple),
        [&] { return fmt::format("row_multiple {} over {}", rules.row_multiple, bound.because); });
  return bound;
}

}  // namespace routepack
