// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "window/generator/draws.h"

namespace routepack {
namespace {

RandomStream stream(std::int64_t item) {
  return RandomStream({.seed = 11, .purpose = Purpose::AnswerTokens, .item = item});
}

std::vector<double> softmax(const std::vector<double>& logits) {
  std::vector<double> p;
  for (const double x : logits) p.push_back(std::exp(x));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= total;
  return p;
}

/// Chance that an expert is among k drawn without replacement, by enumerating the draws (Plackett and Luce).
void enumerate(const std::vector<double>& p, std::vector<bool>& taken, double chance, double left, int more,
               std::vector<double>& inclusion) {
  if (more == 0) {
    for (std::size_t e = 0; e < p.size(); ++e) inclusion[e] += taken[e] ? chance : 0.0;
    return;
  }
  for (std::size_t e = 0; e < p.size(); ++e) {
    if (taken[e]) continue;
    taken[e] = true;
    enumerate(p, taken, chance * p[e] / left, left - p[e], more - 1, inclusion);
    taken[e] = false;
  }
}

TEST(AliasTable, draws_each_index_as_often_as_its_logit_says) {
  const std::vector<double> logits = {0.0, 2.5, -3.0, 1.0, 0.3, -0.7, 2.4};
  const auto p = softmax(logits);
  AliasTable table(logits.size());
  table.build(logits);
  std::vector<double> drawn(logits.size());
  constexpr int kDraws = 1 << 20;
  // All 2^20 top bit patterns once each: this is the table's own distribution, free of sampling noise.
  for (std::uint32_t i = 0; i < kDraws; ++i) drawn[table.draw(i << 12)] += 1.0 / kDraws;
  for (std::size_t e = 0; e < p.size(); ++e) EXPECT_NEAR(drawn[e], p[e], 2e-5) << e;
}

TEST(AliasTable, rebuilding_forgets_the_logits_before) {
  AliasTable table(3);
  table.build(std::vector{30.0, 0.0, 0.0});
  table.build(std::vector{0.0, 0.0, 30.0});
  RandomStream random = stream(0);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(table.draw(random.next()), 2U);
}

TEST(TokenCounter, takes_k_different_experts_per_token) {
  const std::vector<double> logits = {5.0, 4.0, 0.0, 0.0, -2.0};
  AliasTable table(5);
  table.build(logits);
  TokenCounter counter(5);
  RandomStream random = stream(1);
  for (std::int64_t k = 1; k <= 5; ++k) {
    for (int token = 0; token < 100; ++token) {
      std::vector<std::uint32_t> counts(5);
      counter.add(table, k, 1, random, counts);
      ASSERT_LE(*std::ranges::max_element(counts), 1U);
      ASSERT_EQ(std::accumulate(counts.begin(), counts.end(), 0U), k);
    }
  }
}

TEST(TokenCounter, sets_are_those_of_weighted_draws_without_replacement) {
  const std::vector<double> logits = {2.0, 1.0, 0.0, -1.0, 0.5, -2.0};
  constexpr int kTopK = 3;
  std::vector<double> expected(logits.size());
  std::vector<bool> taken(logits.size(), false);
  enumerate(softmax(logits), taken, 1.0, 1.0, kTopK, expected);
  AliasTable table(logits.size());
  table.build(logits);
  TokenCounter counter(logits.size());
  RandomStream random = stream(2);
  std::vector<std::uint32_t> counts(logits.size());
  constexpr std::int64_t kTokens = 400'000;
  counter.add(table, kTopK, kTokens, random, counts);
  for (std::size_t e = 0; e < logits.size(); ++e) {
    const double sd = std::sqrt(expected[e] * (1.0 - expected[e]) / kTokens);
    EXPECT_NEAR(counts[e] / static_cast<double>(kTokens), expected[e], 4.0 * sd) << e;
  }
}

TEST(TokenCounter, sets_are_those_of_gumbel_top_k) {
  const std::vector<double> logits = {1.5, 0.2, -0.4, 0.9, -1.1};
  constexpr std::int64_t kTokens = 200'000;
  RandomStream random = stream(3);
  std::vector<std::uint32_t> by_gumbel(5), by_table(5);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    std::vector<std::pair<double, std::size_t>> keys;
    for (std::size_t e = 0; e < 5; ++e) keys.emplace_back(logits[e] - std::log(-std::log(random.uniform())), e);
    std::ranges::sort(keys, std::greater());
    for (int i = 0; i < 2; ++i) ++by_gumbel[keys[static_cast<std::size_t>(i)].second];
  }
  AliasTable table(5);
  table.build(logits);
  TokenCounter(5).add(table, 2, kTokens, random, by_table);
  for (std::size_t e = 0; e < 5; ++e) {
    EXPECT_NEAR(static_cast<double>(by_table[e]) / kTokens, static_cast<double>(by_gumbel[e]) / kTokens, 0.006) << e;
  }
}

TEST(TokenCounter, ends_even_when_one_expert_outweighs_all_others) {
  std::vector<double> logits(8, -600.0);
  logits[3] = 0.0;
  AliasTable table(8);
  table.build(logits);
  RandomStream random = stream(4);
  std::vector<std::uint32_t> counts(8);
  TokenCounter(8).add(table, 1, 1000, random, counts);
  EXPECT_EQ(counts[3], 1000U);
  TokenCounter counter(8);
  counter.add(table, 2, 1, random, counts);  // takes about e^18 / 7 draws, not for ever
  EXPECT_EQ(counts[3], 1001U);
}

}  // namespace
}  // namespace routepack
