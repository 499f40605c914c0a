// SPDX-License-Identifier: Apache-2.0
#include "routepack/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "routepack/error.h"
#include "support/builders.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using testing::make_window;
using ::testing::StartsWith;
using testing::WindowSpec;

/// Three samples, two layers, four experts, two of them chosen per token; every token recorded.
WindowSpec good() {
  return {.samples = 3,
          .layers = 2,
          .experts = 4,
          .top_k = 2,
          .lengths = {3, 1, 2},
          .counts = {3, 2, 1, 0, 0, 3, 2, 1,   // sample 0
                     1, 1, 0, 0, 0, 0, 1, 1,   // sample 1
                     2, 0, 2, 0, 1, 1, 1, 1},  // sample 2
          .recorded = {3, 1, 2}};
}

WindowArrays arrays_of(std::int64_t samples, std::int64_t layers, std::int64_t experts, std::int64_t top_k) {
  WindowArrays arrays;
  arrays.samples = samples;
  arrays.layers = layers;
  arrays.experts = experts;
  arrays.top_k = top_k;
  return arrays;
}

std::string refusal_of(WindowSpec spec) {
  return testing::refusal<InvalidInput>([&] { (void)make_window(std::move(spec)); });
}

template <class Change>
std::string refusal_after(Change&& change) {
  WindowSpec spec = good();
  change(spec);
  return refusal_of(std::move(spec));
}

TEST(Window, shows_what_it_was_made_from) {
  const Window window = make_window(good());
  EXPECT_EQ(window.samples(), 3);
  EXPECT_EQ(window.layers(), 2);
  EXPECT_EQ(window.experts(), 4);
  EXPECT_EQ(window.top_k(), 2);
  EXPECT_EQ(window.length(SampleId(2)), 2);
  EXPECT_EQ(window.recorded(SampleId(0), LayerId(1)), 3);
  window.visit_counts(SampleId(1), [](auto counts) {
    ASSERT_EQ(counts.size(), 8U);
    EXPECT_EQ(counts[6], 1U);
  });
}

TEST(Window, takes_samples_past_the_last_for_dummies_of_one_token) {
  WindowSpec spec = good();
  spec.atomic = {5, 5, -1};
  const Window window = make_window(spec);
  EXPECT_EQ(window.length(SampleId(3)), 1);
  EXPECT_EQ(window.atomic_group(SampleId(3)), -1);
  EXPECT_EQ(window.recorded(SampleId(3), LayerId(0)), std::nullopt);
  EXPECT_FALSE(window.lacks_routes(SampleId(3)));
}

TEST(Window, keeps_its_tensors_alive_through_the_owner) {
  const auto owner = std::make_shared<int>(0);
  const std::int32_t length = 1;
  const std::uint16_t count = 1;
  WindowArrays arrays = arrays_of(1, 1, 1, 1);
  arrays.lengths = std::span(&length, 1);
  arrays.counts = std::span<const std::uint16_t>(&count, 1);
  {
    const Window window(arrays, owner);
    const Window copy = window;
    EXPECT_EQ(owner.use_count(), 3);
  }
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(Window, reads_recorded_per_sample_and_per_layer) {
  WindowSpec spec = good();
  spec.recorded = {3, 2, 1, 1, 2, 2};
  spec.counts[5] = 1;  // sample 0, layer 1: two tokens recorded
  const Window window = make_window(spec);
  EXPECT_EQ(window.recorded(SampleId(0), LayerId(0)), 3);
  EXPECT_EQ(window.recorded(SampleId(0), LayerId(1)), 2);
  spec.recorded = {};
  EXPECT_EQ(make_window(spec).recorded(SampleId(0), LayerId(1)), std::nullopt);
}

TEST(Window, says_that_a_sample_lacks_routes_only_when_no_layer_has_any) {
  WindowSpec spec = good();
  spec.recorded = {0, 3, 0, 0, 2, 2};
  std::fill_n(spec.counts.begin(), 4, 0U);
  std::fill_n(spec.counts.begin() + 8, 8, 0U);
  const Window window = make_window(spec);
  EXPECT_FALSE(window.lacks_routes(SampleId(0)));
  EXPECT_TRUE(window.lacks_routes(SampleId(1)));
  EXPECT_FALSE(window.lacks_routes(SampleId(2)));
  spec.recorded = {};
  EXPECT_FALSE(make_window(spec).lacks_routes(SampleId(1)));
}

TEST(Window, refuses_no_samples_layers_or_experts) {
  EXPECT_THAT(refusal_after([](auto& spec) { spec.samples = 0; }),
              StartsWith("window: samples (N): found 0, wanted 1 to 2147483647"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.layers = 0; }), StartsWith("window: layers (L): found 0"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.experts = 0; }), StartsWith("window: experts (E): found 0"));
}

