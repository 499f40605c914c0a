// SPDX-License-Identifier: Apache-2.0
// What a plan states about itself, held against figures computed afresh.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>

#include "verify/figures.h"
#include "verify/rules.h"

namespace routepack::judge {
namespace {

void compare(Rule& rule, std::string_view name, double stated, double recomputed, double scale = 0.0) {
  if (agrees(stated, recomputed, scale)) return;
  rule.broken([&] { return fmt::format("{}: found {}, wanted {} as recomputed", name, stated, recomputed); });
}

void check_score(Judge& judge, const PlanRecord& plan, const Score& score) {
  if (!plan.score) return;
  Rule& rule = judge.rule("score");
  compare(rule, "score.max_shard", plan.score->max_shard, score.max_shard);
  compare(rule, "score.total", plan.score->total, score.total);
  compare(rule, "score.worst_row", plan.score->worst_row, score.worst_row);
}

/// score / bound − 1, 0 when both are 0.
double gap_over(double bound, double score) {
  return score == bound ? 0.0 : score / bound - 1.0;
}

void check_bounds(Judge& judge, const PlanRecord& plan, double score) {
  if (plan.bound || plan.bound_fixed_placement) {
    Rule& rule = judge.rule("bound");
    const auto look = [&](std::string_view name, const std::optional<double>& bound) {
      if (!bound) return;
      if (*bound >= 0.0 && *bound <= score + 1e-12 * score) return;
      rule.broken(
          [&] { return fmt::format("{}: found {}, wanted 0 to {}, the plan's own score", name, *bound, score); });
    };
    look("bound.max_shard", plan.bound);
    look("bound.fixed_placement", plan.bound_fixed_placement);
    // One placement allows no more than all of them.
    if (plan.bound && plan.bound_fixed_placement && *plan.bound_fixed_placement < *plan.bound * (1.0 - 1e-12)) {
      rule.broken([&] {
        return fmt::format("bound.fixed_placement: found {}, wanted at least {}, the bound over any placement",
                           *plan.bound_fixed_placement, *plan.bound);
      });
    }
  }
  if (!plan.bound || !plan.gap) return;
  // A gap is what is left of a ratio near 1, so its accuracy is that of the ratio.
  const double gap = gap_over(*plan.bound, score);
  compare(judge.rule("gap"), "bound.gap", *plan.gap, gap, 1.0 + std::abs(gap));
}

void check_metrics(Judge& judge, const PlanRecord& plan, const Figures& figures) {
  if (plan.metrics.empty()) return;
  Rule& rule = judge.rule("metrics");
  for (const auto& [name, stated] : plan.metrics) {
    const auto look = [&](double recomputed, double scale = 0.0) {
      compare(rule, fmt::format("metrics.{}", name), stated, recomputed, scale);
    };
    if (name == "cv_global") {
      look(figures.cv_global, 1.0);  // a deviation in units of the mean
    } else if (name == "expert_peak_sum") {
      look(static_cast<double>(figures.expert_peak_sum));
    } else if (name == "tail_peak") {
      look(static_cast<double>(figures.tail_peak));
    } else if (name == "ep_efficiency") {
      look(figures.ep_efficiency);
    } else if (name == "attention") {
      look(figures.attention);
    } else if (name == "joint") {
      look(figures.score.max_shard);
    } else if (name == "cv_global_before" && !(stated >= 0.0)) {
      rule.broken([&] { return fmt::format("metrics.{}: found {}, wanted 0 or more", name, stated); });
    } else if (name == "gap" && plan.bound) {
      const double gap = gap_over(*plan.bound, figures.score.max_shard);
      look(gap, 1.0 + std::abs(gap));
    }
  }
}

void check_moves(Judge& judge, const Window& window, const PlanRecord& plan) {
  if (!plan.moves) return;
  Rule& rule = judge.rule("moves");
  const PlanRecord::MovesRecord& moves = *plan.moves;
  const std::int64_t all = std::int64_t{window.layers()} * window.experts();
  if (moves.experts < 0 || moves.experts > all) {
    rule.broken([&] { return fmt::format("moves.experts: found {}, wanted 0 to {}", moves.experts, all); });
    return;
  }
  if (moves.local < 0 || moves.local > all - moves.experts) {
    rule.broken([&] { return fmt::format("moves.local: found {}, wanted 0 to {}", moves.local, all - moves.experts); });
  }
  compare(rule, "moves.fraction", moves.fraction, static_cast<double>(moves.experts) / static_cast<double>(all));
  if (!moves.bytes || !plan.params || plan.params->expert_bytes <= 0) return;
  std::int64_t bytes = 0;
  const bool overflow = __builtin_mul_overflow(moves.experts, plan.params->expert_bytes, &bytes);
  if (overflow || *moves.bytes != bytes) {
    rule.broken([&] {
      return fmt::format("moves.bytes: found {}, wanted {} experts of {} bytes", *moves.bytes, moves.experts,
                         plan.params->expert_bytes);
    });
  }
}

}  // namespace

void check_statements(Judge& judge, const Window& window, const PlanRecord& plan) {
  if (plan.rows_lower_bound) {
    const std::int64_t bound = *plan.rows_lower_bound;
    const auto rows = static_cast<std::int64_t>(plan.layout.size());
    Rule& rule = judge.rule("rows-lower-bound");
    if (bound < 1 || bound > rows) {
      rule.broken([&] {
        return fmt::format("rows_lower_bound: found {}, wanted 1 to {}, the rows of the layout", bound, rows);
      });
    } else if (plan.rows_certified.value_or(false) && bound != rows) {
      rule.broken([&] {
        return fmt::format("rows_certified: found true with {} rows and a lower bound of {}, wanted both equal", rows,
                           bound);
      });
    }
  }
  check_moves(judge, window, plan);
}

void check_figures(Judge& judge, const Window& window, const PlanRecord& plan) {
  Rule& exact = judge.rule("exact-integers");
  Rule* rank_tokens = plan.constraints.max_rank_tokens > 0 ? &judge.rule("max-rank-tokens") : nullptr;
  const std::optional<Figures> figures = recompute(window, plan, rank_tokens, exact);
  if (!figures) return;
  check_score(judge, plan, figures->score);
  check_bounds(judge, plan, figures->score.max_shard);
  check_metrics(judge, plan, *figures);
}

}  // namespace routepack::judge
