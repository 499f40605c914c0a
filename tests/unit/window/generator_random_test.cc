// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "window/generator/random.h"

namespace routepack {
namespace {

std::vector<std::uint32_t> first(const StreamName& name, std::size_t count) {
  RandomStream stream(name);
  std::vector<std::uint32_t> numbers;
  while (numbers.size() < count) numbers.push_back(stream.next());
  return numbers;
}

TEST(RandomStream, agrees_with_the_published_numbers_of_philox4x32_10) {
  EXPECT_THAT(first({.seed = 0, .purpose = Purpose{0}}, 4),
              ::testing::ElementsAre(0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U));
}

TEST(RandomStream, counts_blocks_in_the_first_word_without_gap_or_repeat) {
  const StreamName name{.seed = 5, .purpose = Purpose::Topic, .step = 3, .item = 17, .layer = 2};
  const auto numbers = first(name, 2000);
  EXPECT_EQ(first(name, 2000), numbers);
  EXPECT_EQ(std::set(numbers.begin(), numbers.end()).size(), numbers.size());  // a repeated block would show
}

TEST(RandomStream, every_part_of_the_name_makes_another_stream) {
  std::set<std::vector<std::uint32_t>> streams;
  const StreamName base{.seed = 1, .purpose = Purpose::Topic, .step = 1, .item = 1, .layer = 1};
  streams.insert(first(base, 4));
  for (StreamName name : {base, base, base, base, base, base}) {
    const auto which = streams.size();
    if (which == 1) name.seed = 2;
    if (which == 2) name.seed = std::int64_t{1} << 40;
    if (which == 3) name.purpose = Purpose::Variation;
    if (which == 4) name.step = 2;
    if (which == 5) name.item = 2;
    if (which == 6) name.layer = 2;
    streams.insert(first(name, 4));
  }
  EXPECT_EQ(streams.size(), 7U);
}

TEST(RandomStream, normal_numbers_have_mean_0_variance_1_and_thin_tails) {
  RandomStream stream({.seed = 9, .purpose = Purpose::GroupDeviation});
  std::vector<double> values(200'000);
  stream.normals(values);
  double mean = 0.0, square = 0.0, beyond_two = 0.0;
  for (const double v : values) {
    mean += v / 200'000;
    square += v * v / 200'000;
    beyond_two += (v > 2.0 || v < -2.0 ? 1.0 : 0.0) / 200'000;
  }
  EXPECT_NEAR(mean, 0.0, 0.01);
  EXPECT_NEAR(square, 1.0, 0.015);
  EXPECT_NEAR(beyond_two, 0.0455, 0.002);
}

TEST(RandomStream, uniform_numbers_never_reach_an_end) {
  RandomStream stream({.seed = 3, .purpose = Purpose::Topic});
  for (int i = 0; i < 10'000; ++i) {
    const double u = stream.uniform();
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
  }
}

}  // namespace
}  // namespace routepack
