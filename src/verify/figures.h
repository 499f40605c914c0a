// SPDX-License-Identifier: Apache-2.0
// Score and metrics recomputed from a record, straight from the definitions (docs/mathematics.md).
#pragma once

#include <cstdint>
#include <optional>

#include "routepack/plan_file.h"
#include "routepack/window.h"
#include "verify/judge.h"

namespace routepack::judge {

struct Figures {
  Score score;
  double attention = 0.0;
  std::int64_t expert_peak_sum = 0;
  std::int64_t tail_peak = 0;
  double ep_efficiency = 1.0;
  double cv_global = 0.0;
};

/// Prices a record whose structure is sound (Structure::scorable). `rank_tokens`, when not null, hears of every load
/// above max_rank_tokens; `exact` hears of sums that leave the range where integers and doubles agree, and then there
/// are no figures. O(N·L·E) operations, O(L·(P + E)) memory.
std::optional<Figures> recompute(const Window& window, const PlanRecord& plan, Rule* rank_tokens, Rule& exact);

}  // namespace routepack::judge
