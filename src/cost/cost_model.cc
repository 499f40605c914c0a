// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <utility>

#include "routepack/cost.h"
#include "routepack/error.h"

namespace routepack {
namespace {

void check_number(double value, const std::string& where, const std::string& key) {
  if (value >= 0.0 && value <= kMaxCost) return;  // NaN compares false
  throw InvalidInput(
      fmt::format("{}: {}: found {}, wanted a finite number, at least 0 and at most {}", where, key, value, kMaxCost));
}

}  // namespace

CostModel::CostModel(std::vector<Stage> stages, double expert, const std::string& where)
    : stages_(std::move(stages)), expert_{expert} {
  check(where);
}

CostModel::CostModel(std::vector<Stage> stages, std::vector<double> expert_per_layer, const std::string& where)
    : stages_(std::move(stages)), expert_(std::move(expert_per_layer)), uniform_(false) {
  check(where);
}

void CostModel::check(const std::string& where) const {
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    check_number(stages_[s].alpha, where, fmt::format("stage[{}].alpha", s));
    check_number(stages_[s].beta, where, fmt::format("stage[{}].beta", s));
  }
  if (expert_.empty()) {
    throw InvalidInput(fmt::format("{}: expert: found an empty list, wanted one weight per MoE layer", where));
  }
  for (std::size_t l = 0; l < expert_.size(); ++l) {
    check_number(expert_[l], where, uniform_ ? std::string("expert") : fmt::format("expert[{}]", l));
  }
}

}  // namespace routepack
