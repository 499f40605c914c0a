// SPDX-License-Identifier: Apache-2.0
// The rules of a plan, in three groups: what it is made of, what it must respect, what it states about itself. All work
// on the record as it was read, so that no content can do more than break a rule.
#pragma once

#include <cstdint>

#include "routepack/plan_file.h"
#include "routepack/window.h"
#include "verify/judge.h"

namespace routepack::judge {

/// What the later groups may rely on. A rule that needs a broken part is not looked at.
struct Structure {
  bool capacity = false;     ///< 1 ≤ C ≤ kMaxCapacity
  bool shards = false;       ///< the shards partition 0 … D − 1
  bool placement = false;    ///< P divides E, and every map is a permutation
  bool rectangular = false;  ///< all rows have the same number of cells, D when `shards`
  bool complete = false;     ///< every sample is in exactly one cell
  bool cost = false;         ///< finite numbers ≥ 0, one expert weight or L of them
  bool multiples = false;    ///< sample_multiple and cell_multiple are within their bounds

  /// Whether score and metrics are defined.
  [[nodiscard]] bool scorable() const {
    return capacity && shards && placement && rectangular && complete && cost && multiples;
  }
};

/// @throws InvalidInput when the plan was made for another window, or the window is an aggregate.
void refuse_foreign(const Window& window, const PlanRecord& plan);

/// O(N + L·E).
Structure check_structure(Judge& judge, const Window& window, const PlanRecord& plan);

/// Every constraint that needs no expert loads. O(N).
void check_constraints(Judge& judge, const Window& window, const PlanRecord& plan, const Structure& structure);

/// max_rank_tokens, score, bounds and metrics. Requires `structure.scorable()`. O(N·L·E).
void check_figures(Judge& judge, const Window& window, const PlanRecord& plan);

/// Statements that need no score: rows and moves.
void check_statements(Judge& judge, const Window& window, const PlanRecord& plan);

}  // namespace routepack::judge
