// SPDX-License-Identifier: Apache-2.0
// Laws of the account of moves, of move lists and of the lower bound on swaps.
#include "routepack/moves.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "placement/relabel.h"
#include "placement/slots.h"
#include "support/problems.h"
#include "support/property.h"

namespace routepack::testing {
namespace {

struct Case {
  std::int32_t layers, ranks, experts;
  std::mt19937_64 random;
  Placement home;
};

Case draw_case(std::int32_t max_ranks = 5) {
  const std::int32_t layers = draw(1, 3);
  const std::int32_t ranks = draw(1, max_ranks);
  const std::int32_t experts = ranks * draw(1, 4);
  std::mt19937_64 random(draw_seed());
  Placement home = to_placement(random_maps(random, layers, experts), ranks);
  return {layers, ranks, experts, random, std::move(home)};
}

Placement random_placement(Case& it) {
  return to_placement(random_maps(it.random, it.layers, it.experts), it.ranks);
}

/// The account of a placement, from its definition.
struct Count {
  std::int64_t moved = 0, between_nodes = 0;
  std::vector<std::int64_t> in, out;
};
Count count(const Placement& home, const Placement& now, std::int64_t bytes, std::int32_t node) {
  Count result;
  result.in.resize(static_cast<std::size_t>(home.ranks()));
  result.out = result.in;
  for (const LayerId l : IdRange<LayerId>(home.layers())) {
    for (const ExpertId e : IdRange<ExpertId>(home.experts())) {
      const RankId from = home.rank_of(l, e);
      const RankId to = now.rank_of(l, e);
      if (from == to) continue;
      ++result.moved;
      if (from.value() / node != to.value() / node) ++result.between_nodes;
      result.out[from] += bytes;
      result.in[to] += bytes;
    }
  }
  return result;
}

TEST(MoveLedger, agrees_with_a_count_from_scratch_and_never_passes_a_limit) {
  for_all(300, [] {
    Case it = draw_case();
    MoveBudget budget;
    if (draw(0, 1) == 1) budget.share = draw(0, 100) / 100.0;
    const std::int64_t bytes = draw(1, 9);
    if (draw(0, 1) == 1) budget.rank_bytes = draw(0, 60);
    budget.price = draw(0, 3);
    budget.price_between_nodes = budget.price + draw(0, 3);
    const std::int32_t node = draw(1, it.ranks);
    MoveLedger ledger(it.home, budget, bytes, node);
    auto rank_of = ranks_of(it.home);
    for (int n = 0; n < 60; ++n) {
      const LayerId l(below(it.random, it.layers));
      std::vector<Relocation> moves;
      const std::int32_t ring = std::min(2 + below(it.random, 2), it.experts);
      std::set<std::int32_t> chosen;
      while (static_cast<std::int32_t>(chosen.size()) < ring) chosen.insert(below(it.random, it.experts));
      const std::vector<std::int32_t> members(chosen.begin(), chosen.end());
      const auto at = [&](std::int32_t e) -> std::int32_t& {
        return rank_of[l * static_cast<std::size_t>(it.experts) + static_cast<std::size_t>(e)];
      };
      for (std::size_t k = 0; k < members.size(); ++k) {
        moves.push_back({ExpertId(members[k]), RankId(at(members[k])), RankId(at(members[(k + 1) % members.size()]))});
      }
      const Count before = count(it.home, fill_slots(it.home, rank_of), bytes, node);
      auto after_ranks = rank_of;
      for (const Relocation& move : moves) {
        after_ranks[l * static_cast<std::size_t>(it.experts) + move.expert] = move.to.value();
      }
      const Placement after_placement = fill_slots(it.home, after_ranks);
      const Count after = count(it.home, after_placement, bytes, node);
      bool fits = after.moved <= std::max(before.moved, budget.most_experts(it.layers * it.experts));
      if (budget.rank_bytes) {
        for (std::size_t p = 0; p < after.in.size(); ++p) {
          fits = fits && after.in[p] <= std::max(before.in[p], *budget.rank_bytes) &&
                 after.out[p] <= std::max(before.out[p], *budget.rank_bytes);
        }
      }
      RC_ASSERT(ledger.allows(l, moves) == fits);
      RC_ASSERT(ledger.moved_change(l, moves) == after.moved - before.moved);
      if (!fits) continue;
      const double price = ledger.total_price() + ledger.price_change(l, moves);
      ledger.record(l, moves);
      rank_of = after_ranks;
      RC_ASSERT(ledger.total_price() == price);
      RC_ASSERT(ledger.moved() == after.moved);
      RC_ASSERT(ledger.moved_between_nodes() == after.between_nodes);
      for (const RankId p : IdRange<RankId>(it.ranks)) {
        RC_ASSERT(ledger.bytes_in(p) == after.in[p]);
        RC_ASSERT(ledger.bytes_out(p) == after.out[p]);
      }
      MoveLedger again(it.home, budget, bytes, node);
      again.recount(after_placement);
      RC_ASSERT(again == ledger);
    }
  });
}

TEST(MoveList, leads_from_one_placement_to_the_other) {
  for_all(300, [] {
    Case it = draw_case();
    const Placement to = draw(0, 1) == 0 ? random_placement(it) : fill_slots(it.home, ranks_of(random_placement(it)));
    const std::int32_t node = draw(1, it.ranks);
    const MoveList list = list_moves(it.home, to, 7, node);
    Maps maps = maps_of(it.home);
    std::pair<std::int32_t, std::int32_t> last{-1, -1};
    for (const MoveCycle& cycle : list.cycles) {
      RC_ASSERT(cycle.slots.size() >= 2U);
      RC_ASSERT(*std::min_element(cycle.slots.begin(), cycle.slots.end()) == cycle.slots.front());
      const std::pair<std::int32_t, std::int32_t> place{cycle.layer.value(), cycle.slots.front()};
      RC_ASSERT(last < place);
      last = place;
      const auto& before = it.home.physical_to_logical()[cycle.layer];
      for (std::size_t k = 0; k < cycle.slots.size(); ++k) {
        const auto slot = static_cast<std::size_t>(cycle.slots[k]);
        const auto next = static_cast<std::size_t>(cycle.slots[(k + 1) % cycle.slots.size()]);
        maps[cycle.layer][next] = before[slot].value();
      }
    }
    RC_ASSERT(maps == maps_of(to));
    const Count counted = count(it.home, to, 7, node);
    RC_ASSERT(list.between_nodes == counted.between_nodes);
    for (const RankId p : IdRange<RankId>(it.ranks)) {
      RC_ASSERT(list.ranks[p] == (RankTraffic{counted.in[p], counted.out[p]}));
    }
  });
}

TEST(FillSlots, keeps_every_stayer_and_moves_as_many_as_can_be_to_equal_local_slots) {
  for_all(300, [] {
    Case it = draw_case();
    const auto rank_of = ranks_of(random_placement(it));
    const Placement placed = fill_slots(it.home, rank_of);
    RC_ASSERT(ranks_of(placed) == rank_of);
    RC_ASSERT(count_moves(it.home, placed).local == 0);
    const std::int32_t per_rank = it.home.slots_per_rank();
    std::int64_t possible = 0;
    for (const LayerId l : IdRange<LayerId>(it.layers)) {
      for (std::int32_t slot = 0; slot < it.experts; ++slot) {
        const ExpertId owner = it.home.physical_to_logical()[l][static_cast<std::size_t>(slot)];
        if (placed.rank_of(l, owner).value() == slot / per_rank) continue;
        const auto fits = [&](ExpertId e) {
          return placed.rank_of(l, e).value() == slot / per_rank && it.home.rank_of(l, e).value() != slot / per_rank &&
                 it.home.slot_of(l, e) % per_rank == slot % per_rank;
        };
        const auto all = IdRange<ExpertId>(it.experts);
        possible += std::any_of(all.begin(), all.end(), fits) ? 1 : 0;
      }
    }
    RC_ASSERT(list_moves(it.home, placed, 0).same_index == possible);
  });
}

/// The fewest swaps between ranks that bring every rank to at most `peak`, by breadth-first search over all
/// assignments; −1 when none does.
std::int64_t fewest_by_search(const std::vector<std::int64_t>& loads, const std::vector<std::int32_t>& start,
                              std::int32_t ranks, std::int64_t peak) {
  const auto done = [&](const std::vector<std::int32_t>& rank_of) {
    std::vector<std::int64_t> on(static_cast<std::size_t>(ranks), 0);
    for (std::size_t e = 0; e < loads.size(); ++e) on[static_cast<std::size_t>(rank_of[e])] += loads[e];
    return *std::max_element(on.begin(), on.end()) <= peak;
  };
  std::set<std::vector<std::int32_t>> seen = {start}, frontier = {start};
  for (std::int64_t swaps = 0; !frontier.empty(); ++swaps) {
    std::set<std::vector<std::int32_t>> next;
    for (const auto& rank_of : frontier) {
      if (done(rank_of)) return swaps;
      for (std::size_t a = 0; a < loads.size(); ++a) {
        for (std::size_t b = a + 1; b < loads.size(); ++b) {
          if (rank_of[a] == rank_of[b]) continue;
          auto swapped = rank_of;
          std::swap(swapped[a], swapped[b]);
          if (seen.insert(swapped).second) next.insert(swapped);
        }
      }
    }
    frontier = std::move(next);
  }
  return -1;
}

TEST(FewestSwaps, is_never_more_than_the_fewest_that_a_search_finds) {
  for_all(200, [] {
    const std::int32_t ranks = draw(1, 3);
    const std::int32_t experts = ranks * draw(1, ranks == 3 ? 2 : 3);
    std::mt19937_64 random(draw_seed());
    std::vector<std::int64_t> loads;
    std::vector<std::int32_t> rank_of;
    std::int64_t total = 0;
    for (std::int32_t e = 0; e < experts; ++e) {
      loads.push_back(below(random, 30));
      rank_of.push_back(e % ranks);
      total += loads.back();
    }
    const std::int64_t peak = total / ranks + below(random, 12);
    const std::int64_t fewest = fewest_by_search(loads, rank_of, ranks, peak);
    const auto bound = fewest_swaps(loads, rank_of, ranks, peak);
    if (fewest >= 0) {
      RC_ASSERT(bound.has_value());
      RC_ASSERT(*bound <= fewest);
      RC_TAG(std::to_string(fewest - *bound));
    }
  });
}

TEST(BestAssignment, finds_the_sum_that_trying_all_finds) {
  for_all(200, [] {
    const std::int32_t n = draw(1, 6);
    std::mt19937_64 random(draw_seed());
    const std::int32_t spread = 1 + below(random, 40);
    std::vector<std::int64_t> values;
    for (std::int32_t k = 0; k < n * n; ++k) values.push_back(below(random, spread) - spread / 3);
    const auto sum = [&](const std::vector<std::int32_t>& columns) {
      std::int64_t total = 0;
      for (std::size_t row = 0; row < columns.size(); ++row) {
        total += values[row * columns.size() + static_cast<std::size_t>(columns[row])];
      }
      return total;
    };
    const auto found = best_assignment(values, n);
    std::vector<std::int32_t> columns(static_cast<std::size_t>(n));
    for (std::int32_t k = 0; k < n; ++k) columns[static_cast<std::size_t>(k)] = k;
    RC_ASSERT(std::is_permutation(found.begin(), found.end(), columns.begin()));
    std::int64_t best = sum(columns);
    while (std::next_permutation(columns.begin(), columns.end())) best = std::max(best, sum(columns));
    RC_ASSERT(sum(found) == best);
  });
}

TEST(Relabel, keeps_groups_together_and_never_moves_more) {
  for_all(200, [] {
    Case it = draw_case();
    const Placement wanted = random_placement(it);
    const Placement labelled = relabel(wanted, it.home, draw(0, it.ranks));
    RC_ASSERT(count_moves(it.home, labelled).experts <= count_moves(it.home, wanted).experts);
    for (const LayerId l : IdRange<LayerId>(it.layers)) {
      std::map<std::int32_t, std::int32_t> name;
      for (const ExpertId e : IdRange<ExpertId>(it.experts)) {
        const auto [at, fresh] = name.emplace(wanted.rank_of(l, e).value(), labelled.rank_of(l, e).value());
        RC_ASSERT(fresh || at->second == labelled.rank_of(l, e).value());
      }
    }
  });
}

}  // namespace
}  // namespace routepack::testing
