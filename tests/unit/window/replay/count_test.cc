// SPDX-License-Identifier: Apache-2.0
// Every trap of recorded routes that a file or a framework has been seen to set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "routepack/error.h"
#include "routepack/replay.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;

template <class T>
constexpr IdType type_of() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return IdType::U8;
  if constexpr (std::is_same_v<T, std::int8_t>) return IdType::I8;
  if constexpr (std::is_same_v<T, std::uint16_t>) return IdType::U16;
  if constexpr (std::is_same_v<T, std::int16_t>) return IdType::I16;
  if constexpr (std::is_same_v<T, std::int32_t>) return IdType::I32;
  if constexpr (std::is_same_v<T, std::int64_t>) return IdType::I64;
}

/// Ids [tokens, layers, top_k] that live as long as this.
template <class T>
struct Ids {
  std::vector<T> values;
  std::int64_t layers = 1;
  std::int64_t top_k = 2;

  [[nodiscard]] RouteIds view() const {
    return RouteIds::from_bytes(std::as_bytes(std::span(values)), type_of<T>(), layers, top_k);
  }
};

struct Counted {
  std::vector<std::uint32_t> counts;
  CountReport report;
};

Counted count(const SampleRoutes& sample, const CountOptions& options) {
  const std::int64_t layers = counted_layers(sample.ids, options);
  Counted result;
  result.counts.resize(static_cast<std::size_t>(layers * options.experts), 99);
  result.report = count_routes(sample, options, result.counts);
  return result;
}

template <class T>
Counted count(const Ids<T>& ids, const CountOptions& options) {
  return count(SampleRoutes{.ids = ids.view()}, options);
}

template <class T>
std::string refused(const Ids<T>& ids, const CountOptions& options) {
  return refusal<InvalidInput>([&] { (void)count(ids, options); });
}

template <class T>
class CountRoutesOfType : public ::testing::Test {};
using Types = ::testing::Types<std::uint8_t, std::int8_t, std::uint16_t, std::int16_t, std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(CountRoutesOfType, Types);

TYPED_TEST(CountRoutesOfType, are_counted_by_layer) {
  const Ids<TypeParam> ids{{0, 2, 1, 3, 2, 3, 1, 0}, 2, 2};  // two tokens of two layers
  const Counted result = count(ids, {.experts = 4});
  EXPECT_THAT(result.counts, ElementsAre(1, 0, 2, 1, 1, 2, 0, 1));
  EXPECT_EQ(result.report[0], (LayerReport{.recorded = 2}));
}

TYPED_TEST(CountRoutesOfType, beyond_the_experts_are_refused_with_layer_and_token) {
  const Ids<TypeParam> ids{{0, 2, 1, 3, 2, 3, 1, 4}, 2, 2};
  EXPECT_THAT(refused(ids, {.experts = 4}), HasSubstr("ids, layer 1, token 1: found id 4, wanted 0 to 3"));
}

TYPED_TEST(CountRoutesOfType, are_counted_at_any_address) {
  std::vector<std::byte> bytes(1 + 4 * sizeof(TypeParam));
  const std::array<TypeParam, 4> values = {3, 1, 1, 0};
  std::memcpy(bytes.data() + 1, values.data(), sizeof values);
  const SampleRoutes sample{.ids = RouteIds::from_bytes(std::span(bytes).subspan(1), type_of<TypeParam>(), 1, 2)};
  EXPECT_THAT(count(sample, {.experts = 4}).counts, ElementsAre(1, 2, 0, 1));
}

template <class T>
class SignedRoutes : public ::testing::Test {};
using SignedTypes = ::testing::Types<std::int8_t, std::int16_t, std::int32_t, std::int64_t>;
TYPED_TEST_SUITE(SignedRoutes, SignedTypes);

TYPED_TEST(SignedRoutes, of_minus_one_are_missing) {
  const Ids<TypeParam> ids{{0, 2, -1, -1, 2, 1}, 1, 2};
  const Counted result = count(ids, {.experts = 4});
  EXPECT_THAT(result.counts, ElementsAre(1, 1, 2, 0));
  EXPECT_EQ(result.report[0], (LayerReport{.recorded = 2, .sentinel = 1}));
}