TEST(Window, refuses_sizes_that_do_not_fit_32_bits) {
  EXPECT_THAT(refusal_after([](auto& spec) { spec.samples = std::int64_t{1} << 31; }),
              StartsWith("window: samples (N): found 2147483648"));
}

TEST(Window, refuses_sizes_whose_product_overflows) {
  EXPECT_THAT(refusal_after([](auto& spec) { spec.samples = spec.layers = spec.experts = 2147483647; }),
              StartsWith("window: tensor counts: found shape [2147483647, 2147483647, 2147483647]"));
}

TEST(Window, refuses_a_top_k_outside_1_to_experts) {
  EXPECT_THAT(refusal_after([](auto& spec) { spec.top_k = 0; }),
              StartsWith("window: top_k: found 0, wanted 1 to 4, the number of experts"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.top_k = 5; }), StartsWith("window: top_k: found 5"));
}

TEST(Window, refuses_tensors_of_another_size) {
  EXPECT_THAT(refusal_after([](auto& spec) { spec.counts.pop_back(); }),
              StartsWith("window: tensor counts: found 23 values, wanted 24 for shape [3, 2, 4]"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.lengths.pop_back(); }),
              StartsWith("window: tensor lengths: found 2 values, wanted 3 for shape [3]"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.lengths.clear(); }),
              StartsWith("window: tensor lengths: found 0 values"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.recorded.pop_back(); }),
              StartsWith("window: tensor recorded: found 2 values, wanted 3 for shape [3] or [3, 2]"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.groups = {1}; }), StartsWith("window: tensor groups: found 1"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.atomic = {1}; }), StartsWith("window: tensor atomic: found 1"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.ids = {1}; }), StartsWith("window: tensor ids: found 1"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.pad_counts = {1}; }),
              StartsWith("window: tensor pad_counts: found 1 values, wanted 8 for shape [2, 4]"));
}

TEST(Window, refuses_a_length_of_zero_or_less) {
  EXPECT_THAT(refusal_after([](auto& spec) { spec.lengths[1] = 0; }),
              StartsWith("window: tensor lengths[1]: found 0, wanted 1 or more"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.lengths[2] = -7; }),
              StartsWith("window: tensor lengths[2]: found -7"));
}

TEST(Window, refuses_recorded_tokens_outside_the_length) {
  EXPECT_THAT(refusal_after([](auto& spec) { spec.recorded[1] = -1; }),
              StartsWith("window: tensor recorded[1]: found -1, wanted 0 or more"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.recorded[1] = 2; }),
              StartsWith("window: tensor recorded[1]: found 2, wanted at most 1, the length of the sample"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.recorded = {3, 3, 1, 1, 2, 9}; }),
              StartsWith("window: tensor recorded[2, 1]: found 9, wanted at most 2"));
}

TEST(Window, refuses_atomic_groups_below_minus_one) {
  EXPECT_THAT(refusal_after([](auto& spec) { spec.atomic = {0, -1, -2}; }),
              StartsWith("window: tensor atomic[2]: found -2, wanted -1 (free) or more"));
}

TEST(Window, refuses_a_count_larger_than_the_length) {
  EXPECT_THAT(refusal_after([](auto& spec) { spec.counts[14] = 2; }),
              StartsWith("window: tensor counts[1, 1, 2]: found 2, wanted at most 1, the length of the sample"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.counts[23] = std::numeric_limits<std::uint32_t>::max(); }),
              StartsWith("window: tensor counts[2, 1, 3]: found 4294967295, wanted at most 2"));
}

TEST(Window, refuses_a_sum_that_contradicts_recorded) {
  EXPECT_THAT(refusal_after([](auto& spec) { spec.counts[19] = 1; }),
              StartsWith("window: tensor counts[2, 0, :]: found a sum of 5, wanted 4, top_k 2 times recorded 2"));
  EXPECT_THAT(refusal_after([](auto& spec) { spec.recorded = {3, 3, 1, 0, 2, 2}; }),
              StartsWith("window: tensor counts[1, 1, :]: found a sum of 2, wanted 0"));
}

