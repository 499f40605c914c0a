// SPDX-License-Identifier: Apache-2.0
// Laws of the score: what the formula says, and which names it must not depend on.
#include "routepack/score.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "support/problems.h"
#include "support/property.h"

namespace routepack::testing {
namespace {

struct Figures {
  double max_shard = 0, total = 0, worst_row = 0, attention = 0, ep_efficiency = 1;
  std::int64_t expert_peak_sum = 0, tail_peak = 0;
  std::vector<double> joint;
};

/// Equations 11–15 and 23 read off the page, in the binding order.
Figures score_by_hand(const Problem& problem, const Maps& maps, const Cells& cells) {
  const auto capacity = static_cast<double>(problem.capacity);
  Figures result;
  std::int64_t even_sum = 0;
  std::vector<double> shard_sums(problem.shards.size(), 0.0);
  double row_sum = 0.0;
  for (std::size_t r = 0; r < cells.size(); ++r) {
    std::vector<std::int64_t> layer_peak(static_cast<std::size_t>(problem.spec.layers), 0);
    std::vector<std::int64_t> layer_sum(layer_peak.size(), 0);
    double dearest_shard = 0.0;
    for (std::size_t g = 0; g < problem.shards.size(); ++g) {
      double dense = 0.0;
      for (const Stage& stage : problem.stages) {
        double dearest = 0.0;
        for (const std::int32_t d : problem.shards[g]) {
          std::int64_t s1 = 0;
          std::int64_t s2 = 0;
          for (const std::int32_t i : cells[r][static_cast<std::size_t>(d)]) {
            s1 += problem.length(i);
            s2 += problem.length(i) * problem.length(i);
          }
          const double tokens = static_cast<double>(s1) / capacity;
          const double pairs = static_cast<double>(s2) / (capacity * capacity);
          dearest = std::max(dearest, stage.alpha * tokens + stage.beta * pairs);
        }
        dense += dearest;
      }
      double weighted = 0.0;
      for (std::int64_t l = 0; l < problem.spec.layers; ++l) {
        const auto at = static_cast<std::size_t>(l);
        std::int64_t peak = 0;
        std::int64_t sum = 0;
        for (std::int32_t p = 0; p < problem.ranks; ++p) {
          const std::int64_t load = rank_load(problem, maps, cells, r, g, l, p);
          peak = std::max(peak, load);
          sum += load;
        }
        weighted += problem.expert[problem.expert.size() == 1 ? 0 : at] * static_cast<double>(peak);
        layer_peak[at] = std::max(layer_peak[at], peak);
        layer_sum[at] = std::max(layer_sum[at], sum);
      }
      const double joint = dense + weighted / capacity;
      result.joint.push_back(joint);
      result.attention += dense;
      result.worst_row = std::max(result.worst_row, joint);
      shard_sums[g] += joint;
      dearest_shard = std::max(dearest_shard, joint);
    }
    row_sum += dearest_shard;
    for (std::size_t l = 0; l < layer_peak.size(); ++l) {
      result.expert_peak_sum += layer_peak[l];
      result.tail_peak = std::max(result.tail_peak, layer_peak[l]);
      even_sum += layer_sum[l];
    }
  }
  for (const double sum : shard_sums) result.total += sum;
  result.max_shard = problem.sync == Sync::Row ? row_sum : *std::max_element(shard_sums.begin(), shard_sums.end());
  if (result.expert_peak_sum > 0) {
    result.ep_efficiency = static_cast<double>(even_sum) / problem.ranks / static_cast<double>(result.expert_peak_sum);
  }
  return result;
}

bool close(double a, double b) {
  return std::abs(a - b) <= 1e-12 * std::max(std::abs(a), std::abs(b));
}

void assert_equal_to_the_bit(const Evaluation& a, const Evaluation& b) {
  RC_ASSERT(a.score.max_shard == b.score.max_shard);
  RC_ASSERT(a.score.total == b.score.total);
  RC_ASSERT(a.score.worst_row == b.score.worst_row);
  RC_ASSERT(a.joint == b.joint);
  RC_ASSERT(a.attention == b.attention);
  RC_ASSERT(a.expert_peak_sum == b.expert_peak_sum);
  RC_ASSERT(a.tail_peak == b.tail_peak);
  RC_ASSERT(a.ep_efficiency == b.ep_efficiency);
}

/// A problem with one way to place and pack it.
struct Case {
  Problem problem;
  Maps maps;
  Cells cells;
  std::mt19937_64 random;

