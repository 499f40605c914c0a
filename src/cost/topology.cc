// SPDX-License-Identifier: Apache-2.0
#include "routepack/topology.h"

#include <fmt/format.h>

#include <numeric>
#include <string_view>
#include <utility>

#include "routepack/error.h"

namespace routepack {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 20;

void check_size(std::string_view name, std::int64_t size) {
  if (size >= 1 && size <= kMaxSize) return;
  throw InvalidInput(fmt::format("topology: {}: found {}, wanted 1 to {}", name, size, kMaxSize));
}

/// The least x ≥ 1 such that `divisor` divides x·`factor`.
std::int64_t least_multiplier(std::int64_t divisor, std::int64_t factor) {
  return divisor / std::gcd(divisor, factor);
}

}  // namespace

Topology Topology::megatron(const MegatronGrid& grid) {
  const std::pair<std::string_view, std::int32_t> sizes[] = {{"dp", grid.dp}, {"ep", grid.ep},   {"tp", grid.tp},
                                                             {"cp", grid.cp}, {"etp", grid.etp}, {"pp", grid.pp}};
  for (const auto& [name, size] : sizes) check_size(name, size);
  // At most 2^60 each.
  const std::int64_t slot_ranks = std::int64_t{grid.tp} * grid.cp;
  const std::int64_t shard_ranks = std::int64_t{grid.etp} * grid.ep;
  const std::int64_t all_ranks = slot_ranks * grid.dp;
  if (shard_ranks % slot_ranks != 0) {
    throw InvalidInput(fmt::format(
        "topology: tp·cp = {}·{} = {} does not divide etp·ep = {}·{} = {}, so a data-parallel slot would span two "
        "expert-parallel shards; an ep that is a multiple of {} would do",
        grid.tp, grid.cp, slot_ranks, grid.etp, grid.ep, shard_ranks, least_multiplier(slot_ranks, grid.etp)));
  }
  if (all_ranks % shard_ranks != 0) {
    throw InvalidInput(fmt::format(
        "topology: etp·ep = {}·{} = {} does not divide dp·tp·cp = {}·{}·{} = {}, so an expert-parallel shard would be "
        "incomplete; a dp that is a multiple of {} would do",
        grid.etp, grid.ep, shard_ranks, grid.dp, grid.tp, grid.cp, all_ranks,
        least_multiplier(shard_ranks, slot_ranks)));
  }
  const std::int64_t slots_per_shard = shard_ranks / slot_ranks;
  std::vector<std::vector<SlotId>> shards(static_cast<std::size_t>(grid.dp / slots_per_shard));
  for (std::int32_t d = 0; d < grid.dp; ++d) {
    shards[static_cast<std::size_t>(d / slots_per_shard)].emplace_back(d);
  }
  return from_shards(grid.ep, std::move(shards), grid.pp);
}

Topology Topology::from_shards(std::int32_t ranks, std::vector<std::vector<SlotId>> shards,
                               std::int32_t pipeline_stages) {
  check_size("ep", ranks);
  check_size("pp", pipeline_stages);
  std::int64_t slots = 0;
  for (const auto& shard : shards) slots += static_cast<std::int64_t>(shard.size());
  if (shards.empty()) throw InvalidInput("topology: shards: found an empty list, wanted at least one shard");
  for (std::size_t g = 0; g < shards.size(); ++g) {
    if (shards[g].empty()) {
      throw InvalidInput(fmt::format("topology: shards[{}]: found an empty shard, wanted at least one slot", g));
    }
  }
  check_size("slots in all shards", slots);

  constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);
  std::vector<std::pair<std::size_t, std::size_t>> seen(static_cast<std::size_t>(slots), {kNowhere, 0});
  Topology topology;
  topology.shard_of_.resize(static_cast<std::size_t>(slots));
  for (std::size_t g = 0; g < shards.size(); ++g) {
    for (std::size_t n = 0; n < shards[g].size(); ++n) {
      const SlotId d = shards[g][n];
      if (d.value() < 0 || d.value() >= slots) {
        throw InvalidInput(
            fmt::format("topology: shards[{}][{}]: found slot {}, wanted 0 to {}: the shards hold {} slots", g, n,
                        d.value(), slots - 1, slots));
      }
      if (seen[d].first != kNowhere) {
        throw InvalidInput(fmt::format("topology: shards[{}][{}]: slot {} occurs twice (first in shards[{}][{}])", g, n,
                                       d.value(), seen[d].first, seen[d].second));
      }
      seen[d] = {g, n};
      topology.shard_of_[d] = ShardId(g);
    }
  }
  // As many distinct slots as numbers below D: none is missing.
  topology.ranks_ = ranks;
  topology.pipeline_stages_ = pipeline_stages;
  topology.shards_ = std::move(shards);
  return topology;
}

}  // namespace routepack
