// SPDX-License-Identifier: Apache-2.0
#include "verify/judge.h"

#include <fmt/format.h>

namespace routepack::judge {

void Rule::append_to(std::vector<Violation>& violations) const {
  for (const std::string& message : messages_) violations.push_back({name_, message});
  if (count_ > kShown) violations.push_back({name_, fmt::format("… and {} more", count_ - kShown)});
}

Verdict Judge::verdict() const {
  Verdict verdict;
  for (const Rule& rule : rules_) {
    verdict.checked.push_back(rule.name());
    rule.append_to(verdict.violations);
  }
  return verdict;
}

}  // namespace routepack::judge
