// SPDX-License-Identifier: Apache-2.0
// Windows joined from parts: one window to look at, whose counts stay where they are.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "routepack/error.h"
#include "routepack/placement.h"
#include "routepack/plan.h"
#include "routepack/replay.h"
#include "routepack/window.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "support/window_parts.h"

namespace routepack {
namespace {

using testing::contents_of;
using testing::counts_of;
using testing::cut;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using testing::join_as_member;
using testing::join_parts;
using testing::make_narrow_window;
using testing::make_window;
using testing::names_of_parts;
using testing::random_window;
using testing::refusal;
using ::testing::StartsWith;
using testing::TemporaryFolder;
using testing::WindowSpec;

std::vector<std::int32_t> list(std::span<const std::int32_t> values) {
  return {values.begin(), values.end()};
}

/// Ten samples of two layers and four experts with all tensors; groups and atomic groups numbered as they come, and
/// none of them in two of the parts below.
WindowSpec full_spec() {
  WindowSpec spec = random_window(5, 10, 2, 4, 2, 3, 30);
  spec.groups = {0, 0, 1, 1, 2, 2, 2, 3, 4, 4};
  spec.atomic = {0, -1, 0, -1, 1, 1, -1, 2, 2, 3};
  for (int n = 0; n < 8; ++n) spec.pad_counts.push_back(static_cast<std::uint32_t>(1000 * n));
  for (int n = 0; n < 10; ++n) spec.ids.push_back(100 - n);
  spec.model = "a model";
  return spec;
}
const std::vector<std::int64_t> kCuts = {4, 7};

/// Two samples, one layer, three experts, one of them chosen per token, not said how many were recorded.
WindowSpec small_spec() {
  return {.samples = 2, .layers = 1, .experts = 3, .lengths = {5, 6}, .counts = {1, 2, 2, 0, 6, 0}};
}

TEST(JoinedWindow, has_the_samples_of_its_parts_one_after_another) {
  const WindowSpec whole = full_spec();
  const Window joined = join_parts(cut(whole, kCuts));
  EXPECT_EQ(joined.samples(), 10);
  EXPECT_EQ(joined.layers(), 2);
  EXPECT_EQ(joined.experts(), 4);
  EXPECT_EQ(joined.top_k(), 2);
  EXPECT_EQ(joined.kind(), WindowKind::Samples);
  EXPECT_EQ(joined.arrays().model, "a model");
  EXPECT_EQ(joined.parts().size(), 3U);
  EXPECT_EQ(list(joined.arrays().lengths), whole.lengths);
  EXPECT_EQ(list(joined.arrays().recorded), whole.recorded);
  EXPECT_EQ(list(joined.arrays().groups), whole.groups);
  EXPECT_EQ(list(joined.arrays().atomic), whole.atomic);
  EXPECT_THAT(joined.arrays().ids, ElementsAreArray(whole.ids));
  EXPECT_THAT(joined.arrays().pad_counts, ElementsAreArray(whole.pad_counts));
  EXPECT_EQ(counts_of(joined), whole.counts);
  EXPECT_TRUE(joined.whole() && joined.counts_here());
}

TEST(JoinedWindow, leaves_the_counts_where_and_as_the_parts_have_them) {
  const auto parts = cut(full_spec(), kCuts);  // the second one is in 16 bits
  const Window joined = join_parts(parts);
  for (const SampleId i : joined.sample_ids()) {
    const bool narrow = i.value() >= 4 && i.value() < 7;
    joined.visit_counts(i, [&](auto counts) {
      EXPECT_EQ(sizeof(counts[0]), narrow ? 2U : 4U) << i.value();
      EXPECT_EQ(counts.size(), 8U);
    });
  }
  const std::vector<Window> one = {make_window(parts[0])};
  const auto* before = std::get<std::span<const std::uint32_t>>(one[0].arrays().counts).data();
  Window::join(one, names_of_parts(1)).visit_counts(SampleId(0), [&](auto counts) {
    EXPECT_EQ(static_cast<const void*>(counts.data()), before);
  });
}

TEST(JoinedWindow, outlives_its_parts_and_is_copied_with_them) {
  std::unique_ptr<Window> copy;
  {
    const Window joined = join_parts(cut(full_spec(), kCuts));
    copy = std::make_unique<Window>(joined);
  }
  EXPECT_EQ(counts_of(*copy), full_spec().counts);
  EXPECT_EQ(list(copy->arrays().lengths), full_spec().lengths);
}

TEST(JoinedWindow, takes_samples_past_the_last_for_dummies) {
  const Window joined = join_parts(cut(full_spec(), kCuts));
  EXPECT_EQ(joined.length(SampleId(10)), 1);
  EXPECT_EQ(joined.atomic_group(SampleId(12)), -1);
  EXPECT_EQ(joined.recorded(SampleId(10), LayerId(1)), std::nullopt);
  EXPECT_TRUE(joined.holds(SampleId(10)));
}

TEST(JoinedWindow, takes_equal_numbers_in_two_parts_for_two_groups) {
  WindowSpec a = small_spec(), b = small_spec(), c = small_spec();
  a.groups = {7, -3};
  a.atomic = {5, 5};
  b.groups = {-3, 7};
  b.atomic = {-1, 5};
  c.groups = {7, 7};
  c.atomic = {0, 5};
  const Window joined = join_parts({a, b, c});
  EXPECT_THAT(joined.arrays().groups, ElementsAre(0, 1, 2, 3, 4, 4));
  EXPECT_THAT(joined.arrays().atomic, ElementsAre(0, 0, -1, 1, 2, 3));
  EXPECT_EQ(joined.atomic_group(SampleId(1)), 0);
  EXPECT_EQ(joined.atomic_group(SampleId(2)), -1);
}

TEST(JoinedWindow, says_per_layer_what_was_recorded_when_one_part_does) {
  WindowSpec per_sample = random_window(1, 3, 2, 4, 1, 4, 9), per_layer = random_window(2, 2, 2, 4, 1, 4, 9);
  const std::vector<std::int32_t> lengths = per_layer.lengths;
  per_layer.recorded = {lengths[0], 0, lengths[1], lengths[1]};
  std::fill_n(per_layer.counts.begin() + 4, 4, 0U);
  for (const bool per_layer_first : {false, true}) {
    const Window joined =
        join_parts(per_layer_first ? std::vector{per_layer, per_sample} : std::vector{per_sample, per_layer});
    ASSERT_EQ(joined.arrays().recorded.size(), 10U);
    const std::int32_t first_layered = per_layer_first ? 0 : 3, first_plain = per_layer_first ? 2 : 0;
    for (const LayerId l : joined.layer_ids()) {
      EXPECT_EQ(joined.recorded(SampleId(first_layered), l), l.value() == 0 ? lengths[0] : 0);
      EXPECT_EQ(joined.recorded(SampleId(first_layered + 1), l), lengths[1]);
      for (std::int32_t i = 0; i < 3; ++i) {
        EXPECT_EQ(joined.recorded(SampleId(first_plain + i), l), per_sample.lengths[static_cast<std::size_t>(i)]);
      }
    }
  }
}

TEST(JoinedWindow, knows_which_samples_lack_routes_in_all_parts) {
  WindowSpec spec = random_window(4, 6, 2, 4, 1, 2, 9);
  for (const std::size_t i : {1U, 5U}) {
    spec.recorded[i] = 0;
    std::fill_n(spec.counts.begin() + static_cast<std::ptrdiff_t>(i * 8), 8, 0U);
  }
  const Window joined = join_parts(cut(spec, {2, 3}));
  std::vector<bool> lacks;
  for (const SampleId i : joined.sample_ids()) lacks.push_back(joined.lacks_routes(i));
  EXPECT_THAT(lacks, ElementsAre(false, true, false, false, false, true));
}

struct Difference {
  std::string what;
  std::function<void(WindowSpec&)> change;  ///< of the second part
  std::string said;                         ///< behind the part's name
};

TEST(JoinedWindow, is_refused_when_parts_differ_and_says_in_what) {
  WindowSpec first = small_spec();
  first.model = "one";
  first.pad_counts = {1, 2, 3};
  const std::vector<Difference> differences = {
      {"E", [](auto& s) { s = {.samples = 1, .layers = 1, .experts = 4, .lengths = {5}, .counts = {1, 2, 2, 0}}; },
       "experts (E): found 4, wanted 3 as in part-0"},
      {"L",
       [](auto& s) { s = {.samples = 1, .layers = 2, .experts = 3, .lengths = {6}, .counts = {1, 2, 2, 0, 6, 0}}; },
       "layers (L): found 2, wanted 1 as in part-0"},
      {"k", [](auto& s) { s.top_k = 2; }, "top_k: found 2, wanted 1 as in part-0"},
      {"model", [](auto& s) { s.model = "two"; }, "model: found two, wanted one as in part-0"},
      {"no model", [](auto& s) { s.model = ""; }, "model: found none, wanted one as in part-0"},
      {"recorded", [](auto& s) { s.recorded = s.lengths; }, "recorded: found given, wanted absent as in part-0"},
      {"groups", [](auto& s) { s.groups = {1, 1}; }, "groups: found given, wanted absent as in part-0"},
      {"atomic", [](auto& s) { s.atomic = {-1, -1}; }, "atomic: found given, wanted absent as in part-0"},
      {"ids", [](auto& s) { s.ids = {1, 2}; }, "ids: found given, wanted absent as in part-0"},
      {"no pad_counts", [](auto& s) { s.pad_counts.clear(); }, "pad_counts: found absent, wanted given as in part-0"},
      {"pad_counts", [](auto& s) { s.pad_counts[1] = 9; }, "pad_counts[0, 1]: found 9, wanted 2 as in part-0"},
  };
  for (const Difference& difference : differences) {
    WindowSpec second = first;
    difference.change(second);
    EXPECT_EQ(refusal<InvalidInput>([&] { (void)join_parts({first, second}); }), "part-1: " + difference.said)
        << difference.what;
    EXPECT_THAT(refusal<InvalidInput>([&] { (void)join_parts({first, first, second}); }), StartsWith("part-2: "));
  }
}

TEST(JoinedWindow, is_refused_with_other_layer_numbers) {
  const auto numbered = [](std::vector<std::int64_t> numbers) {
    const auto owner = std::make_shared<const WindowSpec>(random_window(1, 2, 2, 4, 1, 2, 5));
    WindowArrays arrays = make_window(*owner).arrays();
    arrays.lengths = owner->lengths;
    arrays.recorded = owner->recorded;
    arrays.counts = std::span<const std::uint32_t>(owner->counts);
    arrays.layer_numbers = std::move(numbers);
    return Window(std::move(arrays), owner);
  };
  const auto said = [&](std::vector<std::int64_t> first, std::vector<std::int64_t> second) {
    return refusal<InvalidInput>(
        [&] { (void)Window::join({numbered(std::move(first)), numbered(std::move(second))}, names_of_parts(2)); });
  };
  EXPECT_EQ(said({3, 4}, {3, 5}), "part-1: metadata layers[1]: found 5, wanted 4 as in part-0");
  EXPECT_EQ(said({3, 4}, {}), "part-1: metadata layers: found absent, wanted given as in part-0");
  EXPECT_EQ(Window::join({numbered({3, 4}), numbered({3, 4})}, names_of_parts(2)).arrays().layer_numbers,
            (std::vector<std::int64_t>{3, 4}));
}

TEST(JoinedWindow, is_refused_with_an_aggregate) {
  const WindowSpec sum{.samples = 1, .layers = 1, .experts = 3, .kind = WindowKind::Aggregate, .counts = {9, 3, 1}};
  for (const auto& parts : {std::vector{small_spec(), sum}, std::vector{sum, sum}}) {
    EXPECT_THAT(refusal<InvalidInput>([&] { (void)join_parts(parts); }),
                HasSubstr("kind: found aggregate, wanted samples in a part"));
  }
}

TEST(JoinedWindow, is_refused_without_parts_or_a_name_for_each) {
  EXPECT_EQ(refusal<InvalidInput>([] { (void)Window::join({}, {}); }), "parts: found none, wanted at least one");
  EXPECT_EQ(refusal<InvalidInput>(
                [] { (void)Window::join({make_window(small_spec()), make_window(small_spec())}, names_of_parts(1)); }),
            "parts: found 1 names, wanted 2");
}

TEST(JoinedWindow, refuses_in_one_line_whatever_a_model_is_called) {
  WindowSpec first = small_spec(), second = small_spec();
  first.model = "two\nlines";
  second.model = "\x1b[2J\xff";
  EXPECT_THAT(refusal<InvalidInput>([&] { (void)join_parts({first, second}); }), HasSubstr("part-1: model: found"));
}

TEST(JoinedWindow, is_saved_as_the_undivided_window_would_be) {
  const TemporaryFolder folder;
  const WindowSpec whole = full_spec();
  make_window(whole).save(folder / "whole");
  join_parts(cut(whole, kCuts)).save(folder / "joined");  // 16 bits in one part do not show
  EXPECT_EQ(contents_of(folder / "joined"), contents_of(folder / "whole"));
  EXPECT_EQ(Window::load(folder / "joined").fingerprint(), make_window(whole).fingerprint());

  make_narrow_window(whole).save(folder / "whole");
  std::vector<Window> narrow;
  for (const auto& part : cut(whole, kCuts)) narrow.push_back(make_narrow_window(part));
  Window::join(std::move(narrow), names_of_parts(3)).save(folder / "joined");
  EXPECT_EQ(contents_of(folder / "joined"), contents_of(folder / "whole"));
}

TEST(JoinedWindow, is_saved_whole_however_large_a_part_is) {
  // 16-bit counts are widened a piece at a time: 327,680 of them are more than a piece.
  const TemporaryFolder folder;
  WindowSpec whole{.samples = 41, .layers = 8, .experts = 1024};
  whole.lengths.assign(41, 30'000);
  for (std::uint32_t n = 0; n < 41 * 8 * 1024; ++n) whole.counts.push_back(n % 29);
  whole.counts.back() = 0;
  std::vector<Window> parts = {make_narrow_window(testing::slice(whole, 0, 40)),
                               make_window(testing::slice(whole, 40, 41))};
  Window::join(std::move(parts), names_of_parts(2)).save(folder / "joined");
  EXPECT_EQ(counts_of(Window::load(folder / "joined")), whole.counts);
}

TEST(JoinedWindow, has_a_fingerprint_made_of_those_of_its_parts) {
  const auto parts = cut(full_spec(), kCuts);
  const Window joined = join_parts(parts);
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  const std::uint64_t count = parts.size();
  XXH3_64bits_update(state, &count, sizeof count);
  for (const WindowSpec& part : parts) {
    const std::string fingerprint = make_window(part).fingerprint();
    XXH3_64bits_update(state, fingerprint.data(), fingerprint.size());
  }
  EXPECT_EQ(joined.fingerprint(), fmt::format("xxh3:{:016x}", XXH3_64bits_digest(state)));
  XXH3_freeState(state);
  EXPECT_EQ(joined.with_fingerprint().fingerprint(), joined.fingerprint());
}

TEST(JoinedWindow, has_another_fingerprint_when_cut_elsewhere) {
  const WindowSpec whole = full_spec();
  EXPECT_NE(join_parts(cut(whole, {4, 7})).fingerprint(), join_parts(cut(whole, {4, 8})).fingerprint());
  EXPECT_NE(join_parts(cut(whole, {4, 7})).fingerprint(), make_window(whole).fingerprint());
  EXPECT_NE(join_parts({whole}).fingerprint(), make_window(whole).fingerprint());  // of one part, too
}

TEST(JoinedWindow, of_one_part_is_that_part) {
  const WindowSpec whole = full_spec();
  const Window joined = join_parts({whole});
  EXPECT_EQ(joined.parts().size(), 1U);
  EXPECT_EQ(counts_of(joined), whole.counts);
  EXPECT_EQ(list(joined.arrays().atomic), whole.atomic);
  const TemporaryFolder folder;
  joined.save(folder / "joined");
  make_window(whole).save(folder / "whole");
  EXPECT_EQ(contents_of(folder / "joined"), contents_of(folder / "whole"));
}

TEST(JoinedWindow, of_joined_windows_is_that_of_all_their_parts) {
  auto parts = cut(full_spec(), {2, 4, 7});
  parts[0].atomic = {9, -1};  // numbers of their own again
  parts[1].atomic = {9, 9};
  const Window flat = join_parts(parts);
  const Window nested = Window::join({join_parts({parts[0], parts[1]}), join_parts({parts[2], parts[3]})},
                                     std::vector<std::string>{"left", "right"});
  EXPECT_EQ(nested.parts().size(), 4U);
  EXPECT_EQ(nested.fingerprint(), flat.fingerprint());
  EXPECT_EQ(list(nested.arrays().atomic), list(flat.arrays().atomic));
  EXPECT_EQ(list(nested.arrays().groups), list(flat.arrays().groups));
  EXPECT_EQ(counts_of(nested), counts_of(flat));
  parts[2].model = "other";
  EXPECT_THAT(refusal<InvalidInput>([&] {
                (void)Window::join({join_parts({parts[0], parts[1]}), join_parts({parts[2]})},
                                   std::vector<std::string>{"left", "right"});
              }),
              StartsWith("right: model: found other, wanted \"a model\" as in left"));
}

TEST(Window, that_was_not_joined_is_its_only_part) {
  const Window window = make_window(small_spec());
  EXPECT_EQ(window.parts().data(), &window);
  EXPECT_EQ(window.parts().size(), 1U);
  EXPECT_TRUE(window.whole() && window.counts_here() && window.holds(SampleId(1)));
}

/// Of four parts the second and the last are here.
Window member_window(const WindowSpec& whole) {
  return join_as_member(cut(whole, {2, 4, 7}), {0, 1, 0, 1}, 1);
}

TEST(DividedWindow, knows_everything_but_the_counts_that_are_elsewhere) {
  const WindowSpec whole = full_spec();
  const Window mine = member_window(whole);
  EXPECT_FALSE(mine.whole());
  EXPECT_FALSE(mine.counts_here());
  EXPECT_EQ(list(mine.arrays().lengths), whole.lengths);
  EXPECT_EQ(list(mine.arrays().recorded), whole.recorded);
  EXPECT_THAT(mine.arrays().ids, ElementsAreArray(whole.ids));
  EXPECT_EQ(mine.fingerprint(), join_parts(cut(whole, {2, 4, 7})).fingerprint());
  for (const SampleId i : mine.sample_ids()) {
    const bool here = (i.value() >= 2 && i.value() < 4) || i.value() >= 7;
    EXPECT_EQ(mine.holds(i), here) << i.value();
    std::vector<std::uint32_t> seen;
    const auto look = [&] { mine.visit_counts(i, [&](auto counts) { seen.assign(counts.begin(), counts.end()); }); };
    if (here) {
      look();
      const auto begin = whole.counts.begin() + i.value() * 8;
      EXPECT_EQ(seen, std::vector<std::uint32_t>(begin, begin + 8));
    } else {
      EXPECT_EQ(refusal<InvalidInput>(look),
                fmt::format("window: the counts of sample {} are in another process", i.value()));
    }
  }
}

TEST(DividedWindow, adds_up_the_demand_that_is_here) {
  const WindowSpec whole = full_spec();
  const auto parts = cut(whole, {2, 4, 7});
  std::vector<std::int64_t> here(8);
  for (const auto& part : {parts[1], parts[3]}) {
    for (std::size_t n = 0; n < part.counts.size(); ++n) here[n % 8] += part.counts[n];
  }
  EXPECT_EQ(aggregate_demand(member_window(whole)), here);
}

TEST(DividedWindow, is_not_saved_without_all_counts) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal<InvalidInput>([&] { member_window(full_spec()).save(folder / "w"); }),
              HasSubstr("w: counts: some are in another process"));
  EXPECT_TRUE(folder.names().empty());
}

TEST(DividedWindow, is_neither_scored_nor_planned_by_one_process_alone) {
  const Window mine = member_window(full_spec());
  const Instance instance(mine, Topology::megatron({.dp = 2, .ep = 2}), CostModel({{"full", 1.0, 1.0}}), 200);
  const std::string said = "found the counts of 5 of its 10 samples";
  EXPECT_THAT(refusal<InvalidInput>([&] { (void)make_plan(instance, {.effort = Effort::Fast, .threads = 1}); }),
              HasSubstr(said));
  const auto layout = pack_first_fit_decreasing(instance);
  EXPECT_THAT(
      refusal<InvalidInput>([&] { (void)evaluate(instance, Placement::identity(2, 4, 2), std::get<Layout>(layout)); }),
      HasSubstr(said));
}

TEST(DividedWindow, of_which_all_counts_are_here_can_be_used_alone_and_saved) {
  const WindowSpec whole = full_spec();
  const Window mine = join_as_member(cut(whole, kCuts), {0, 0, 0}, 0);
  EXPECT_FALSE(mine.whole());  // others wait for what this one knows
  EXPECT_TRUE(mine.counts_here() && mine.holds(SampleId(9)));
  const Window joined = join_parts(cut(whole, kCuts));
  const auto score = [](const Window& window) {
    const Instance instance(window, Topology::megatron({.dp = 2, .ep = 2}), CostModel({{"full", 1.0, 1.0}}), 200);
    const auto layout = pack_first_fit_decreasing(instance);
    return evaluate(instance, Placement::identity(2, 4, 2), std::get<Layout>(layout)).joint;
  };
  EXPECT_EQ(score(mine), score(joined));
  const TemporaryFolder folder;
  mine.save(folder / "mine");
  joined.save(folder / "joined");
  EXPECT_EQ(contents_of(folder / "mine"), contents_of(folder / "joined"));
  // And stays divided inside another.
  EXPECT_FALSE(Window::join({mine, joined}, names_of_parts(2)).whole());
}

TEST(DividedWindow, refuses_tensors_that_do_not_belong_together) {
  const WindowSpec spec = small_spec();
  const Window window = make_window(spec);
  WindowArrays arrays = window.arrays();
  EXPECT_THAT(refusal<InvalidInput>([&] { (void)Window::without_counts(arrays, nullptr, "xxh3:0", "here"); }),
              HasSubstr("here: tensor counts: found 6 values, wanted 0"));
  arrays.counts = std::span<const std::uint16_t>();
  arrays.lengths = arrays.lengths.first(1);
  EXPECT_THAT(refusal<InvalidInput>([&] { (void)Window::without_counts(arrays, nullptr, "xxh3:0", "here"); }),
              HasSubstr("here: tensor lengths: found 1 values, wanted 2"));
}

TEST(JoinWindows, takes_windows_in_parts_as_it_takes_whole_ones) {
  WindowSpec whole = full_spec();
  whole.ids.clear();
  const auto parts = cut(whole, kCuts);
  const Window copied = join_windows(std::vector<Window>{join_parts({parts[0], parts[1]}), make_window(parts[2])});
  EXPECT_EQ(copied.parts().size(), 1U);
  EXPECT_EQ(counts_of(copied), whole.counts);
}

}  // namespace
}  // namespace routepack