TYPED_TEST(SignedRoutes, of_minus_one_beside_ids_are_refused) {
  const Ids<TypeParam> ids{{0, 2, 3, -1}, 1, 2};
  EXPECT_THAT(refused(ids, {.experts = 4}), HasSubstr("token 1: found -1 beside ids, wanted 2 ids, or -1 only"));
}

TYPED_TEST(SignedRoutes, below_minus_one_are_refused) {
  const Ids<TypeParam> ids{{0, 2, -2, -2}, 1, 2};
  EXPECT_THAT(refused(ids, {.experts = 4}), HasSubstr("token 1: found id -2, wanted 0 to 3"));
}

TEST(CountRoutes, minus_one_in_eight_bits_is_no_expert_255) {
  const Ids<std::int8_t> ids{{0, 2, -1, -1}, 1, 2};
  EXPECT_EQ(count(ids, {.experts = 128}).report[0].sentinel, 1);
  const Ids<std::uint8_t> last{{0, 255, 255, 1}, 1, 2};
  EXPECT_EQ(count(last, {.experts = 256}).counts[255], 2U);
}

TEST(CountRoutes, rows_of_zeros_are_not_expert_0) {
  const Ids<std::int32_t> ids{{1, 2, 0, 0, 0, 1}, 1, 2};
  const Counted result = count(ids, {.experts = 3});
  EXPECT_THAT(result.counts, ElementsAre(1, 2, 1));
  EXPECT_EQ(result.report[0], (LayerReport{.recorded = 2, .zero = 1}));
}

TEST(CountRoutes, a_layer_of_zeros_was_not_captured) {
  const Ids<std::uint8_t> ids{{0, 0, 1, 2, 0, 0, 2, 1}, 2, 2};
  const Counted result = count(ids, {.experts = 3});
  EXPECT_THAT(result.counts, ElementsAre(0, 0, 0, 0, 2, 2));
  EXPECT_EQ(result.report[0], (LayerReport{.zero = 2}));
  EXPECT_EQ(result.report[1], (LayerReport{.recorded = 2}));
}

TEST(CountRoutes, with_one_choice_only_a_whole_layer_of_zeros_is_missing) {
  const Ids<std::uint8_t> some{{0, 0, 1}, 1, 1};
  EXPECT_THAT(count(some, {.experts = 3}).counts, ElementsAre(2, 1, 0));
  const Ids<std::uint8_t> all{{0, 0, 0}, 1, 1};
  const Counted result = count(all, {.experts = 3});
  EXPECT_THAT(result.counts, ElementsAre(0, 0, 0));
  EXPECT_EQ(result.report[0], (LayerReport{.zero = 3}));
}

TEST(CountRoutes, dense_layers_are_left_out_by_selection) {
  const Ids<std::uint8_t> ids{{0, 0, 1, 2, 2, 0}, 3, 2};  // one token; layer 0 is dense
  const Counted result = count(ids, {.experts = 3, .layers = {2, 1}});
  EXPECT_THAT(result.counts, ElementsAre(1, 0, 1, 0, 1, 1));
  EXPECT_THAT(refused(ids, {.experts = 3, .layers = {1, 3}}), HasSubstr("layers: found index 3, wanted 0 to 2"));
  EXPECT_THAT(refused(ids, {.experts = 3, .layers = {1, 1}}), HasSubstr("layers: found index 1 twice"));
}

TEST(CountRoutes, messages_name_the_layer_of_the_tensor_not_of_the_result) {
  const Ids<std::uint8_t> ids{{0, 0, 1, 2, 9, 0}, 3, 2};
  EXPECT_THAT(refused(ids, {.experts = 3, .layers = {2}}), HasSubstr("layer 2, token 0: found id 9"));
}

TEST(CountRoutes, the_last_token_has_no_route) {
  const Ids<std::uint8_t> ids{{1, 2}, 1, 2};
  const Counted result = count(SampleRoutes{.ids = ids.view(), .length = 2}, {.experts = 3});
  EXPECT_EQ(result.report[0], (LayerReport{.recorded = 1, .absent = 1}));
  EXPECT_THAT(refusal<InvalidInput>([&] {
                (void)count(SampleRoutes{.ids = ids.view(), .length = 2},
                            {.experts = 3, .missing = MissingRoutes::Refuse});
              }),
              HasSubstr("found 1 rows of ids for 2 tokens, wanted a route of every token"));
  EXPECT_THAT(refusal<InvalidInput>([&] { (void)count(SampleRoutes{.ids = ids.view(), .length = 0}, {.experts = 3}); }),
              HasSubstr("found 1 rows of ids and a length of 0"));
}