  [[nodiscard]] Evaluation evaluate_it() const {
    const Scene scene(problem);
    return evaluate(scene.instance, to_placement(maps, problem.ranks), to_layout(cells, problem));
  }
};

Case draw_case() {
  Case drawn{draw_problem(Shape{.max_samples = 12}), {}, {}, std::mt19937_64(draw_seed())};
  const std::int32_t rows = draw(1, drawn.problem.samples() / drawn.problem.slots());
  drawn.maps = random_maps(drawn.random, drawn.problem.spec.layers, drawn.problem.spec.experts);
  drawn.cells = random_cells(drawn.random, drawn.problem.samples(), rows, drawn.problem.slots());
  return drawn;
}

std::vector<std::int32_t> random_order(std::mt19937_64& random, std::size_t size) {
  std::vector<std::int32_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

/// to[order[n]] = from[n], for `width` values per entry.
template <class T>
std::vector<T> renamed(const std::vector<T>& from, const std::vector<std::int32_t>& order) {
  if (from.empty()) return from;
  const std::size_t width = from.size() / order.size();
  std::vector<T> to(from.size());
  for (std::size_t n = 0; n < order.size(); ++n) {
    for (std::size_t k = 0; k < width; ++k) to[static_cast<std::size_t>(order[n]) * width + k] = from[n * width + k];
  }
  return to;
}

TEST(Score, is_what_plain_loops_compute_to_the_last_bit) {
  for_all(2000, [] {
    const Case it = draw_case();
    const Evaluation found = it.evaluate_it();
    const Figures want = score_by_hand(it.problem, it.maps, it.cells);
    RC_ASSERT(found.joint == want.joint);
    RC_ASSERT(found.score.max_shard == want.max_shard);
    RC_ASSERT(found.score.total == want.total);
    RC_ASSERT(found.score.worst_row == want.worst_row);
    RC_ASSERT(found.expert_peak_sum == want.expert_peak_sum);
    RC_ASSERT(found.tail_peak == want.tail_peak);
    RC_ASSERT(close(found.attention, want.attention));
    RC_ASSERT(close(found.ep_efficiency, want.ep_efficiency));
  });
}

TEST(Score, counts_a_dummy_as_one_token_without_routes) {
  for_all(100, [] {
    Case it = draw_case();
    const auto r = static_cast<std::size_t>(below(it.random, static_cast<std::int32_t>(it.cells.size())));
    const auto d = static_cast<std::size_t>(below(it.random, it.problem.slots()));
    it.cells[r][d].push_back(it.problem.samples());
    const Evaluation found = it.evaluate_it();
    const Figures want = score_by_hand(it.problem, it.maps, it.cells);
    RC_ASSERT(found.joint == want.joint);
    RC_ASSERT(found.tail_peak == want.tail_peak);
  });
}

TEST(Score, does_not_depend_on_the_names_of_samples) {
  for_all(100, [] {
    Case it = draw_case();
    const Evaluation before = it.evaluate_it();
    const auto name = random_order(it.random, static_cast<std::size_t>(it.problem.samples()));
    it.problem.spec.lengths = renamed(it.problem.spec.lengths, name);
    it.problem.spec.counts = renamed(it.problem.spec.counts, name);
    it.problem.spec.recorded = renamed(it.problem.spec.recorded, name);
    for (auto& row : it.cells) {
      for (auto& cell : row) {
        for (std::int32_t& i : cell) i = name[static_cast<std::size_t>(i)];
        std::shuffle(cell.begin(), cell.end(), it.random);
      }
    }
    assert_equal_to_the_bit(before, it.evaluate_it());
  });
}

TEST(Score, does_not_depend_on_the_names_of_slots_in_a_shard) {
  for_all(100, [] {
    Case it = draw_case();
    const Evaluation before = it.evaluate_it();
    for (const auto& shard : it.problem.shards) {
      const auto order = random_order(it.random, shard.size());
      for (auto& row : it.cells) {
        const auto old = row;
        for (std::size_t n = 0; n < shard.size(); ++n) {
          row[static_cast<std::size_t>(shard[static_cast<std::size_t>(order[n])])] =
              old[static_cast<std::size_t>(shard[n])];
        }
      }
    }
    assert_equal_to_the_bit(before, it.evaluate_it());
  });
}

TEST(Score, does_not_depend_on_which_slot_numbers_a_shard_has) {
  for_all(100, [] {
    Case it = draw_case();
    const Evaluation before = it.evaluate_it();
    const auto name = random_order(it.random, static_cast<std::size_t>(it.problem.slots()));
    for (auto& shard : it.problem.shards) {
      for (std::int32_t& d : shard) d = name[static_cast<std::size_t>(d)];
    }
    for (auto& row : it.cells) row = renamed(row, name);
    assert_equal_to_the_bit(before, it.evaluate_it());
  });
}

TEST(Score, does_not_depend_on_the_names_of_ranks_nor_on_slots_inside_a_rank) {
  for_all(100, [] {
    Case it = draw_case();
    const Evaluation before = it.evaluate_it();
    const auto name = random_order(it.random, static_cast<std::size_t>(it.problem.ranks));
    const auto per_rank = static_cast<std::ptrdiff_t>(it.problem.spec.experts / it.problem.ranks);
    for (auto& map : it.maps) {
      map = renamed(map, name);
      for (std::ptrdiff_t p = 0; p < it.problem.ranks; ++p) {
        std::shuffle(map.begin() + p * per_rank, map.begin() + (p + 1) * per_rank, it.random);
      }
    }
    assert_equal_to_the_bit(before, it.evaluate_it());
  });
}

TEST(Score, depends_on_the_order_of_rows_by_rounding_only) {
  for_all(100, [] {
    Case it = draw_case();
    const Evaluation before = it.evaluate_it();
    std::shuffle(it.cells.begin(), it.cells.end(), it.random);
    const Evaluation after = it.evaluate_it();
    RC_ASSERT(close(before.score.max_shard, after.score.max_shard));
    RC_ASSERT(close(before.score.total, after.score.total));
    RC_ASSERT(before.score.worst_row == after.score.worst_row);
    RC_ASSERT(close(before.attention, after.attention));
    RC_ASSERT(before.expert_peak_sum == after.expert_peak_sum);
    RC_ASSERT(before.tail_peak == after.tail_peak);
    RC_ASSERT(close(before.ep_efficiency, after.ep_efficiency));
  });
}

TEST(Score, depends_on_the_order_of_shards_by_rounding_only) {
  for_all(100, [] {
    Case it = draw_case();
    const Evaluation before = it.evaluate_it();
    std::shuffle(it.problem.shards.begin(), it.problem.shards.end(), it.random);
    const Evaluation after = it.evaluate_it();
    RC_ASSERT(before.score.max_shard == after.score.max_shard);
    RC_ASSERT(close(before.score.total, after.score.total));
    RC_ASSERT(before.score.worst_row == after.score.worst_row);
    RC_ASSERT(close(before.attention, after.attention));
    RC_ASSERT(before.expert_peak_sum == after.expert_peak_sum);
    RC_ASSERT(close(before.ep_efficiency, after.ep_efficiency));
  });
}

TEST(Score, of_rows_that_wait_is_at_least_the_one_of_shards_that_do_not) {
  for_all(100, [] {
    Case it = draw_case();
    it.problem.sync = Sync::Step;
    const Evaluation step = it.evaluate_it();
    it.problem.sync = Sync::Row;
    const Evaluation row = it.evaluate_it();
    RC_ASSERT(row.score.max_shard >= step.score.max_shard);
    RC_ASSERT(row.score.total == step.score.total);
    RC_ASSERT(row.joint == step.joint);
  });
}

TEST(RankDemand, sums_to_the_demand_of_each_layer) {
  for_all(100, [] {
    const Case it = draw_case();
    const Scene scene(it.problem);
    const auto demand = aggregate_demand(scene.window);
    const auto on_ranks = rank_demand(demand, to_placement(it.maps, it.problem.ranks));
    const auto experts = static_cast<std::size_t>(it.problem.spec.experts);
    const auto ranks = static_cast<std::size_t>(it.problem.ranks);
    RC_ASSERT(on_ranks.size() == static_cast<std::size_t>(it.problem.spec.layers) * ranks);
    for (std::size_t l = 0; l < static_cast<std::size_t>(it.problem.spec.layers); ++l) {
      std::int64_t routed = 0;
      for (std::int32_t i = 0; i < it.problem.samples(); ++i) {
        for (std::size_t e = 0; e < experts; ++e) {
          routed += it.problem.count(i, static_cast<std::int64_t>(l), static_cast<std::int64_t>(e));
        }
      }
      std::int64_t on_layer = 0;
      for (std::size_t p = 0; p < ranks; ++p) {
        std::int64_t wanted = 0;
        for (std::size_t v = p * experts / ranks; v < (p + 1) * experts / ranks; ++v) {
          for (std::int32_t i = 0; i < it.problem.samples(); ++i) {
            wanted += it.problem.count(i, static_cast<std::int64_t>(l), it.maps[l][v]);
          }
        }
        RC_ASSERT(on_ranks[l * ranks + p] == wanted);
        on_layer += on_ranks[l * ranks + p];
      }
      RC_ASSERT(on_layer == routed);
    }
  });
}

}  // namespace
}  // namespace routepack::testing
