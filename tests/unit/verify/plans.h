// SPDX-License-Identifier: Apache-2.0
// Two plans whose every figure can be followed with a pencil, for the tests that break one thing at a time.
#pragma once

#include <set>
#include <string>

#include "routepack/plan_file.h"
#include "routepack/verify.h"
#include "routepack/window.h"
#include "support/builders.h"

namespace routepack::testing {

/// Four samples of 6, 4, 8 and 2 tokens, one layer, four experts, top-1.
inline WindowSpec hand_spec() {
  return {.samples = 4,
          .layers = 1,
          .experts = 4,
          .top_k = 1,
          .lengths = {6, 4, 8, 2},
          .counts = {6, 0, 0, 0,  //
                     0, 4, 0, 0,  //
                     0, 0, 8, 0,  //
                     1, 0, 0, 1}};
}

/// Two slots in one shard, two ranks that own experts {0, 1} and {2, 3}, cap 10.
/// Row 0 holds samples 0 and 2: W = (6, 8), E = 0.8; «linear» 2·max(0.6, 0.8) = 1.6; «full» max(0.6 + 4·0.36,
/// 0.8 + 4·0.64) = 3.36; J = 5.76. Row 1 holds samples 1 and 3: W = (5, 1), E = 0.5; linear 0.8;
/// full max(0.4 + 4·0.16, 0.2 + 4·0.04) = 1.04; J = 2.34. U = 8.10.
/// Demand of the ranks (11, 9), mean 10, sd 1. Σ max W = 8 + 5; Σ ΣW / 2 = (14 + 6) / 2.
/// Bound: tokens 2·2 + 2 + 4·1.2 = 10.8 over two slots = 5.4; experts 11/10 placed as here, 10/10 at best.
inline PlanRecord hand_plan(const Window& window) {
  PlanRecord plan;
  plan.ep = 2;
  plan.shards = {{0, 1}};
  plan.capacity = 10;
  plan.rows = 2;
  plan.physical_to_logical = {{0, 1, 2, 3}};
  plan.layout = {{{0}, {2}}, {{1}, {3}}};
  plan.stages = {{"linear", 2.0, 0.0}, {"full", 1.0, 4.0}};
  plan.window = PlanRecord::WindowStamp{window.samples(), window.layers(), window.experts(), window.fingerprint()};
  plan.pipeline_stages = 1;
  plan.rows_lower_bound = 2;
  plan.rows_certified = true;
  plan.score = Score{8.1, 8.1, 5.76};
  plan.bound = 6.4;
  plan.gap = 8.1 / 6.4 - 1.0;
  plan.bound_fixed_placement = 6.5;
  plan.moves = PlanRecord::MovesRecord{.experts = 2, .local = 1, .fraction = 0.5, .bytes = 14};
  plan.params = PlanParams{.expert_bytes = 7};
  plan.metrics = {{"cv_global", 0.1}, {"cv_global_before", 0.25},     {"expert_peak_sum", 13},
                  {"tail_peak", 8},   {"ep_efficiency", 10.0 / 13.0}, {"attention", 6.8},
                  {"joint", 8.1},     {"gap", 8.1 / 6.4 - 1.0}};
  return plan;
}

/// Six samples of 6, 4, 8, 2, 3 and 1 tokens, two layers, four experts, top-1; the last one has no routes.
inline WindowSpec grid_spec() {
  return {.samples = 6,
          .layers = 2,
          .experts = 4,
          .top_k = 1,
          .lengths = {6, 4, 8, 2, 3, 1},
          .counts = {6, 0, 0, 0, 0, 0, 6, 0,  //
                     0, 4, 0, 0, 4, 0, 0, 0,  //
                     0, 0, 8, 0, 0, 0, 0, 8,  //
                     1, 0, 0, 1, 1, 1, 0, 0,  //
                     3, 0, 0, 0, 0, 3, 0, 0,  //
                     0, 0, 0, 0, 0, 0, 0, 0}};
}

/// Two slots, each a shard of its own, two ranks, cap 10, expert weights 1 and 2, a permuted first layer: rank 0 owns
/// experts {1, 3}, then {0, 1}. One stage, cost = tokens / C.
/// Row 0, shard 0, samples 0 and 4 (9 tokens): layer 0 W = (0, 9), layer 1 W = (3, 6): E = (9 + 2·6)/10, J = 0.9 + 2.1.
/// Row 0, shard 1, sample 2 (8 tokens): layer 0 W = (0, 8), layer 1 W = (0, 8): E = 2.4, J = 0.8 + 2.4 = 3.2.
/// Row 1, shard 0, sample 1 (4 tokens): layer 0 W = (4, 0), layer 1 W = (4, 0): E = 1.2, J = 0.4 + 1.2 = 1.6.
/// Row 1, shard 1, samples 3 and 5 (3 tokens): layer 0 W = (1, 1), layer 1 W = (2, 0): E = 0.5, J = 0.3 + 0.5 = 0.8.
/// U = (4.6, 4.0). Row by row 3.2 + 1.6 = 4.8. Peaks per row and layer: 9, 8, 4, 4; totals 9, 9, 4, 4.
/// Demand: layer 0 (5, 18), sd 6.5, mean 11.5; layer 1 (9, 14), sd 2.5.
inline PlanRecord grid_plan(const Window& window) {
  PlanRecord plan;
  plan.ep = 2;
  plan.shards = {{0}, {1}};
  plan.capacity = 10;
  plan.rows = 2;
  plan.physical_to_logical = {{1, 3, 0, 2}, {0, 1, 2, 3}};
  plan.layout = {{{0, 4}, {2}}, {{1}, {3, 5}}};
  plan.stages = {{"attention", 1.0, 0.0}};
  plan.expert = {1.0, 2.0};
  plan.expert_uniform = false;
  plan.window = PlanRecord::WindowStamp{window.samples(), window.layers(), window.experts(), window.fingerprint()};
  plan.score = Score{4.6, 8.6, 3.2};
  plan.metrics = {{"cv_global", 9.0 / 23.0}, {"expert_peak_sum", 25}, {"tail_peak", 9},
                  {"ep_efficiency", 0.52},   {"attention", 2.4},      {"joint", 4.6}};
  return plan;
}

/// Names of the rules that a plan breaks.
inline std::set<std::string> broken_rules(const Window& window, const PlanRecord& plan) {
  std::set<std::string> rules;
  for (const Violation& violation : verify(window, plan).violations) rules.insert(violation.rule);
  return rules;
}

}  // namespace routepack::testing
