// SPDX-License-Identifier: Apache-2.0
// Laws of placement that knows the rows: every incremental number against the score from scratch.
#include "placement/row_aware.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <stop_token>
#include <vector>

#include "cost/kernels/row_peaks.h"
#include "exec/thread_pool.h"
#include "placement/slots.h"
#include "placement/swap_search.h"
#include "routepack/bounds.h"
#include "support/problems.h"
#include "support/property.h"

namespace routepack::testing {
namespace {

struct Case {
  Problem problem;
  Maps home, start;
  Cells cells;
  std::mt19937_64 random;
  MoveBudget budget;
  std::int32_t ranks_per_node = 0;

  [[nodiscard]] Placement home_placement() const { return to_placement(home, problem.ranks); }
  [[nodiscard]] Placement start_placement() const { return to_placement(start, problem.ranks); }
  [[nodiscard]] MoveLedger settled_ledger() const {
    MoveLedger ledger(home_placement(), budget, 3, ranks_per_node);
    ledger.recount(start_placement());
    return ledger;
  }
};

Case draw_case(const Shape& shape = {.max_samples = 12, .max_ranks = 5, .max_slots_per_rank = 4}) {
  Case it{draw_problem(shape), {}, {}, {}, std::mt19937_64(draw_seed()), {}, 0};
  const std::int32_t rows = draw(1, it.problem.samples() / it.problem.slots());
  it.home = random_maps(it.random, it.problem.spec.layers, it.problem.spec.experts);
  it.start = draw(0, 1) == 0 ? it.home : random_maps(it.random, it.problem.spec.layers, it.problem.spec.experts);
  it.cells = random_cells(it.random, it.problem.samples(), rows, it.problem.slots());
  if (draw(0, 3) == 0) it.cells[0][0].push_back(it.problem.samples());  // a dummy
  it.ranks_per_node = draw(0, it.problem.ranks);
  return it;
}

void draw_budget(Case& it) {
  if (draw(0, 2) == 0) it.budget.share = draw(0, 60) / 100.0;
  if (draw(0, 2) == 0) it.budget.rank_bytes = draw(0, 12);
  if (draw(0, 2) == 0) it.budget.price = draw(0, 20) / 10.0;
  it.budget.price_between_nodes = it.budget.price + (draw(0, 2) == 0 ? draw(0, 20) / 10.0 : 0.0);
}

RowLoads wide(RowLoads rows) {
  const auto& narrow = std::get<std::vector<std::int32_t>>(rows.loads);
  rows.loads = std::vector<std::int64_t>(narrow.begin(), narrow.end());
  return rows;
}

std::int32_t any_expert(Case& it) {
  return below(it.random, static_cast<std::int32_t>(it.problem.spec.experts));
}

/// Random swaps of every layer; after each, the layer says what it gained and what the peaks are.
template <class Load>
void swaps_agree(Case& it, const Scene& scene, const RowLoads& rows) {
  const Layout layout = to_layout(it.cells, it.problem);
  const Placement home = it.home_placement();
  auto rank_of = ranks_of(it.start_placement());
  const auto experts = static_cast<std::size_t>(it.problem.spec.experts);
  std::vector<std::int32_t> shares(rows.row_shards(), 1);
  if (draw(0, 1) == 0) {
    for (auto& share : shares) share = 1 + below(it.random, 16);
  }
  for (const LayerId l : IdRange<LayerId>(it.problem.spec.layers)) {
    LayerSwaps<Load> layer(rows, l, home, std::span(rank_of).subspan(l * experts, experts));
    layer.set_shares(shares);
    for (int n = 0; n < 8; ++n) {
      const ExpertId a(any_expert(it));
      const ExpertId b(any_expert(it));
      if (layer.rank_of()[a] == layer.rank_of()[b]) continue;
      const auto sum = [&] {
        std::int64_t total = 0;
        for (std::size_t i = 0; i < shares.size(); ++i) total += shares[i] * layer.peak(i);
        return total;
      };
      const std::int64_t before = sum();
      RC_ASSERT(layer.peak_sum() == before);
      const std::int64_t gain = layer.gain(a, b);
      layer.apply(a, b);
      std::swap(rank_of[l * experts + a], rank_of[l * experts + b]);
      RC_ASSERT(before - sum() == gain);
      RC_ASSERT(layer.peak_sum() == sum());
      RC_ASSERT(std::ranges::equal(layer.rank_of(), std::span(rank_of).subspan(l * experts, experts)));
      const Evaluation scratch = evaluate(scene.instance, fill_slots(home, rank_of), layout);
      RC_ASSERT(score_rows(rows, rank_of) == scratch.score);
      // Twin of all that is kept up to date.
      LayerSwaps<Load> twin(rows, l, home, layer.rank_of());
      twin.set_shares(shares);
      for (std::size_t i = 0; i < rows.row_shards(); ++i) RC_ASSERT(twin.peak(i) == layer.peak(i));
      for (std::size_t p = 0; p < layer.ranks(); ++p) {
        RC_ASSERT(std::equal(twin.rank(p), twin.rank(p) + twin.stride(), layer.rank(p)));
        RC_ASSERT(std::equal(twin.coolest(p), twin.coolest(p) + twin.stride(), layer.coolest(p)));
        RC_ASSERT(std::equal(twin.hottest(p), twin.hottest(p) + twin.stride(), layer.hottest(p)));
        RC_ASSERT(twin.guests(p) == layer.guests(p));
      }
      RC_ASSERT(twin.all_guests() == layer.all_guests());
    }
  }
}

TEST(LayerSwaps, gains_what_the_score_from_scratch_says) {
  for_all(150, [] {
    Case it = draw_case();
    const Scene scene(it.problem);
    SerialExecutor executor;
    const RowLoads rows = aggregate_rows(scene.instance, to_layout(it.cells, it.problem), executor);
    if (draw(0, 1) == 0) {
      swaps_agree<std::int32_t>(it, scene, rows);
    } else {
      swaps_agree<std::int64_t>(it, scene, wide(rows));
    }
  });
}

/// The best net gain of a swap with an expert of rank p, by trying all.
template <class Load>
double best_by_trying(const LayerSwaps<Load>& layer, LayerId l, std::size_t p, const AwayPrice& price,
                      const MoveLedger& ledger, const RowLoads& rows) {
  double best = 0.0;
  for (const ExpertId a : layer.members(p)) {
    for (const ExpertId b : IdRange<ExpertId>(rows.experts)) {
      const auto q = static_cast<std::size_t>(layer.rank_of()[b]);
      if (q == p) continue;
      const std::int64_t gain = layer.gain(a, b);
      if (gain < 0) continue;
      if (rows.max_rank_tokens > 0) {
        LayerSwaps<Load> after = layer;
        after.apply(a, b);
        bool fits = true;
        for (std::size_t i = 0; i < rows.row_shards(); ++i) {
          const std::int64_t limit = rows.max_rank_tokens * layer.shares()[i];
          fits = fits && after.rank(p)[i] <= limit && after.rank(q)[i] <= limit;
        }
        if (!fits) continue;
      }
      const auto away = [&](ExpertId e, std::size_t rank) {
        const RankId home = ledger.home().rank_of(l, e);
        if (home == RankId(rank)) return 0.0;
        return ledger.node_of(home) == ledger.node_of(RankId(rank)) ? price.near : price.far;
      };
      best = std::max(best, static_cast<double>(gain) - (away(a, q) - away(a, p) + away(b, p) - away(b, q)));
    }
  }
  return best;
}

template <class Load>
void search_is_exact(Case& it, const RowLoads& rows) {
  const MoveLedger ledger = it.settled_ledger();
  const auto rank_of = ranks_of(it.start_placement());
  const auto experts = static_cast<std::size_t>(it.problem.spec.experts);
  // Prices in quarters: sums are exact.
  AwayPrice price;
  if (draw(0, 1) == 0) price = {draw(0, 12) / 4.0, 0.0};
  price.far = price.near + draw(0, 8) / 4.0;
  for (const LayerId l : IdRange<LayerId>(it.problem.spec.layers)) {
    LayerSwaps<Load> layer(rows, l, ledger.home(), std::span(rank_of).subspan(l * experts, experts));
    if (draw(0, 1) == 0) {
      std::vector<std::int32_t> shares;
      for (std::size_t i = 0; i < rows.row_shards(); ++i) shares.push_back(1 + below(it.random, 16));
      layer.set_shares(shares);
    }
    SwapSearch<Load> search(layer, ledger, price);
    int left = 30;
    for (bool any = true; any && left > 0;) {
      any = false;
      for (const RankId p : layer.peak_ranks()) {
        if (--left < 0) break;
        // A swap that gains must take from a rank that is busiest somewhere; one that only saves moves need not.
        const double best = best_by_trying(layer, l, p, price, ledger, rows);
        const auto found = search.best_from(p);
        const bool still_busiest = [&] {
          const auto ranks = layer.peak_ranks();
          return std::find(ranks.begin(), ranks.end(), p) != ranks.end();
        }();
        if (!still_busiest) {
          RC_ASSERT(!found);
          continue;
        }
        RC_ASSERT(found.has_value() == (best > 0.0));
        if (!found) continue;
        RC_ASSERT(found->gain == layer.gain(found->a, found->b));
        const std::array moves = {Relocation{found->a, found->from, found->to},
                                  Relocation{found->b, found->to, found->from}};
        RC_ASSERT(found->moved == ledger.moved_change(l, moves));
        const auto away = [&](ExpertId e, RankId rank) {
          const RankId home = ledger.home().rank_of(l, e);
          if (home == rank) return 0.0;
          return ledger.node_of(home) == ledger.node_of(rank) ? price.near : price.far;
        };
        RC_ASSERT(static_cast<double>(found->gain) - (away(found->a, found->to) - away(found->a, found->from) +
                                                      away(found->b, found->from) - away(found->b, found->to)) ==
                  best);
        layer.apply(found->a, found->b);
        any = true;
      }
    }
  }
}

TEST(SwapSearch, finds_a_swap_as_good_as_the_best_of_all) {
  for_all(300, [] {
    Case it = draw_case();
    if (draw(0, 3) == 0) it.problem.constraints.max_rank_tokens = draw(1, 120);
    const Scene scene(it.problem);
    SerialExecutor executor;
    const RowLoads rows = aggregate_rows(scene.instance, to_layout(it.cells, it.problem), executor);
    if (draw(0, 2) != 0) {
      search_is_exact<std::int32_t>(it, rows);
    } else {
      search_is_exact<std::int64_t>(it, wide(rows));
    }
  });
}

TEST(RefinePlacement, never_scores_worse_nor_passes_a_limit_and_says_what_evaluate_says) {
  for_all(300, [] {
    Case it = draw_case();
    const bool limited = draw(0, 1) == 0;
    if (limited) {
      draw_budget(it);
      // Start within the budget, as sticky placement would leave it.
      it.start = it.home;
    }
    const Layout layout = to_layout(it.cells, it.problem);
    {
      const Scene scene(it.problem);
      const auto tail = evaluate(scene.instance, it.start_placement(), layout).tail_peak;
      if (draw(0, 2) == 0) it.problem.constraints.max_rank_tokens = tail + draw(0, 3);
    }
    const Scene scene(it.problem);
    SerialExecutor executor;
    RowLoads rows = aggregate_rows(scene.instance, layout, executor);
    if (draw(0, 3) == 0) rows = wide(std::move(rows));
    MoveLedger ledger = it.settled_ledger();
    const double price_before = ledger.total_price();
    RowAwareParams params;
    if (draw(0, 2) == 0) params.most_steps = draw(0, 2000);
    params.kicks = draw(0, 4);
    const RowAwareResult result = refine_placement(rows, it.start_placement(), ledger, params, executor);
    const Evaluation before = evaluate(scene.instance, it.start_placement(), layout);
    const Evaluation after = evaluate(scene.instance, result.placement, layout);
    RC_ASSERT(result.before == before.score);
    RC_ASSERT(result.after == after.score);
    RC_ASSERT(after.score <= before.score);
    RC_ASSERT(after.score.max_shard + ledger.total_price() <= before.score.max_shard + price_before);
    if (it.problem.constraints.max_rank_tokens > 0) {
      RC_ASSERT(after.tail_peak <= it.problem.constraints.max_rank_tokens);
    }
    MoveLedger again(it.home_placement(), it.budget, 3, it.ranks_per_node);
    again.recount(result.placement);
    RC_ASSERT(again == ledger);
    if (limited) {
      RC_ASSERT(ledger.moved() <= ledger.most_moved());
      for (const RankId p : IdRange<RankId>(it.problem.ranks)) {
        if (!it.budget.rank_bytes) break;
        RC_ASSERT(ledger.bytes_in(p) <= *it.budget.rank_bytes);
        RC_ASSERT(ledger.bytes_out(p) <= *it.budget.rank_bytes);
      }
    }
  });
}

TEST(RefinePlacement, is_the_same_for_any_number_of_threads_and_for_both_widths) {
  ThreadPool pool(3);
  SerialExecutor serial;
  for_all(60, [&] {
    Case it = draw_case();
    draw_budget(it);
    const Scene scene(it.problem);
    const Layout layout = to_layout(it.cells, it.problem);
    const RowLoads rows = aggregate_rows(scene.instance, layout, serial);
    RC_ASSERT(aggregate_rows(scene.instance, layout, pool).loads == rows.loads);
    RowAwareParams params;
    if (draw(0, 1) == 0) params.most_steps = draw(0, 3000);
    params.kicks = draw(0, 4);
    params.seed = draw(0, 9);
    const auto run = [&](const RowLoads& loads, Executor& executor) {
      MoveLedger ledger = it.settled_ledger();
      return refine_placement(loads, it.start_placement(), ledger, params, executor);
    };
    const RowAwareResult one = run(rows, serial);
    const RowAwareResult two = run(rows, pool);
    const RowAwareResult three = run(wide(rows), pool);
    for (const RowAwareResult* other : {&two, &three}) {
      RC_ASSERT(one.placement == other->placement);
      RC_ASSERT(one.steps == other->steps);
      RC_ASSERT(one.swaps == other->swaps);
      RC_ASSERT(one.converged == other->converged);
    }
  });
}

/// The best first score component over all placements of one layer, by trying every assignment of experts to ranks.
double best_of_all(const RowLoads& rows, std::vector<std::int32_t>& rank_of, std::size_t next, double best) {
  const auto per_rank = rows.experts / rows.ranks;
  if (next == rank_of.size()) return std::min(best, score_rows(rows, rank_of).max_shard);
  for (std::int32_t p = 0; p < rows.ranks; ++p) {
    if (std::count(rank_of.begin(), rank_of.begin() + static_cast<std::ptrdiff_t>(next), p) == per_rank) continue;
    rank_of[next] = p;
    best = best_of_all(rows, rank_of, next + 1, best);
  }
  return best;
}

TEST(RefinePlacement, stays_above_the_bound_and_often_reaches_the_best_of_all_placements) {
  int cases = 0;
  int reached = 0;
  double worst = 0.0;
  for_all(150, [&] {
    Case it = draw_case({.max_samples = 8, .max_layers = 1, .max_ranks = 3, .max_slots_per_rank = 2});
    const Scene scene(it.problem);
    const Layout layout = to_layout(it.cells, it.problem);
    SerialExecutor executor;
    const RowLoads rows = aggregate_rows(scene.instance, layout, executor);
    MoveLedger ledger = it.settled_ledger();
    const RowAwareResult result = refine_placement(rows, it.start_placement(), ledger, {}, executor);
    std::vector<std::int32_t> rank_of(static_cast<std::size_t>(rows.experts));
    const double best = best_of_all(rows, rank_of, 0, std::numeric_limits<double>::infinity());
    const Bounds bounds = lower_bounds(scene.instance, result.placement, aggregate_demand(scene.window));
    RC_ASSERT(best >= bounds.any_placement * (1.0 - 1e-12));
    RC_ASSERT(result.after.max_shard >= best * (1.0 - 1e-12));
    ++cases;
    reached += result.after.max_shard <= best * (1.0 + 1e-12) ? 1 : 0;
    if (best > 0.0) worst = std::max(worst, result.after.max_shard / best - 1.0);
  });
  RecordProperty("cases", cases);
  RecordProperty("reached_the_best", reached);
  RecordProperty("worst_percent", std::to_string(100.0 * worst));
  EXPECT_GE(10 * reached, 8 * cases) << "of " << cases << " cases only " << reached << " are optimal";
}

TEST(RefinePlacement, stops_when_asked_and_keeps_a_valid_placement) {
  for_all(30, [] {
    Case it = draw_case();
    const Scene scene(it.problem);
    SerialExecutor executor;
    const RowLoads rows = aggregate_rows(scene.instance, to_layout(it.cells, it.problem), executor);
    MoveLedger ledger = it.settled_ledger();
    std::stop_source stop;
    stop.request_stop();
    const Deadline asked(stop.get_token(), std::nullopt);
    const RowAwareResult result = refine_placement(rows, it.start_placement(), ledger, {}, executor, asked);
    RC_ASSERT(result.after == result.before);
    RC_ASSERT(result.swaps == 0);
    RC_ASSERT(!result.complete);
  });
}

TEST(RowPeaks, are_the_same_in_every_instruction_set) {
  for_all(200, [] {
    std::mt19937_64 random(draw_seed());
    const std::size_t n = kernels::kRowLanes * static_cast<std::size_t>(draw(1, 6));
    const std::size_t experts = static_cast<std::size_t>(draw(1, 9));
    const auto vector = [&](std::size_t size) {
      std::vector<std::int32_t> values;
      for (std::size_t k = 0; k < size; ++k) values.push_back(below(random, 1 << 20));
      return values;
    };
    const auto rest = vector(n), x = vector(n), y = vector(n), loads = vector(n * experts), more = vector(n);
    std::vector<std::int32_t> which;
    for (std::size_t k = 0; k < experts; ++k) which.push_back(below(random, static_cast<std::int32_t>(experts)));
    std::vector<std::int32_t> found(experts), wanted(experts);
    kernels::exchanged_peaks(rest.data(), x.data(), y.data(), loads.data(), which.data(), experts, n, found.data());
    kernels::scalar::exchanged_peaks(rest.data(), x.data(), y.data(), loads.data(), which.data(), experts, n,
                                     wanted.data());
    RC_ASSERT(found == wanted);
    RC_ASSERT(kernels::bounded_peaks(rest.data(), x.data(), y.data(), loads.data(), more.data(), n) ==
              kernels::scalar::bounded_peaks(rest.data(), x.data(), y.data(), loads.data(), more.data(), n));
    std::vector<std::int32_t> owner;
    for (std::size_t k = 0; k < n; ++k) owner.push_back(below(random, 3));
    std::vector<std::int32_t> rest_a(n), rest_b(n), floor_a(n), floor_b(n);
    RC_ASSERT(kernels::meet(rest.data(), more.data(), owner.data(), 1, x.data(), y.data(), n, rest_a.data(),
                            floor_a.data()) == kernels::scalar::meet(rest.data(), more.data(), owner.data(), 1,
                                                                     x.data(), y.data(), n, rest_b.data(),
                                                                     floor_b.data()));
    RC_ASSERT(rest_a == rest_b);
    RC_ASSERT(floor_a == floor_b);
  });
}

}  // namespace
}  // namespace routepack::testing
