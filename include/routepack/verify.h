// SPDX-License-Identifier: Apache-2.0
// An independent judge of plans. It shares the types with the planner and no code.
#pragma once

#include <string>
#include <vector>

#include "routepack/plan_file.h"
#include "routepack/window.h"

namespace routepack {

/// One broken rule: a short stable name and a sentence with indices, found and wanted.
struct Violation {
  std::string rule;
  std::string message;
};

struct Verdict {
  std::vector<Violation> violations;  ///< the first ten of each rule
  std::vector<std::string> checked;   ///< names of the rules that were looked at, in order
  [[nodiscard]] bool accepted() const { return violations.empty(); }
};

/// Checks every rule of docs/formats.md and recomputes every figure the file states: shapes, permutations, shards, each
/// sample once, non-empty cells, caps on aligned lengths, all constraints, score, bounds and metrics (to 1e-12
/// relative).
/// @throws InvalidInput when the plan's fingerprint or shape says that it is for another window.
Verdict verify(const Window& window, const PlanRecord& plan);

}  // namespace routepack