TEST(CountRoutes, missing_rows_can_be_refused) {
  const Ids<std::int32_t> zeros{{1, 2, 0, 0}, 1, 2};
  EXPECT_THAT(refused(zeros, {.experts = 3, .missing = MissingRoutes::Refuse}),
              HasSubstr("token 1: found a row of zeros (not captured), wanted a route of every token"));
  const Ids<std::int32_t> sentinels{{1, 2, -1, -1}, 1, 2};
  EXPECT_THAT(refused(sentinels, {.experts = 3, .missing = MissingRoutes::Refuse}), HasSubstr("found a row of -1"));
}

TEST(CountRoutes, missing_rows_can_be_spread_without_losing_one) {
  const Ids<std::int32_t> ids{{0, 1, 0, 2, 0, 1, -1, -1, -1, -1}, 1, 2};  // 3, 2, 1 of 6; 4 ids are missing
  const Counted result = count(ids, {.experts = 4, .missing = MissingRoutes::Spread});
  EXPECT_THAT(result.counts, ElementsAre(5, 3, 2, 0));  // shares 2, 1⅓, ⅔: the largest remainder takes the rest
  EXPECT_EQ(result.report[0], (LayerReport{.recorded = 3, .sentinel = 2, .spread = 2}));
}

TEST(CountRoutes, nothing_is_spread_over_a_layer_without_routes) {
  const Ids<std::uint8_t> ids{{0, 0, 0, 0}, 1, 2};
  const Counted result = count(ids, {.experts = 3, .missing = MissingRoutes::Spread});
  EXPECT_THAT(result.counts, ElementsAre(0, 0, 0));
  EXPECT_EQ(result.report[0], (LayerReport{.zero = 2}));
}

TEST(CountRoutes, duplicates_are_counted_and_reported) {
  const Ids<std::uint8_t> ids{{1, 1, 2, 1}, 1, 2};
  const Counted result = count(ids, {.experts = 3});
  EXPECT_THAT(result.counts, ElementsAre(0, 3, 1));
  EXPECT_EQ(result.report[0], (LayerReport{.recorded = 2, .duplicates = 1}));
}

TEST(CountRoutes, invalid_rows_can_be_left_out) {
  const Ids<std::int32_t> ids{{1, 7, 2, 1, 1, -1}, 1, 2};
  const Counted result = count(ids, {.experts = 3, .invalid = InvalidRoutes::LeaveOut});
  EXPECT_THAT(result.counts, ElementsAre(0, 1, 1));
  EXPECT_EQ(result.report[0], (LayerReport{.recorded = 1, .invalid = 2}));
}

TEST(CountRoutes, padding_with_fake_routes_is_masked) {
  const Ids<std::uint8_t> ids{{1, 2, 0, 1, 2, 0}, 1, 2};
  const std::vector<std::uint8_t> mask = {1, 0, 2};
  const Counted result = count(SampleRoutes{.ids = ids.view(), .mask = mask}, {.experts = 3});
  EXPECT_THAT(result.counts, ElementsAre(1, 1, 2));
  EXPECT_EQ(result.report[0], (LayerReport{.recorded = 2}));
}

TEST(CountRoutes, a_mask_speaks_of_tokens_beyond_the_rows_too) {
  const Ids<std::uint8_t> ids{{1, 2}, 1, 2};
  const std::vector<std::uint8_t> mask = {1, 1, 0};
  const SampleRoutes sample{.ids = ids.view(), .length = 3, .mask = mask};
  EXPECT_EQ(count(sample, {.experts = 3}).report[0], (LayerReport{.recorded = 1, .absent = 1}));
  const SampleRoutes wrong{.ids = ids.view(), .mask = mask};
  EXPECT_THAT(refusal<InvalidInput>([&] { (void)count(wrong, {.experts = 3}); }),
              HasSubstr("mask: found 3 values, wanted 1, one per token"));
}

