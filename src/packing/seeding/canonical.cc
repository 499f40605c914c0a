// SPDX-License-Identifier: Apache-2.0
#include "packing/seeding/canonical.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "packing/fill_rows.h"
#include "packing/slack_search.h"

namespace routepack {
namespace {

/// The items of an atomic group are in rising order.
std::int32_t least_sample(const Items& items, const Cell& cell) {
  return items.samples_of(items.items[cell.items.front()]).front().value();
}

}  // namespace

Canonical canonicalize(const Instance& instance, const Items& items, Arrangement arrangement) {
  const auto slots = static_cast<std::size_t>(instance.topology.slots());
  const auto rows = static_cast<std::size_t>(arrangement.rows);
  const auto leader = [&](std::size_t index) { return items.samples_of(items.items[index]).front().value(); };
  std::vector<std::pair<std::int32_t, std::size_t>> sorted;
  for (Cell& cell : arrangement.cells) {
    sorted.clear();
    for (const std::size_t index : cell.items) sorted.emplace_back(leader(index), index);
    std::ranges::sort(sorted);
    std::ranges::transform(sorted, cell.items.begin(), [](const auto& item) { return item.second; });
  }

  const auto comes_first = [&](const Cell& a, const Cell& b) {
    return least_sample(items, a) < least_sample(items, b);
  };
  std::vector<Cell> shard;
  for (std::size_t r = 0; r < rows; ++r) {
    Cell* row = arrangement.cells.data() + r * slots;
    for (const ShardId g : instance.topology.shard_ids()) {
      const auto own = instance.topology.slots_of(g);
      if (row[own.front()].slot) continue;  // bound to their slots, all or none
      shard.clear();
      for (const SlotId d : own) shard.push_back(std::move(row[d]));
      std::ranges::sort(shard, comes_first);
      for (std::size_t k = 0; k < own.size(); ++k) row[own[k]] = std::move(shard[k]);
    }
  }

  Canonical result;
  result.row_order.resize(rows);
  std::iota(result.row_order.begin(), result.row_order.end(), std::size_t{0});
  std::vector<std::int32_t> least(rows, std::numeric_limits<std::int32_t>::max());
  for (std::size_t c = 0; c < arrangement.cells.size(); ++c) {
    least[c / slots] = std::min(least[c / slots], least_sample(items, arrangement.cells[c]));
  }
  std::ranges::sort(result.row_order, {}, [&](std::size_t r) { return least[r]; });
  result.arrangement = with_rows_in(std::move(arrangement), result.row_order);

  std::uint64_t hash = mixed(slots);
  for (const Cell& cell : result.arrangement.cells) {
    hash = mixed(hash ^ cell.items.size());
    for (const std::size_t index : cell.items) hash = mixed(hash ^ static_cast<std::uint64_t>(leader(index)));
  }
  result.signature = hash;
  return result;
}

bool CanonicalMap::add(std::uint64_t signature, const Score& score, std::size_t entry) {
  const auto [at, fresh] = known_.emplace(signature, Known{entries_.size(), score});
  if (fresh) {
    entries_.push_back(entry);
  } else if (score < at->second.score) {
    at->second.score = score;
    entries_[at->second.position] = entry;
  }
  return fresh;
}

}  // namespace routepack
