// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/assert.h"
#include "routepack/error.h"
#include "routepack/moves.h"

namespace routepack {
namespace {

void require_same_shape(const Placement& from, const Placement& to) {
  if (from.layers() == to.layers() && from.experts() == to.experts() && from.ranks() == to.ranks()) return;
  throw InvalidInput(
      fmt::format("placement: found {} layers, {} experts, ep {}; wanted {}, {} and {}, as before the move",
                  to.layers(), to.experts(), to.ranks(), from.layers(), from.experts(), from.ranks()));
}

}  // namespace

MoveLedger::MoveLedger(const Placement& home, const MoveBudget& budget, std::int64_t expert_bytes,
                       std::int32_t ranks_per_node)
    : home_(home),
      budget_(budget),
      expert_bytes_(expert_bytes),
      ranks_per_node_(ranks_per_node == 0 ? std::max(home.ranks(), 1) : ranks_per_node),
      limited_bytes_(budget.rank_bytes.has_value()),
      all_(std::int64_t{home.layers()} * home.experts()),
      in_(static_cast<std::size_t>(home.ranks())),
      out_(in_.size()) {
  if (expert_bytes < 0) {
    throw InvalidInput(fmt::format("expert_bytes: found {}, wanted at least 0", expert_bytes));
  }
  if (ranks_per_node < 0) {
    throw InvalidInput(fmt::format("ranks_per_node: found {}, wanted at least 0", ranks_per_node));
  }
  if (limited_bytes_ && expert_bytes == 0) {
    throw InvalidInput(
        "moves: found a limit in bytes, wanted the bytes of one expert with it (expert_bytes, or a model preset)");
  }
  if (limited_bytes_) most_per_rank_ = *budget.rank_bytes / expert_bytes;
  most_moved_ = budget.most_experts(all_);
}

std::int64_t MoveLedger::moved_change(LayerId l, std::span<const Relocation> relocations) const {
  std::int64_t change = 0;
  for (const Relocation& move : relocations) {
    const RankId home = home_.rank_of(l, move.expert);
    change += (move.to == home ? 0 : 1) - (move.from == home ? 0 : 1);
  }
  return change;
}

double MoveLedger::price_change(LayerId l, std::span<const Relocation> relocations) const {
  const auto price_at = [&](RankId home, RankId rank) {
    if (rank == home) return 0.0;
    return node_of(home) == node_of(rank) ? budget_.price : budget_.price_between_nodes;
  };
  double change = 0.0;
  for (const Relocation& move : relocations) {
    const RankId home = home_.rank_of(l, move.expert);
    change += price_at(home, move.to) - price_at(home, move.from);
  }
  return change;
}

bool MoveLedger::allows(LayerId l, std::span<const Relocation> relocations) const {
  if (unlimited()) return true;
  const std::int64_t more = moved_change(l, relocations);
  if (more > 0 && moved() + more > most_moved_) return false;
  if (!limited_bytes_) return true;
  const auto away = [&](const Relocation& move, RankId rank) {
    return home_.rank_of(l, move.expert) == rank ? std::int64_t{0} : std::int64_t{1};
  };
  // Change of what rank p receives, and of what it sends, by all relocations together.
  const auto in_change = [&](RankId p) {
    std::int64_t change = 0;
    for (const Relocation& move : relocations) {
      if (move.to == p) change += away(move, p);
      if (move.from == p) change -= away(move, p);
    }
    return change;
  };
  const auto out_change = [&](RankId p) {
    std::int64_t change = 0;
    for (const Relocation& move : relocations) {
      if (home_.rank_of(l, move.expert) == p) change += away(move, move.to) - away(move, move.from);
    }
    return change;
  };
  return std::ranges::all_of(relocations, [&](const Relocation& move) {
    const RankId home = home_.rank_of(l, move.expert);
    const std::int64_t in = in_change(move.to);
    const std::int64_t out = out_change(home);
    return (in <= 0 || in_[move.to] + in <= most_per_rank_) && (out <= 0 || out_[home] + out <= most_per_rank_);
  });
}

void MoveLedger::record(LayerId l, std::span<const Relocation> relocations) {
  for (const Relocation& move : relocations) {
    const RankId home = home_.rank_of(l, move.expert);
    const auto count = [&](RankId rank, std::int64_t change) {
      if (rank == home) return;
      (node_of(home) == node_of(rank) ? near_ : far_) += change;
      in_[rank] += change;
      out_[home] += change;
    };
    count(move.from, -1);
    count(move.to, 1);
  }
}

void MoveLedger::recount(const Placement& now) {
  require_same_shape(home_, now);
  near_ = far_ = 0;
  std::ranges::fill(in_, 0);
  std::ranges::fill(out_, 0);
  for (const LayerId l : IdRange<LayerId>(now.layers())) {
    for (const ExpertId e : IdRange<ExpertId>(now.experts())) {
      const Relocation move{e, home_.rank_of(l, e), now.rank_of(l, e)};
      record(l, {&move, 1});
    }
  }
}

MoveList list_moves(const Placement& from, const Placement& to, std::int64_t expert_bytes,
                    std::int32_t ranks_per_node) {
  require_same_shape(from, to);
  MoveLedger ledger(from, {}, expert_bytes, ranks_per_node);
  ledger.recount(to);
  MoveList list;
  for (const RankId p : IdRange<RankId>(from.ranks())) list.ranks.push_back({ledger.bytes_in(p), ledger.bytes_out(p)});
  list.between_nodes = ledger.moved_between_nodes();

  const std::int32_t per_rank = from.slots_per_rank();
  std::vector<bool> seen;
  for (const LayerId l : IdRange<LayerId>(from.layers())) {
    const auto& before = from.physical_to_logical()[l];
    seen.assign(before.size(), false);
    for (std::size_t start = 0; start < before.size(); ++start) {
      MoveCycle cycle{l, {}};
      for (std::size_t slot = start; !seen[slot];) {
        seen[slot] = true;
        cycle.slots.push_back(static_cast<std::int32_t>(slot));
        const auto next = static_cast<std::size_t>(to.slot_of(l, before[slot]));
        const auto width = static_cast<std::size_t>(per_rank);
        if (next / width != slot / width && next % width == slot % width) ++list.same_index;
        slot = next;
      }
      if (cycle.slots.size() > 1) list.cycles.push_back(std::move(cycle));
    }
  }
  return list;
}

std::optional<std::int64_t> fewest_swaps(std::span<const std::int64_t> loads, std::span<const std::int32_t> rank_of,
                                         std::int32_t ranks, std::int64_t peak) {
  ROUTEPACK_ASSERT(loads.size() == rank_of.size(), "loads and ranks differ in size");
  std::vector<std::size_t> hottest_first(loads.size());
  for (std::size_t e = 0; e < loads.size(); ++e) hottest_first[e] = e;
  std::ranges::stable_sort(hottest_first, [&](std::size_t a, std::size_t b) { return loads[a] > loads[b]; });
  std::vector<std::int64_t> rank_load(static_cast<std::size_t>(ranks), 0);
  for (std::size_t e = 0; e < loads.size(); ++e) rank_load[static_cast<std::size_t>(rank_of[e])] += loads[e];

  std::int64_t swaps = 0;
  for (std::int32_t p = 0; p < ranks; ++p) {
    std::int64_t excess = rank_load[static_cast<std::size_t>(p)] - peak;
    auto hot = hottest_first.begin();
    auto cold = hottest_first.rbegin();
    while (excess > 0) {
      hot = std::find_if(hot, hottest_first.end(), [&](std::size_t e) { return rank_of[e] == p; });
      cold = std::find_if(cold, hottest_first.rend(), [&](std::size_t e) { return rank_of[e] != p; });
      if (hot == hottest_first.end() || cold == hottest_first.rend()) return std::nullopt;
      if (loads[*hot] <= loads[*cold]) return std::nullopt;
      excess -= loads[*hot++] - loads[*cold++];
      ++swaps;
    }
  }
  return swaps;
}

}  // namespace routepack