TEST(CountRoutes, a_masked_out_row_may_hold_anything) {
  const Ids<std::uint8_t> ids{{1, 2, 77, 88}, 1, 2};
  const std::vector<std::uint8_t> mask = {1, 0};
  EXPECT_THAT(count(SampleRoutes{.ids = ids.view(), .mask = mask}, {.experts = 3}).counts, ElementsAre(0, 1, 1));
}

TEST(CountRoutes, physical_ids_are_mapped_back) {
  const Ids<std::uint8_t> ids{{0, 3, 1, 2}, 1, 2};
  const std::vector<std::int32_t> map = {2, 0, 2, 1};  // expert 2 has two slots
  const Counted result = count(SampleRoutes{.ids = ids.view()}, {.experts = 3, .physical_to_logical = map});
  EXPECT_THAT(result.counts, ElementsAre(1, 1, 2));
  const std::vector<std::int32_t> wrong = {2, 0, 3, 1};
  EXPECT_THAT(refused(ids, {.experts = 3, .physical_to_logical = wrong}),
              HasSubstr("physical_to_logical[0, 2]: found 3, wanted 0 to 2"));
}

TEST(CountRoutes, types_too_narrow_for_the_experts_are_refused) {
  const Ids<std::uint8_t> narrow{{0, 1}, 1, 2};
  EXPECT_THAT(refused(narrow, {.experts = 300}),
              HasSubstr("found ids of type uint8, which ends at 255, wanted a type that holds 300 experts"));
  const Ids<std::int8_t> negative{{0, 1}, 1, 2};
  EXPECT_THAT(refused(negative, {.experts = 129}), HasSubstr("int8, which ends at 127"));
}

TEST(CountRoutes, more_than_256_experts_are_counted_in_16_bits) {
  const Ids<std::int32_t> ids{{511, 256, 300, 511}, 1, 2};
  const Counted result = count(ids, {.experts = 512});
  EXPECT_EQ(result.counts[511], 2U);
  EXPECT_EQ(result.counts[256], 1U);
  EXPECT_EQ(result.counts[300], 1U);
  const Ids<std::int32_t> wrong{{0, 65536 + 3}, 1, 2};  // 3 when cut to 16 bits
  EXPECT_THAT(refused(wrong, {.experts = 512}), HasSubstr("found id 65539, wanted 0 to 511"));
}

TEST(CountRoutes, rows_may_be_wide) {
  Ids<std::int32_t> ids{{}, 1, 500};
  for (std::int32_t i = 0; i < 2 * 500; ++i) ids.values.push_back(i % 500);
  ids.values[999] = 0;  // named twice
  const Counted result = count(ids, {.experts = 500});
  EXPECT_EQ(result.counts[0], 3U);
  EXPECT_EQ(result.counts[499], 1U);
  EXPECT_EQ(result.report[0], (LayerReport{.recorded = 2, .duplicates = 1}));
}

TEST(CountRoutes, strides_may_be_anything) {
  // Layers first, tokens reversed, every other id: [layers 2, tokens 3, top_k 2 · 2].
  const std::vector<std::int16_t> values = {1, 9, 2, 9, 0, 9, 1, 9, 2, 9, 0, 9, 3, 9, 0, 9, 3, 9, 1, 9, 3, 9, 2, 9};
  RouteIds ids{.data = std::as_bytes(std::span(values)).data() + 2 * 8,
               .type = IdType::I16,
               .tokens = 3,
               .layers = 2,
               .top_k = 2,
               .token_stride = -8,
               .layer_stride = 24,
               .id_stride = 4};
  EXPECT_THAT(count(SampleRoutes{.ids = ids}, {.experts = 4}).counts, ElementsAre(2, 2, 2, 0, 1, 1, 1, 3));
}

TEST(CountRoutes, a_sample_without_rows_has_nothing_recorded) {
  const RouteIds empty = RouteIds::from_bytes({}, IdType::U8, 1, 2);
  const Counted result = count(SampleRoutes{.ids = empty, .length = 4}, {.experts = 2});
  EXPECT_THAT(result.counts, ElementsAre(0, 0));
  EXPECT_EQ(result.report[0], (LayerReport{.absent = 4}));
}

