// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "routepack/cost.h"
#include "routepack/error.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using testing::refusal;

std::string said(const std::vector<Stage>& stages, const std::vector<double>& expert) {
  return refusal<InvalidInput>([&] { CostModel(stages, expert, "p.json: cost"); });
}

TEST(CostModel, weighs_all_layers_alike_unless_it_has_a_list) {
  const CostModel uniform({}, 2.0);
  EXPECT_TRUE(uniform.uniform());
  EXPECT_EQ(uniform.expert_weight(LayerId(7)), 2.0);
  const CostModel listed({}, std::vector{1.0, 3.0});
  EXPECT_FALSE(listed.uniform());
  EXPECT_EQ(listed.expert_weight(LayerId(1)), 3.0);
}

TEST(CostModel, keeps_stages_in_their_order) {
  const CostModel cost({{"b", 1.0, 0.0}, {"a", 0.0, 2.0}});
  ASSERT_EQ(cost.stages().size(), 2U);
  EXPECT_EQ(cost.stages()[0].name, "b");
  EXPECT_EQ(cost.stages()[1].beta, 2.0);
}

TEST(CostModel, differs_between_one_weight_and_a_list_of_one) {
  EXPECT_NE(CostModel({}, 1.0), CostModel({}, std::vector{1.0}));
}

TEST(CostModel, refuses_negative_and_not_finite_numbers) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(said({{"a", 1.0, 1.0}, {"b", -1.0, 0.0}}, {1.0}),
            "p.json: cost: stage[1].alpha: found -1, wanted a finite number, at least 0 and at most 1e+100");
  EXPECT_EQ(said({{"a", 1.0, nan}}, {1.0}),
            "p.json: cost: stage[0].beta: found nan, wanted a finite number, at least 0 and at most 1e+100");
  EXPECT_EQ(said({}, {1.0, inf}),
            "p.json: cost: expert[1]: found inf, wanted a finite number, at least 0 and at most 1e+100");
  EXPECT_EQ(said({}, {1.0, 1e101}),
            "p.json: cost: expert[1]: found 1e+101, wanted a finite number, at least 0 and at most 1e+100");
  EXPECT_EQ(refusal<InvalidInput>([] { CostModel({}, -0.5); }),
            "cost: expert: found -0.5, wanted a finite number, at least 0 and at most 1e+100");
}

TEST(CostModel, refuses_an_empty_list_of_expert_weights) {
  EXPECT_EQ(said({}, {}), "p.json: cost: expert: found an empty list, wanted one weight per MoE layer");
}

}  // namespace
}  // namespace routepack
