// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "routepack/error.h"
#include "routepack/replay.h"
#include "support/builders.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace routepack {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::refusal;
using testing::TemporaryFolder;

const WindowBuilderOptions kFour{.experts = 4, .top_k = 2};

std::vector<std::uint32_t> counts_of(const Window& window) {
  std::vector<std::uint32_t> all;
  for (const SampleId i : window.sample_ids()) {
    window.visit_counts(i, [&](auto counts) { all.insert(all.end(), counts.begin(), counts.end()); });
  }
  return all;
}

template <class T>
std::vector<T> values(std::span<const T> span) {
  return {span.begin(), span.end()};
}

SampleRoutes routes(const std::vector<std::uint8_t>& ids, std::int64_t layers = 1) {
  return {.ids = RouteIds::from_bytes(std::as_bytes(std::span(ids)), IdType::U8, layers, 2)};
}

void add(WindowBuilder& builder, SampleInfo info, const std::vector<std::uint32_t>& counts) {
  builder.add_counts(info, counts);
}

TEST(WindowBuilder, makes_a_window_of_routes) {
  WindowBuilder builder(kFour);
  const std::vector<std::uint8_t> ids = {0, 2, 2, 1};
  const CountReport report = builder.add_routes({.length = 3}, routes(ids), {});
  EXPECT_EQ(report[0].absent, 1);
  const Window window = builder.window();
  EXPECT_THAT(counts_of(window), ElementsAre(1, 1, 2, 0));
  EXPECT_THAT(values(window.arrays().lengths), ElementsAre(3));
  EXPECT_THAT(values(window.arrays().recorded), ElementsAre(2));
  EXPECT_THAT(values(window.arrays().ids), IsEmpty());
}

TEST(WindowBuilder, spread_rows_are_recorded_rows) {
  WindowBuilder builder(kFour);
  const std::vector<std::uint8_t> ids = {0, 2};
  (void)builder.add_routes({.length = 2}, routes(ids), {.missing = MissingRoutes::Spread});
  EXPECT_THAT(counts_of(builder.window()), ElementsAre(2, 0, 2, 0));
  EXPECT_THAT(values(builder.window().arrays().recorded), ElementsAre(2));
}

TEST(WindowBuilder, keeps_rows_per_layer_where_layers_differ) {
  WindowBuilder builder(kFour);
  const std::vector<std::uint8_t> ids = {0, 0, 1, 2};  // layer 0 was not captured
  (void)builder.add_routes({.length = 1}, routes(ids, 2), {});
  EXPECT_THAT(values(builder.window().arrays().recorded), ElementsAre(0, 1));
}

TEST(WindowBuilder, orders_samples_by_id) {
  WindowBuilder builder(kFour);
  add(builder, {.length = 2, .id = 30}, {2, 2, 0, 0});
  add(builder, {.length = 1, .id = -7}, {0, 0, 1, 1});
  const Window window = builder.window();
  EXPECT_THAT(values(window.arrays().ids), ElementsAre(-7, 30));
  EXPECT_THAT(counts_of(window), ElementsAre(0, 0, 1, 1, 2, 2, 0, 0));
}

TEST(WindowBuilder, orders_samples_without_ids_by_arrival) {
  WindowBuilder builder(kFour);
  add(builder, {.length = 2, .group = 5}, {2, 2, 0, 0});
  add(builder, {.length = 1, .atomic = 3}, {0, 0, 1, 1});
  const Window window = builder.window();
  EXPECT_THAT(values(window.arrays().lengths), ElementsAre(2, 1));
  EXPECT_THAT(values(window.arrays().groups), ElementsAre(5, -1));
  EXPECT_THAT(values(window.arrays().atomic), ElementsAre(-1, 3));
}

TEST(WindowBuilder, stores_16_bits_until_a_count_needs_32) {
  WindowBuilder builder(kFour);
  add(builder, {.length = 65536}, {65535, 65535, 0, 0});
  EXPECT_EQ(builder.window().arrays().counts.index(), 0U);
  add(builder, {.length = 65536}, {65536, 65536, 0, 0});
  const Window window = builder.window();
  EXPECT_EQ(window.arrays().counts.index(), 1U);
  EXPECT_THAT(counts_of(window), ElementsAre(65535, 65535, 0, 0, 65536, 65536, 0, 0));
}