TEST(CountRoutes, nonsense_options_are_refused) {
  const Ids<std::uint8_t> ids{{0, 1}, 1, 2};
  EXPECT_THAT(refused(ids, {.experts = 0}), HasSubstr("experts: found 0, wanted 1 to 65536"));
  EXPECT_THAT(refused(ids, {.experts = 65537}), HasSubstr("experts: found 65537"));
  EXPECT_THAT(refused(ids, {.experts = 1}), HasSubstr("ids of a row (top_k): found 2, wanted 1 to 1"));
  const std::vector<std::int32_t> map = {0};
  EXPECT_THAT(refused(ids, {.experts = 2, .physical_to_logical = map}),
              HasSubstr("physical_to_logical: found 1 values, wanted 1 layers of 2 to 65536 slots"));
}

TEST(RouteBytes, of_another_number_are_refused) {
  const std::vector<std::byte> bytes(24);
  const auto refused = [&](std::int64_t layers, std::int64_t top_k, std::optional<std::int64_t> tokens) {
    return refusal<InvalidInput>([&] { (void)RouteIds::from_bytes(bytes, IdType::I32, layers, top_k, tokens); });
  };
  EXPECT_EQ(RouteIds::from_bytes(bytes, IdType::I32, 1, 2).tokens, 3);
  EXPECT_THAT(refused(1, 2, 4), HasSubstr("found 24 bytes, wanted 32 for 4 tokens of 1 layers of 2 ids of 4 bytes"));
  EXPECT_THAT(refused(5, 2, std::nullopt), HasSubstr("found 24 bytes, wanted a multiple of 40"));
  EXPECT_THAT(refused(std::int64_t{1} << 40, std::int64_t{1} << 40, 1), HasSubstr("wanted fewer than 2^63 bytes"));
  EXPECT_THAT(refused(0, 2, 1), HasSubstr("layers: found 0"));
  EXPECT_THAT(refused(1, -2, 1), HasSubstr("top_k: found -2"));
  EXPECT_THAT(refused(1, 2, -1), HasSubstr("tokens: found -1"));
}

TEST(CountBatch, is_the_samples_one_by_one_on_any_number_of_threads) {
  const Ids<std::uint8_t> a{{1, 2, 0, 1}, 1, 2};
  const Ids<std::uint8_t> b{{2, 0}, 1, 2};
  const std::vector<SampleRoutes> samples = {{.ids = a.view()}, {.ids = b.view()}};
  const auto side_by_side = [](std::size_t n, const std::function<void(std::size_t)>& body) {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < n; ++i) threads.emplace_back([&body, i] { body(i); });
  };
  for (const ParallelFor& parallel : {ParallelFor(), ParallelFor(side_by_side)}) {
    std::vector<std::uint32_t> counts(6, 99);
    const auto reports = count_routes_batch(samples, {.experts = 3}, counts, parallel);
    EXPECT_THAT(counts, ElementsAre(1, 2, 1, 1, 0, 1));
    EXPECT_EQ(reports[1][0].recorded, 1);
  }
}

TEST(CountBatch, names_the_sample_that_is_wrong) {
  const Ids<std::uint8_t> good{{1, 2}, 1, 2};
  const Ids<std::uint8_t> layers{{1, 2, 0, 1}, 2, 2};
  const Ids<std::uint8_t> wrong{{1, 3}, 1, 2};
  std::vector<std::uint32_t> counts(6);
  const auto refused = [&](const RouteIds& second) {
    const std::vector<SampleRoutes> samples = {{.ids = good.view()}, {.ids = second}};
    return refusal<InvalidInput>([&] { (void)count_routes_batch(samples, {.experts = 3}, counts); });
  };
  EXPECT_THAT(refused(layers.view()),
              HasSubstr("ids[1]: found 2 layers with 2 ids per row, wanted 1 with 2 as in the first sample"));
  EXPECT_THAT(refused(wrong.view()), HasSubstr("ids[1], layer 0, token 0: found id 3, wanted 0 to 2"));
  EXPECT_THAT(count_routes_batch({}, {.experts = 3}, {}), IsEmpty());
}

}  // namespace
}  // namespace routepack
