// SPDX-License-Identifier: Apache-2.0
#include "routepack/verify.h"

#include "verify/judge.h"
#include "verify/rules.h"

namespace routepack {

Verdict verify(const Window& window, const PlanRecord& plan) {
  judge::refuse_foreign(window, plan);
  judge::Judge judge;
  const judge::Structure structure = check_structure(judge, window, plan);
  check_constraints(judge, window, plan, structure);
  check_statements(judge, window, plan);
  if (structure.scorable()) check_figures(judge, window, plan);
  return judge.verdict();
}

}  // namespace routepack
