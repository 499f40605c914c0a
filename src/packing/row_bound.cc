// SPDX-License-Identifier: Apache-2.0
#include "packing/row_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "core/integer.h"
#include "packing/bin_bound.h"
#include "packing/reduce.h"

namespace routepack {
namespace {

/// Rows when every slot gets n = N/D samples: of the k·D + 1 longest samples some slot has k + 1, and its other
/// n − k − 1 samples are not shorter than the shortest of the window. Groups are taken apart here, which only lowers
/// the bound; an oversized sample fills one cell.
std::int64_t rows_for_equal_counts(const Instance& instance, const Items& items) {
  const std::int64_t usable = room_of_a_cell(instance);
  std::vector<std::int64_t> falling;
  falling.reserve(items.samples.size());
  for (const SampleId i : items.samples) falling.push_back(std::min(instance.aligned_length(i), usable));
  std::ranges::sort(falling, std::greater<>());
  std::vector<std::int64_t> prefix(falling.size() + 1, 0);
  for (std::size_t n = 0; n < falling.size(); ++n) prefix[n + 1] = prefix[n] + falling[n];

  const auto slots = static_cast<std::size_t>(instance.topology.slots());
  const std::size_t share = falling.size() / slots;
  std::int64_t best = 1;
  for (std::size_t k = 0; k < share; ++k) {
    const std::size_t end = k * slots + 1;
    const std::int64_t longest = prefix[end] - prefix[end - k - 1];
    const std::int64_t shortest = prefix.back() - prefix[falling.size() - (share - k - 1)];
    best = std::max(best, ceil_div(longest + shortest, usable));
  }
  return best;
}

std::string explain(const Instance& instance, const BinBound& bound, std::int64_t cells) {
  const std::int64_t limit = instance.constraints.max_samples_per_cell;
  const std::string tokens = fmt::format("need {} cells of capacity {}", cells, instance.capacity);
  if (!bound.by_count) return "the tokens " + tokens;
  if (!bound.by_tokens) return fmt::format("max_samples_per_cell {}", limit);
  return fmt::format("the tokens and max_samples_per_cell {} {}", limit, tokens);
}

}  // namespace

RowBound row_bound(const Instance& instance, const Items& items, std::span<const std::int64_t> rank_demand) {
  const Constraints& rules = instance.constraints;
  const std::int64_t slots = instance.topology.slots();
  RowBound bound{1, "one row at least"};
  const auto raise = [&](std::int64_t rows, auto&& because) {
    if (rows > bound.rows) bound = {rows, because()};
  };

  const Reduced reduced = reduce(instance, items);
  const BinBound bins = least_bins(reduced.problem);
  const std::int64_t cells = bins.bins + static_cast<std::int64_t>(reduced.alone.size());
  raise(ceil_div(cells, slots), [&] { return explain(instance, bins, cells); });
  if (rules.equal_count) {
    raise(rows_for_equal_counts(instance, items),
          [&] { return std::string("equal_count: the slot with the most of the longest samples"); });
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
