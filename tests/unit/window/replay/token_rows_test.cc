// SPDX-License-Identifier: Apache-2.0
// Counting token by token, against its definition, on every instruction set that this machine has.
#include "window/replay/token_rows.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "routepack/error.h"
#include "routepack/replay.h"

namespace routepack::replay {
namespace {

constexpr std::size_t kTopK = 8;

template <class Body>
void on_every_target(Body body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

/// Tokens whose rows are in order, three ids in front of the first so that nothing is aligned.
struct Tokens {
  Tokens(std::mt19937& random, std::size_t tokens, std::size_t layer_count, std::uint32_t experts)
      : layers(layer_count) {
    std::vector<std::int32_t> all(experts);
    std::iota(all.begin(), all.end(), 0);
    ids.resize(3);
    for (std::size_t row = 0; row < tokens * layers; ++row) {
      std::shuffle(all.begin(), all.end(), random);
      ids.insert(ids.end(), all.begin(), all.begin() + kTopK);
    }
    for (std::size_t t = 0; t < tokens; ++t) {
      starts.push_back(reinterpret_cast<const std::byte*>(ids.data() + t * layers * kTopK));
    }
  }
  Tokens(const Tokens&) = delete;
  Tokens& operator=(const Tokens&) = delete;

  std::int32_t& at(std::size_t token, std::size_t layer, std::size_t k) {
    return ids[3 + (token * layers + layer) * kTopK + k];
  }
  [[nodiscard]] TokenRows rows() const {
    const auto stride = static_cast<std::ptrdiff_t>(layers * kTopK * sizeof(std::int32_t));
    return {starts, 12, layers, stride, reinterpret_cast<const std::byte*>(ids.data() + ids.size())};
  }

  std::size_t layers;
  std::vector<std::int32_t> ids;
  std::vector<const std::byte*> starts;
};

std::vector<std::uint8_t> counted_by_definition(const Tokens& tokens, std::uint32_t experts, std::size_t wanted) {
  std::vector<std::uint8_t> counters(tokens.layers * experts);
  EXPECT_EQ(scalar::count_tokens(tokens.rows(), experts, counters.data()), wanted);
  return counters;
}

TEST(TokenRows, definition_counts_ids_and_stops_at_the_first_token_that_is_not_in_order) {
  std::mt19937 random(1);
  Tokens tokens(random, 4, 2, 10);
  std::vector<std::uint8_t> wanted(20);
  for (std::size_t t = 0; t < 2; ++t) {
    for (std::size_t l = 0; l < 2; ++l) {
      for (std::size_t k = 0; k < kTopK; ++k) ++wanted[l * 10 + static_cast<std::size_t>(tokens.at(t, l, k))];
    }
  }
  tokens.at(2, 1, 7) = tokens.at(2, 1, 0);
  EXPECT_EQ(counted_by_definition(tokens, 10, 2), wanted);
  tokens.at(2, 1, 7) = 10;
  EXPECT_EQ(counted_by_definition(tokens, 10, 2), wanted);
}

TEST(TokenRows, count_any_number_of_layers) {
  on_every_target([] {
    std::mt19937 random(2);
    for (const std::uint32_t experts : {8U, 60U, 256U, 300U, 512U}) {
      for (const std::size_t layers : {1U, 2U, 3U, 4U, 5U, 7U, 11U}) {
        const Tokens tokens(random, 9, layers, experts);
        const auto wanted = counted_by_definition(tokens, experts, 9);
        std::vector<std::uint8_t> counters(layers * experts);
        ASSERT_EQ(count_tokens(tokens.rows(), experts, counters.data()), 9U);
        ASSERT_EQ(counters, wanted) << layers << " layers of " << experts;
      }
    }
  });
}

TEST(TokenRows, see_every_pair_and_every_id_beyond_the_experts_and_leave_no_trace) {
  on_every_target([] {
    std::mt19937 random(3);
    constexpr std::uint32_t kExperts = 200;
    for (const std::size_t layers : {3U, 8U, 9U}) {
      Tokens tokens(random, 3, layers, kExperts);
      std::vector<std::uint8_t> clean(layers * kExperts);
      TokenRows first = tokens.rows();
      first.tokens = first.tokens.first(1);
      ASSERT_EQ(scalar::count_tokens(first, kExperts, clean.data()), 1U);
      const auto stops = [&] {
        std::vector<std::uint8_t> counters(layers * kExperts);
        return count_tokens(tokens.rows(), kExperts, counters.data()) == 1 && counters == clean;
      };
      ASSERT_FALSE(stops());
      for (std::size_t l = 0; l < layers; ++l) {
        for (std::size_t a = 0; a < kTopK; ++a) {
          const std::int32_t right = tokens.at(1, l, a);
          for (const std::int32_t wrong : {-1, 200, 1 << 16, (1 << 16) + right, 1 << 30, 1 << 31}) {
            tokens.at(1, l, a) = wrong;
            ASSERT_TRUE(stops()) << wrong << " at layer " << l;
          }
          for (std::size_t b = 0; b < a; ++b) {
            tokens.at(1, l, a) = tokens.at(1, l, b);
            ASSERT_TRUE(stops()) << a << ", " << b << " at layer " << l;
          }
          tokens.at(1, l, a) = right;
        }
      }
    }
  });
}

TEST(TokenRows, of_different_layers_may_name_the_same_experts) {
  on_every_target([] {
    std::mt19937 random(4);
    Tokens tokens(random, 1, 8, 64);
    for (std::size_t l = 1; l < 8; ++l) {
      for (std::size_t k = 0; k < kTopK; ++k) tokens.at(0, l, k) = tokens.at(0, 0, k);
    }
    std::vector<std::uint8_t> counters(8 * 64);
    EXPECT_EQ(count_tokens(tokens.rows(), 64, counters.data()), 1U);
  });
}

TEST(TokenCounters, are_emptied_before_one_overflows) {
  std::mt19937 random(5);
  Tokens tokens(random, 700, 3, 8);  // every expert in every row
  std::vector<std::uint32_t> table(3 * 8, 5);
  TokenCounters counters(3, 8, table.data());
  tokens.at(600, 0, 0) = tokens.at(600, 0, 1);
  EXPECT_EQ(counters.count(tokens.rows()), 600U);
  TokenRows rest = tokens.rows();
  rest.tokens = rest.tokens.subspan(601);
  EXPECT_EQ(counters.count(rest), 99U);
  counters.finish();
  EXPECT_EQ(table, std::vector<std::uint32_t>(3 * 8, 5 + 699));
}

TEST(TokenCounters, largest_is_found_wherever_it_is) {
  on_every_target([] {
    std::vector<std::uint8_t> counters(150, 3);
    for (const std::size_t at : {0U, 63U, 64U, 127U, 128U, 149U}) {
      counters[at] = 200;
      ASSERT_EQ(largest_counter(counters), 200U) << at;
      counters[at] = 3;
    }
    EXPECT_EQ(largest_counter({}), 0U);
  });
}

TEST(TokenCounters, take_as_many_tokens_as_come) {
  std::mt19937 random(9);
  for (const std::uint32_t experts : {9U, 16U, 100U}) {  // hot, warm and cold
    const Tokens tokens(random, 3000, 2, experts);
    std::vector<std::uint32_t> wanted(2 * experts);
    for (std::size_t at = 3; at < tokens.ids.size(); ++at) {
      ++wanted[(at - 3) / kTopK % 2 * experts + static_cast<std::size_t>(tokens.ids[at])];
    }
    std::vector<std::uint32_t> table(2 * experts);
    TokenCounters counters(2, experts, table.data());
    ASSERT_EQ(counters.count(tokens.rows()), 3000U);
    counters.finish();
    EXPECT_EQ(table, wanted) << experts;
  }
}

TEST(TokenCounters, take_the_last_layers_of_a_table) {
  std::mt19937 random(6);
  const Tokens tokens(random, 2, 1, 8);
  std::vector<std::uint32_t> table(3 * 8);
  TokenCounters counters(3, 8, table.data());
  EXPECT_EQ(counters.count(tokens.rows()), 2U);
  counters.finish();
  EXPECT_EQ(std::accumulate(table.begin(), table.begin() + 16, 0U), 0U);
  EXPECT_EQ(std::vector<std::uint32_t>(table.begin() + 16, table.end()), std::vector<std::uint32_t>(8, 2));
}

/// Rows in order with a few that are not, dense and in C order. Layer `dense` is zeros.
std::vector<std::int64_t> mixed_rows(std::mt19937& random, std::size_t tokens, std::size_t layers,
                                     std::uint32_t experts, std::size_t dense) {
  std::vector<std::int64_t> ids;
  for (std::size_t row = 0; row < tokens * layers; ++row) {
    const std::size_t begin = ids.size();
    while (ids.size() < begin + kTopK) {
      const auto id = static_cast<std::int64_t>(random() % experts);
      if (std::find(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    const auto kind = random() % 500;
    const auto whole = std::span(ids).subspan(begin);
    if (row % layers == dense || kind == 0) std::ranges::fill(whole, 0);
    if (kind == 1) std::ranges::fill(whole, -1);
    if (kind == 2) whole[7] = static_cast<std::int64_t>(experts);
    if (kind == 3) whole[5] = whole[1];
  }
  return ids;
}

TEST(CountRoutes, gives_the_same_as_int32_and_int64_on_every_instruction_set) {
  std::mt19937 random(7);
  constexpr std::size_t kLayers = 5;
  const std::vector<std::vector<std::int64_t>> selections = {{}, {1, 2, 3, 4}, {4, 1, 0, 2}};
  for (const std::uint32_t experts : {64U, 100U, 256U, 300U, 512U, 2000U}) {
    for (const std::size_t tokens : {5U, 128U, 700U}) {
      for (const std::size_t dense : {0U, 1U, 9U}) {  // 9: none
        const auto wide = mixed_rows(random, tokens, kLayers, experts, dense);
        const std::vector<std::int32_t> ids(wide.begin(), wide.end());
        std::vector<std::uint8_t> mask(tokens);
        for (auto& keep : mask) keep = random() % 8 != 0;
        for (const auto& layers : selections) {
          CountOptions options{.experts = experts, .layers = layers, .invalid = InvalidRoutes::LeaveOut};
          const std::size_t size = (layers.empty() ? kLayers : layers.size()) * experts;
          // int64 goes the way that every type can go.
          SampleRoutes sample{.ids = RouteIds::from_bytes(std::as_bytes(std::span(wide)), IdType::I64, 5, 8)};
          if (layers.size() != 4 || layers[0] != 1) sample.mask = mask;
          std::vector<std::uint32_t> wanted(size);
          const CountReport report = count_routes(sample, options, wanted);
          sample.ids = RouteIds::from_bytes(std::as_bytes(std::span(ids)), IdType::I32, 5, 8);
          on_every_target([&] {
            std::vector<std::uint32_t> counts(size, 9);
            ASSERT_EQ(count_routes(sample, options, counts), report) << experts << " experts, " << tokens << " tokens";
            ASSERT_EQ(counts, wanted) << experts << " experts, " << tokens << " tokens";
          });
        }
      }
    }
  }
}

TEST(CountRoutes, names_the_first_wrong_row_of_int32_as_of_int64) {
  std::mt19937 random(8);
  auto wide = mixed_rows(random, 300, 3, 64, 0);
  const auto message = [](std::span<const std::byte> bytes, IdType type) -> std::string {
    std::vector<std::uint32_t> counts(3 * 64);
    try {
      (void)count_routes({.ids = RouteIds::from_bytes(bytes, type, 3, 8)}, {.experts = 64}, counts);
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "";
  };
  wide[(150 * 3 + 2) * kTopK] = 64;
  const std::vector<std::int32_t> ids(wide.begin(), wide.end());
  const std::string wanted = message(std::as_bytes(std::span(wide)), IdType::I64);
  EXPECT_NE(wanted, "");
  EXPECT_EQ(message(std::as_bytes(std::span(ids)), IdType::I32), wanted);
}

}  // namespace
}  // namespace routepack::replay
