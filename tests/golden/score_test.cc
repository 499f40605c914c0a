// SPDX-License-Identifier: Apache-2.0
// Figures that an independent implementation computed for small windows (tests/data/golden/README.md).
#include "routepack/score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "routepack/bounds.h"
#include "routepack/plan_file.h"
#include "routepack/verify.h"
#include "routepack/window.h"

namespace routepack {
namespace {

constexpr double kTolerance = 1e-12;

void expect_close(double found, double wanted, const char* what) {
  EXPECT_LE(std::abs(found - wanted), kTolerance * std::abs(wanted)) << what << ": " << found << ", not " << wanted;
}

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path file(const std::string& ending) const {
    return std::filesystem::path(ROUTEPACK_SOURCE_DIR) / "tests/data/golden" / (GetParam() + ending);
  }
  nlohmann::json expected() const { return nlohmann::json::parse(std::ifstream(file(".expected.json"))); }

  Window window_ = Window::load(file(".safetensors"));
  CheckedPlan plan_ = check_record(load_plan(file(".plan.json")), window_);
};

TEST_P(Golden, score_and_metrics_come_out) {
  const nlohmann::json want = expected();
  const Evaluation found = evaluate(plan_.instance, plan_.placement, plan_.layout);
  expect_close(found.score.max_shard, want.at("score").at(0).get<double>(), "max_shard");
  expect_close(found.score.total, want.at("score").at(1).get<double>(), "total");
  expect_close(found.score.worst_row, want.at("score").at(2).get<double>(), "worst_row");
  expect_close(found.attention, want.at("attention").get<double>(), "attention");
  expect_close(found.ep_efficiency, want.at("ep_efficiency").get<double>(), "ep_efficiency");
  EXPECT_EQ(found.expert_peak_sum, want.at("expert_peak_sum").get<std::int64_t>());
  EXPECT_EQ(found.tail_peak, want.at("tail_peak").get<std::int64_t>());

  const auto on_ranks = rank_demand(aggregate_demand(window_), plan_.placement);
  expect_close(rank_demand_cv(on_ranks, plan_.placement.ranks()), want.at("cv_global").get<double>(), "cv_global");
}

TEST_P(Golden, bounds_are_at_least_the_plain_ones_and_at_most_the_score) {
  const nlohmann::json want = expected();
  const Bounds found = lower_bounds(plan_.instance, plan_.placement, aggregate_demand(window_));
  EXPECT_GE(found.fixed_placement, want.at("lb_fixed_placement").get<double>() * (1 - kTolerance));
  EXPECT_GE(found.any_placement, want.at("lb_any_placement").get<double>() * (1 - kTolerance));
  const double score = evaluate(plan_.instance, plan_.placement, plan_.layout).score.max_shard;
  EXPECT_LE(found.fixed_placement, score * (1 + kTolerance));
  EXPECT_LE(found.any_placement, score * (1 + kTolerance));
}

TEST_P(Golden, verify_accepts_the_plan) {
  const Verdict verdict = verify(window_, load_plan(file(".plan.json")));
  EXPECT_TRUE(verdict.accepted()) << verdict.violations.front().rule << ": " << verdict.violations.front().message;
  EXPECT_FALSE(verdict.checked.empty());
}

INSTANTIATE_TEST_SUITE_P(Windows, Golden, ::testing::Values("hand", "two_shards", "two_shards_row"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace routepack
