// SPDX-License-Identifier: Apache-2.0
#include "packing/fill_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "core/assert.h"

namespace routepack {
namespace {

/// Among the row-shards [first, last) that have room for the cell and keep `limit` (0 = none), the cell joins the one
/// of least `cost`; ties to the first. False when there is none.
template <class Cost>
bool place(RowTable& table, std::size_t cell, std::size_t first, std::size_t last, std::int64_t limit, Cost cost) {
  std::size_t best = RowTable::kNone;
  RowTable::Price best_price;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t at = first; at < last; ++at) {
    if (!table.has_room(at, cell)) continue;
    const RowTable::Price price = table.price_with(at, cell);
    if (limit > 0 && price.peak > limit) continue;
    if (const double found = cost(price, at); found < least) {
      least = found;
      best_price = price;
      best = at;
    }
  }
  if (best == RowTable::kNone) return false;
  table.join(best, cell, best_price);
  return true;
}

/// Similar cells meet: band by band, each cell where it costs least.
bool fill_by_cost(const Instance& instance, const FittedCells& fitted, RowTable& table) {
  const auto increase = [&](const RowTable::Price& price, std::size_t at) {
    return price.joint - table.price(at).joint;
  };
  for (const Band& band : row_bands(instance, fitted.rows, fitted.cells)) {
    for (const std::size_t c : band.cells) {
      if (!place(table, c, band.first, band.last, instance.constraints.max_rank_tokens, increase)) return false;
    }
  }
  return true;
}

/// Hot cells meet cool ones: by falling peak, each where the busiest rank stays least busy. Costs more and balances the
/// dense side less, so it serves only where the cap on rank tokens binds.
bool fill_by_peak(std::int64_t limit, RowTable& table) {
  std::vector<std::pair<std::int64_t, std::size_t>> order;
  for (std::size_t c = 0; c < table.cells().size(); ++c) order.emplace_back(table.peak_of(c), c);
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) { return a.first > b.first; });
  return std::ranges::all_of(order, [&](const auto& cell) {
    return place(table, cell.second, 0, table.size(), limit,
                 [](const RowTable::Price& price, std::size_t) { return static_cast<double>(price.peak); });
  });
}

}  // namespace

void settle_shards(const Instance& instance, RowTable& table) {
  if (instance.constraints.equal_count) return;
  const std::size_t shards = table.shards();
  std::vector<std::size_t> source(table.size());
  std::iota(source.begin(), source.end(), std::size_t{0});
  std::vector<std::vector<std::size_t>> classes(static_cast<std::size_t>(instance.topology.slots()) + 1);
  for (const ShardId g : instance.topology.shard_ids()) classes[instance.topology.slots_of(g).size()].push_back(g);

  for (const auto& members : classes) {
    if (members.size() < 2) continue;
    std::vector<std::size_t> pool;
    for (std::int64_t r = 0; r < table.rows(); ++r) {
      for (const std::size_t g : members) pool.push_back(static_cast<std::size_t>(r) * shards + g);
    }
    std::ranges::stable_sort(pool,
                             [&](std::size_t a, std::size_t b) { return table.price(a).joint > table.price(b).joint; });
    std::set<std::pair<double, std::size_t>> lightest;  // total so far and member, of those with rows left
    for (std::size_t m = 0; m < members.size(); ++m) lightest.emplace(0.0, m);
    std::vector<std::int64_t> filled(members.size(), 0);
    for (std::size_t k = 0; k < pool.size(); ++k) {
      std::size_t to = k % members.size();
      if (instance.sync == Sync::Step) {
        const auto [total, member] = *lightest.begin();
        lightest.erase(lightest.begin());
        if (filled[member] + 1 < table.rows()) lightest.emplace(total + table.price(pool[k]).joint, member);
        to = member;
      }
      source[static_cast<std::size_t>(filled[to]++) * shards + members[to]] = pool[k];
    }
  }
  table.permute(source);
}

std::optional<Arrangement> fill_rows(const Instance& instance, const UnitLoads& loads,
                                     std::span<const std::int64_t> pad_rates, const FittedCells& fitted) {
  RowTable table(instance, loads, pad_rates, fitted.rows, fitted.cells);
  if (!fill_by_cost(instance, fitted, table)) {
    table.clear();
    if (!fill_by_peak(instance.constraints.max_rank_tokens, table)) return std::nullopt;
  }
  settle_shards(instance, table);
  return table.arrangement();
}

std::int64_t coolest_peak(const Instance& instance, const UnitLoads& loads, std::span<const std::int64_t> pad_rates,
                          const FittedCells& fitted) {
  RowTable table(instance, loads, pad_rates, fitted.rows, fitted.cells);
  const bool filled = fill_by_peak(0, table);
  ROUTEPACK_ASSERT(filled, "a cell found no room without a limit");
  return table.peak();
}

std::vector<std::size_t> pipeline_order(std::span<const double> joint, std::int64_t rows) {
  const std::size_t shards = joint.size() / static_cast<std::size_t>(rows);
  std::vector<double> weight;
  for (std::size_t at = 0; at < joint.size(); at += shards)
    weight.push_back(std::ranges::max(joint.subspan(at, shards)));
  std::vector<std::size_t> rising(weight.size());
  std::iota(rising.begin(), rising.end(), std::size_t{0});
  std::ranges::stable_sort(rising, [&](std::size_t a, std::size_t b) { return weight[a] < weight[b]; });
  std::vector<std::size_t> order(rising.size());
  for (std::size_t k = 0; k < rising.size(); ++k) order[k % 2 == 0 ? k / 2 : rising.size() - 1 - k / 2] = rising[k];
  return order;
}

Arrangement with_rows_in(Arrangement arrangement, std::span<const std::size_t> order) {
  const std::size_t slots = arrangement.cells.size() / order.size();
  Arrangement result{.rows = arrangement.rows, .cells = {}};
  result.cells.reserve(arrangement.cells.size());
  for (const std::size_t r : order) {
    for (std::size_t d = 0; d < slots; ++d) result.cells.push_back(std::move(arrangement.cells[r * slots + d]));
  }
  return result;
}

Layout rows_in_order(const Instance& instance, const Items& items, const FittedCells& fitted) {
  return to_layout(instance, items, {.rows = fitted.rows, .cells = fitted.cells});
}

}  // namespace routepack