TEST(WindowBuilder, spills_to_a_file_that_has_no_name) {
  const TemporaryFolder folder;
  WindowBuilder builder({.experts = 4, .top_k = 2, .memory_bytes = 20, .spill_folder = folder.path()});
  for (std::uint32_t i = 0; i < 50; ++i) add(builder, {.length = 100'000, .id = 50 - i}, {i, i, 2 * i, 0});
  add(builder, {.length = 100'000, .id = 99}, {70'000, 70'000, 0, 0});
  EXPECT_THAT(folder.names(), IsEmpty());
  builder.seal(folder / "w.safetensors");
  EXPECT_THAT(folder.names(), ElementsAre("w.safetensors"));
  const Window window = Window::load(folder / "w.safetensors");
  ASSERT_EQ(window.samples(), 51);
  const auto counts = counts_of(window);
  for (std::uint32_t i = 0; i < 50; ++i) EXPECT_EQ(counts[4 * i + 2], 2 * (49 - i));
  EXPECT_EQ(counts[200], 70'000U);
}

TEST(WindowBuilder, a_folder_that_cannot_take_the_spill_loses_no_sample) {
  WindowBuilder builder({.experts = 4, .top_k = 2, .memory_bytes = 8, .spill_folder = "/nowhere"});
  add(builder, {.length = 2}, {2, 2, 0, 0});
  EXPECT_THAT(refusal<IoError>([&] { add(builder, {.length = 2}, {0, 2, 2, 0}); }),
              HasSubstr("/nowhere: cannot create a temporary file"));
  EXPECT_EQ(builder.samples(), 1);
  EXPECT_THAT(counts_of(builder.window()), ElementsAre(2, 2, 0, 0));
}

TEST(WindowBuilder, starts_empty_after_sealing) {
  const TemporaryFolder folder;
  WindowBuilder builder(kFour);
  add(builder, {.length = 2, .id = 1}, {2, 2, 0, 0});
  builder.seal(folder / "a.safetensors");
  EXPECT_EQ(builder.samples(), 0);
  add(builder, {.length = 1, .id = 1}, {0, 0, 0, 0, 1, 1, 0, 0});  // the next window may have other layers
  builder.seal(folder / "b.safetensors");
  EXPECT_EQ(Window::load(folder / "a.safetensors").layers(), 1);
  EXPECT_EQ(Window::load(folder / "b.safetensors").layers(), 2);
}

TEST(WindowBuilder, keeps_its_samples_when_sealing_fails) {
  WindowBuilder builder(kFour);
  add(builder, {.length = 2}, {2, 2, 0, 0});
  (void)refusal<IoError>([&] { builder.seal("/nowhere/w.safetensors"); });
  EXPECT_EQ(builder.samples(), 1);
}

TEST(WindowBuilder, an_empty_window_is_refused) {
  WindowBuilder builder(kFour);
  EXPECT_THAT(refusal<InvalidInput>([&] { builder.seal("w.safetensors"); }), HasSubstr("found no samples"));
}

TEST(WindowBuilder, refuses_samples_that_no_window_could_hold) {
  WindowBuilder builder(kFour);
  add(builder, {.length = 2, .id = 1}, {2, 2, 0, 0});
  const auto refused = [&](SampleInfo info, const std::vector<std::uint32_t>& counts,
                           const std::vector<std::int32_t>& rows = {}) {
    const std::string message = refusal<InvalidInput>([&] { builder.add_counts(info, counts, rows); });
    EXPECT_EQ(builder.samples(), 1);
    return message;
  };
  EXPECT_THAT(refused({.length = 2, .id = 1}, {2, 2, 0, 0}), HasSubstr("sample with id 1: found an id that is there"));
  EXPECT_THAT(refused({.length = 2}, {2, 2, 0, 0}), HasSubstr("found no id, wanted ids for all samples"));
  EXPECT_THAT(refused({.length = 0, .id = 2}, {2, 2, 0, 0}), HasSubstr("length: found 0"));
  EXPECT_THAT(refused({.length = 2, .id = 2}, {3, 1, 0, 0}), HasSubstr("counts[0, 0]: found 3, wanted at most 2"));
  EXPECT_THAT(refused({.length = 2, .id = 2}, {2, 1, 0, 0}), HasSubstr("found a sum of 3, wanted a multiple of top_k"));
  EXPECT_THAT(refused({.length = 2, .id = 2}, {2, 2, 2, 0}), HasSubstr("wanted at most top_k 2 times length 2"));
  EXPECT_THAT(refused({.length = 2, .id = 2}, {2, 2, 0, 0}, {1}), HasSubstr("found a sum of 4, wanted 2"));
  EXPECT_THAT(refused({.length = 2, .id = 2}, {2, 2, 0, 0}, {3}), HasSubstr("recorded[0]: found 3"));
  EXPECT_THAT(refused({.length = 2, .id = 2}, {2, 2, 0, 0}, {1, 1}), HasSubstr("recorded: found 2 values"));
  EXPECT_THAT(refused({.length = 2, .id = 2}, {1, 1, 0, 0, 1, 1, 0, 0}),
              HasSubstr("found 2 layers, wanted 1 as in the samples before"));
  EXPECT_THAT(refused({.length = 2, .id = 2}, {2, 2, 0}), HasSubstr("counts: found 3 values, wanted [layers, 4]"));
  EXPECT_THAT(refused({.length = 2, .id = 2, .atomic = -2}, {2, 2, 0, 0}), HasSubstr("atomic: found -2"));
}

TEST(WindowBuilder, refuses_routes_of_another_model) {
  WindowBuilder builder(kFour);
  const std::vector<std::uint8_t> ids = {0, 2};
  EXPECT_THAT(refusal<InvalidInput>([&] { (void)builder.add_routes({.length = 1}, routes(ids), {.experts = 8}); }),
              HasSubstr("experts: found 8, wanted 4"));
  SampleRoutes one = routes(ids);
  one.ids.top_k = 1;
  EXPECT_THAT(refusal<InvalidInput>([&] { (void)builder.add_routes({.length = 1}, one, {}); }),
              HasSubstr("found 1 ids per row, wanted top_k 2"));
}

TEST(WindowBuilder, refuses_options_that_contradict_each_other) {
  const auto refused = [](const WindowBuilderOptions& options) {
    return refusal<InvalidInput>([&] { const WindowBuilder builder(options); });
  };
  EXPECT_THAT(refused({.experts = 0, .top_k = 1}), HasSubstr("experts: found 0"));
  EXPECT_THAT(refused({.experts = 2, .top_k = 3}), HasSubstr("top_k: found 3, wanted 1 to 2"));
  EXPECT_THAT(refused({.experts = 2, .top_k = 1, .layers = -1}), HasSubstr("layers: found -1"));
  EXPECT_THAT(refused({.experts = 2, .top_k = 1, .layers = 2, .layer_numbers = {1}}), HasSubstr("found 2 layers"));
  EXPECT_THAT(refused({.experts = 2, .top_k = 1, .layer_numbers = {-1}}), HasSubstr("layers[0]: found -1"));
  EXPECT_THAT(refused({.experts = 2, .top_k = 1, .layers = 2, .pad_counts = {1, 2}}), HasSubstr("pad_counts"));
}

TEST(WindowBuilder, merges_the_partial_results_of_workers) {
  WindowBuilder one(kFour);
  WindowBuilder two(kFour);
  add(one, {.length = 2, .id = 3, .group = 1}, {2, 2, 0, 0});
  add(two, {.length = 70'000, .id = 2, .group = 0}, {70'000, 0, 70'000, 0});
  WindowBuilder all(kFour);
  all.merge(one.window());
  all.merge(two.window());
  const Window window = all.window();
  EXPECT_THAT(values(window.arrays().ids), ElementsAre(2, 3));
  EXPECT_THAT(values(window.arrays().groups), ElementsAre(0, 1));
  EXPECT_THAT(counts_of(window), ElementsAre(70'000, 0, 70'000, 0, 2, 2, 0, 0));
}

TEST(WindowBuilder, merges_all_of_a_window_or_nothing) {
  WindowBuilder part(kFour);
  add(part, {.length = 2, .id = 1}, {2, 2, 0, 0});
  add(part, {.length = 2, .id = 2}, {2, 2, 0, 0});
  WindowBuilder all({.experts = 4, .top_k = 2, .memory_bytes = 0, .spill_folder = "/nowhere"});
  add(all, {.length = 2, .id = 2}, {0, 0, 2, 2});
  EXPECT_THAT(refusal<InvalidInput>([&] { all.merge(part.window(), "w"); }),
              HasSubstr("w: sample with id 2: found an id that is there already"));
  WindowBuilder full({.experts = 4, .top_k = 2, .memory_bytes = 8, .spill_folder = "/nowhere"});
  (void)refusal<IoError>([&] { full.merge(part.window()); });
  EXPECT_EQ(full.samples(), 0);
  add(full, {.length = 2}, {0, 0, 2, 2});  // no trace is left, not even that samples have ids
  EXPECT_THAT(counts_of(full.window()), ElementsAre(0, 0, 2, 2));
}

TEST(WindowBuilder, refuses_to_merge_another_model) {
  testing::WindowSpec spec{.samples = 1, .layers = 1, .experts = 4, .top_k = 2, .lengths = {2}, .counts = {2, 2, 0, 0}};
  const auto refused = [&](const WindowBuilderOptions& options) {
    WindowBuilder builder(options);
    return refusal<InvalidInput>([&] { builder.merge(testing::make_window(spec), "w"); });
  };
  EXPECT_THAT(refused({.experts = 5, .top_k = 2}), HasSubstr("w: experts: found 4, wanted 5"));
  EXPECT_THAT(refused({.experts = 4, .top_k = 1}), HasSubstr("w: top_k: found 2, wanted 1"));
  EXPECT_THAT(refused({.experts = 4, .top_k = 2, .layers = 3}), HasSubstr("w: found 1 layers, wanted 3"));
  spec.model = "a";
  EXPECT_THAT(refused({.experts = 4, .top_k = 2, .model = "b"}), HasSubstr("w: model: found a, wanted b"));
  spec.kind = WindowKind::Aggregate;
  EXPECT_THAT(refused(kFour), HasSubstr("w: found an aggregate"));
}

TEST(WindowBuilder, takes_samples_from_several_threads) {
  WindowBuilder builder({.experts = 4, .top_k = 2, .memory_bytes = 256});
  {
    std::vector<std::jthread> threads;
    for (std::int64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&builder, t] {
        const std::vector<std::uint8_t> ids = {0, 2, 2, 1};
        for (std::int64_t i = 0; i < 50; ++i) (void)builder.add_routes({.length = 2, .id = 4 * i + t}, routes(ids), {});
      });
    }
  }
  const Window window = builder.window();
  ASSERT_EQ(window.samples(), 200);
  for (std::int64_t i = 0; i < 200; ++i) EXPECT_EQ(window.arrays().ids[static_cast<std::size_t>(i)], i);
}

Window window_of(testing::WindowSpec spec) {
  return testing::make_window(std::move(spec));
}

testing::WindowSpec small() {
  return {.samples = 1, .layers = 1, .experts = 2, .top_k = 1, .lengths = {3}, .counts = {2, 1}};
}

TEST(JoinWindows, puts_the_samples_of_parts_one_after_another) {
  testing::WindowSpec second = small();
  second.lengths = {100'000};
  second.counts = {70'000, 0};
  second.groups = {4};
  const std::vector<Window> parts = {window_of(small()), window_of(second)};
  const Window joined = join_windows(parts);
  EXPECT_THAT(counts_of(joined), ElementsAre(2, 1, 70'000, 0));
  EXPECT_THAT(values(joined.arrays().lengths), ElementsAre(3, 100'000));
  EXPECT_THAT(values(joined.arrays().groups), ElementsAre(-1, 4));
  EXPECT_THAT(values(joined.arrays().atomic), IsEmpty());
}

TEST(JoinWindows, widens_recorded_rows_where_a_part_has_them_per_layer) {
  testing::WindowSpec one{.samples = 1, .layers = 2, .experts = 2, .top_k = 1, .lengths = {3}, .counts = {2, 1, 1, 2}};
  testing::WindowSpec two = one;
  one.recorded = {3};
  two.recorded = {3, 0};
  two.counts = {2, 1, 0, 0};
  const std::vector<Window> parts = {window_of(one), window_of(two)};
  EXPECT_THAT(values(join_windows(parts).arrays().recorded), ElementsAre(3, 3, 3, 0));
}

TEST(JoinWindows, refuses_parts_that_do_not_belong_together) {
  const auto refused = [](const testing::WindowSpec& first, const testing::WindowSpec& second) {
    return refusal<InvalidInput>([&] {
      const std::vector<Window> parts = {window_of(first), window_of(second)};
      (void)join_windows(parts);
    });
  };
  testing::WindowSpec other = small();
  other.experts = 1;
  other.counts = {3};
  EXPECT_THAT(refused(small(), other), HasSubstr("parts[1]: experts: found 1, wanted 2 as in the first part"));
  other = small();
  other.top_k = 2;
  EXPECT_THAT(refused(small(), other), HasSubstr("parts[1]: top_k: found 2, wanted 1"));
  other = small();
  other.layers = 2;
  other.counts = {2, 1, 0, 0};
  EXPECT_THAT(refused(small(), other), HasSubstr("parts[1]: layers: found 2, wanted 1"));
  other = small();
  other.ids = {1};
  EXPECT_THAT(refused(small(), other), HasSubstr("wanted ids in all parts or in none"));
  EXPECT_THAT(refused(other, other), HasSubstr("parts[1]: ids: found 1 again"));
  other = small();
  other.recorded = {3};
  EXPECT_THAT(refused(small(), other), HasSubstr("wanted it in all parts or in none"));
  testing::WindowSpec named = small();
  named.model = "a";
  other = small();
  other.model = "b";
  EXPECT_THAT(refused(named, other), HasSubstr("parts[1]: model: found b, wanted a as in the parts before"));
  other = small();
  other.kind = WindowKind::Aggregate;
  EXPECT_THAT(refused(small(), other), HasSubstr("parts[1]: found an aggregate"));
  EXPECT_THAT(refusal<InvalidInput>([] { (void)join_windows({}); }), HasSubstr("found none"));
}

}  // namespace
}  // namespace routepack