TEST(Window, refuses_a_sum_above_top_k_times_length_when_nothing_is_recorded) {
  WindowSpec spec = good();
  spec.recorded.clear();
  spec.counts[16] = 1;
  EXPECT_EQ(make_window(spec).samples(), 3);  // less than everything is fine
  spec.counts[17] = 2;
  EXPECT_THAT(refusal_of(spec),
              StartsWith("window: tensor counts[2, 0, :]: found a sum of 5, wanted at most 4, top_k 2 times length 2"));
}

TEST(Window, checks_every_count_of_rows_longer_than_a_block) {
  // Sums of u16 are kept in 32 bits inside a block: a row of 70,000 experts at the largest count needs more.
  constexpr std::int64_t kExperts = 70'000;
  std::vector<std::uint16_t> counts(kExperts, 65'535);
  const std::vector<std::int32_t> lengths = {65'535};
  WindowArrays arrays = arrays_of(1, 1, kExperts, kExperts);
  arrays.lengths = lengths;
  arrays.recorded = lengths;
  arrays.counts = std::span<const std::uint16_t>(counts);
  EXPECT_EQ(Window(arrays, nullptr).experts(), 70'000);
  counts.back() = 65'534;
  EXPECT_THAT(testing::refusal<InvalidInput>([&] { (void)Window(arrays, nullptr); }),
              StartsWith("window: tensor counts[0, 0, :]: found a sum of 4587449999, wanted 4587450000"));
}

TEST(Window, puts_the_place_in_front_of_its_messages) {
  WindowArrays arrays = arrays_of(0, 1, 1, 1);
  EXPECT_THAT(testing::refusal<InvalidInput>([&] { (void)Window(arrays, nullptr, "a.safetensors"); }),
              StartsWith("a.safetensors: samples"));
}

TEST(Window, refuses_layer_numbers_that_do_not_match) {
  const std::int32_t length = 1;
  const std::uint32_t count = 1;
  WindowArrays arrays = arrays_of(1, 1, 1, 1);
  arrays.lengths = std::span(&length, 1);
  arrays.counts = std::span(&count, 1);
  arrays.layer_numbers = {1, 2};
  EXPECT_THAT(testing::refusal<InvalidInput>([&] { (void)Window(arrays, nullptr); }),
              StartsWith("window: metadata layers: found 2 numbers, wanted 1"));
  arrays.layer_numbers = {-1};
  EXPECT_THAT(testing::refusal<InvalidInput>([&] { (void)Window(arrays, nullptr); }),
              StartsWith("window: metadata layers[0]: found -1"));
  arrays.layer_numbers = {};
  arrays.metadata = {{"source", "a"}, {"top_k", "3"}};
  EXPECT_THAT(testing::refusal<InvalidInput>([&] { (void)Window(arrays, nullptr); }),
              StartsWith("window: metadata key top_k: found twice or reserved"));
}

TEST(AggregateWindow, needs_no_lengths) {
  const Window window = make_window({.samples = 1,
                                     .layers = 1,
                                     .experts = 2,
                                     .top_k = 1,
                                     .kind = WindowKind::Aggregate,
                                     .counts = {4'000'000'000U, 4'000'000'000U}});
  EXPECT_EQ(window.kind(), WindowKind::Aggregate);
}

TEST(AggregateWindow, still_answers_to_recorded_and_lengths_when_they_are_there) {
  WindowSpec spec{.samples = 1, .layers = 1, .experts = 2, .top_k = 1, .kind = WindowKind::Aggregate, .counts = {3, 4}};
  spec.recorded = {8};
  EXPECT_THAT(refusal_of(spec), StartsWith("window: tensor counts[0, 0, :]: found a sum of 7, wanted 8"));
  spec.recorded = {};
  spec.lengths = {3};
  EXPECT_THAT(refusal_of(spec), StartsWith("window: tensor counts[0, 0, 1]: found 4, wanted at most 3"));
}

TEST(AggregateWindow, refuses_more_than_one_sample) {
  WindowSpec spec = good();
  spec.kind = WindowKind::Aggregate;
  EXPECT_THAT(refusal_of(spec), StartsWith("window: samples (N): found 3, wanted 1 in an aggregate window"));
}

}  // namespace
}  // namespace routepack
