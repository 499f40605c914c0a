// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "routepack/error.h"
#include "routepack/window.h"
#include "support/builders.h"
#include "support/refusal.h"
#include "support/safetensors_bytes.h"
#include "support/temporary_folder.h"

namespace routepack {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::raw;
using testing::SafetensorsText;
using ::testing::StartsWith;
using testing::TemporaryFolder;

/// Two samples, one layer, three experts, one of them chosen per token.
SafetensorsText good(std::string_view format = "routepack.window/1", std::string_view top_k = "1") {
  return SafetensorsText()
      .metadata("format", format)
      .metadata("top_k", top_k)
      .tensor("lengths", "I32", "[2]", raw<std::int32_t>({5, 6}))
      .tensor("counts", "U16", "[2, 1, 3]", raw<std::uint16_t>({1, 2, 2, 0, 6, 0}));
}

/// The message without the path in front.
std::string refusal_of(const std::string& bytes) {
  const TemporaryFolder folder;
  const auto path = folder.file("w.safetensors", bytes);
  const std::string message = testing::refusal<InvalidInput>([&] { (void)Window::load(path); });
  EXPECT_THAT(message, StartsWith(path.string() + ": "));
  return message.size() < path.string().size() + 2 ? message : message.substr(path.string().size() + 2);
}

Window load(const std::string& bytes) {
  const TemporaryFolder folder;
  return Window::load(folder.file("w.safetensors", bytes));  // the mapping outlives the folder
}

std::vector<std::uint32_t> counts_of(const Window& window) {
  std::vector<std::uint32_t> all;
  for (const SampleId i : window.sample_ids()) {
    window.visit_counts(i, [&](auto counts) { all.insert(all.end(), counts.begin(), counts.end()); });
  }
  return all;
}

TEST(WindowFile, is_read) {
  const Window window = load(good().bytes());
  EXPECT_EQ(window.samples(), 2);
  EXPECT_EQ(window.layers(), 1);
  EXPECT_EQ(window.experts(), 3);
  EXPECT_EQ(window.top_k(), 1);
  EXPECT_EQ(window.kind(), WindowKind::Samples);
  EXPECT_EQ(window.length(SampleId(1)), 6);
  EXPECT_THAT(counts_of(window), ElementsAre(1, 2, 2, 0, 6, 0));
}

TEST(WindowFile, is_read_at_every_misalignment) {
  for (std::size_t padding = 0; padding < 8; ++padding) {
    const Window window = load(good().tensor("ids", "I64", "[2]", raw<std::int64_t>({-1, 1})).bytes(padding));
    EXPECT_EQ(window.length(SampleId(0)), 5);
    EXPECT_THAT(counts_of(window), ElementsAre(1, 2, 2, 0, 6, 0));
    EXPECT_EQ(window.arrays().ids[0], -1);
  }
}

TEST(WindowFile, may_store_counts_in_three_types) {
  EXPECT_THAT(
      counts_of(load(good().replace("counts", "U32", "[2, 1, 3]", raw<std::uint32_t>({5, 0, 0, 0, 6, 0})).bytes())),
      ElementsAre(5, 0, 0, 0, 6, 0));
  EXPECT_THAT(
      counts_of(load(good().replace("counts", "I32", "[2, 1, 3]", raw<std::int32_t>({5, 0, 0, 0, 6, 0})).bytes())),
      ElementsAre(5, 0, 0, 0, 6, 0));
}

TEST(WindowFile, ignores_tensors_that_windows_do_not_know) {
  EXPECT_EQ(load(good().tensor("weights", "F16", "[2, 2]", "12345678").bytes()).samples(), 2);
}

TEST(WindowFile, keeps_metadata_that_windows_do_not_know) {
  const Window window = load(good().metadata("model", "m").metadata("layers", "[7]").metadata("source", "s").bytes());
  EXPECT_EQ(window.arrays().model, "m");
  EXPECT_THAT(window.arrays().layer_numbers, ElementsAre(7));
  EXPECT_THAT(window.arrays().metadata, ElementsAre(Pair("source", "s")));
}

TEST(WindowFile, may_be_an_aggregate_without_lengths) {
  const Window window = load(SafetensorsText()
                                 .metadata("format", "routepack.window/1")
                                 .metadata("top_k", "1")
                                 .metadata("kind", "aggregate")
                                 .tensor("counts", "U32", "[1, 1, 2]", raw<std::uint32_t>({9, 9}))
                                 .bytes());
  EXPECT_EQ(window.kind(), WindowKind::Aggregate);
}

TEST(WindowFile, comes_back_equal_after_saving) {
  testing::WindowSpec spec = testing::random_window(1, 5, 2, 3, 2, 1, 9);
  spec.groups = {0, 0, 1, 1, -4};
  spec.atomic = {-1, 3, 3, -1, 0};
  spec.pad_counts = {1, 2, 3, 4, 5, 6};
  spec.ids = {9, -8, 7, 6, INT64_MAX};
  spec.model = "a \"model\"";
  const Window window = testing::make_window(spec);
  const TemporaryFolder folder;
  window.save(folder / "w");
  const Window again = Window::load(folder / "w");
  EXPECT_EQ(again.top_k(), 2);
  EXPECT_EQ(again.arrays().model, spec.model);
  EXPECT_TRUE(std::ranges::equal(again.arrays().lengths, spec.lengths));
  EXPECT_EQ(counts_of(again), spec.counts);
  EXPECT_TRUE(std::ranges::equal(again.arrays().recorded, spec.recorded));
  EXPECT_TRUE(std::ranges::equal(again.arrays().groups, spec.groups));
  EXPECT_TRUE(std::ranges::equal(again.arrays().atomic, spec.atomic));
  EXPECT_TRUE(std::ranges::equal(again.arrays().pad_counts, spec.pad_counts));
  EXPECT_TRUE(std::ranges::equal(again.arrays().ids, spec.ids));
  EXPECT_EQ(again.fingerprint(), window.fingerprint());
}

TEST(WindowFile, keeps_u16_counts_metadata_and_kind_when_saved_again) {
  const TemporaryFolder folder;
  const std::string bytes = SafetensorsText()
                                .metadata("kind", "aggregate")
                                .metadata("format", "routepack.window/1")
                                .metadata("source", "s")
                                .metadata("layers", "[3]")
                                .metadata("top_k", "1")
                                .tensor("counts", "U16", "[1, 1, 2]", raw<std::uint16_t>({9, 9}))
                                .bytes();
  Window::load(folder.file("w", bytes)).save(folder / "w");  // onto the file that it is mapped from
  const Window again = Window::load(folder / "w");
  EXPECT_EQ(again.kind(), WindowKind::Aggregate);
  EXPECT_THAT(again.arrays().layer_numbers, ElementsAre(3));
  EXPECT_THAT(again.arrays().metadata, ElementsAre(Pair("source", "s")));
  EXPECT_TRUE(std::holds_alternative<std::span<const std::uint16_t>>(again.arrays().counts));
  EXPECT_THAT(folder.names(), ElementsAre("w"));
}

TEST(WindowFile, keeps_recorded_per_layer_when_saved) {
  testing::WindowSpec spec{.samples = 2, .layers = 2, .experts = 1, .lengths = {3, 3}, .counts = {1, 2, 3, 0}};
  spec.recorded = {1, 2, 3, 0};
  const TemporaryFolder folder;
  testing::make_window(spec).save(folder / "w");
  EXPECT_THAT(Window::load(folder / "w").arrays().recorded, ElementsAre(1, 2, 3, 0));
}

TEST(WindowFile, is_not_written_into_a_missing_folder) {
  const TemporaryFolder folder;
  const Window window = load(good().bytes());
  EXPECT_THAT(testing::refusal<IoError>([&] { window.save(folder / "missing/w"); }),
              HasSubstr("missing/w: cannot create"));
  EXPECT_THAT(testing::refusal<IoError>([&] { window.save("/dev/full"); }), HasSubstr("No space left"));
  EXPECT_TRUE(folder.names().empty());
}

TEST(WindowFile, that_is_missing_is_named) {
  EXPECT_THAT(testing::refusal<IoError>([] { (void)Window::load("/nowhere/w"); }),
              HasSubstr("/nowhere/w: cannot open for reading: No such file or directory"));
}

TEST(WindowFile, is_refused_when_truncated) {
  const std::string bytes = good().bytes();
  EXPECT_THAT(refusal_of(bytes.substr(0, bytes.size() - 1)), StartsWith("tensor counts: data_offsets[1]: found"));
}

TEST(WindowFile, is_refused_without_format) {
  EXPECT_THAT(refusal_of(SafetensorsText().tensor("counts", "U16", "[1, 1, 1]", "ab").bytes()),
              StartsWith("metadata format: found nothing, wanted routepack.window/1"));
  EXPECT_THAT(refusal_of(good("pt").bytes()), StartsWith("metadata format: found pt, wanted routepack.window/1"));
}

TEST(WindowFile, is_refused_in_another_major_version) {
  EXPECT_THAT(
      refusal_of(good("routepack.window/2").bytes()),
      StartsWith("metadata format: found \"routepack.window/2\", wanted routepack.window/1, the only major version"));
}

TEST(WindowFile, is_refused_when_top_k_is_no_positive_integer) {
  for (const std::string_view top_k : {"", "0", "-1", "2.5", "4 ", "99999999999999999999"}) {
    EXPECT_THAT(refusal_of(good("routepack.window/1", top_k).bytes()), StartsWith("metadata top_k: found ")) << top_k;
  }
  EXPECT_THAT(refusal_of(SafetensorsText().metadata("format", "routepack.window/1").bytes()),
              StartsWith("metadata top_k: found nothing"));
  EXPECT_THAT(refusal_of(good("routepack.window/1", "4").bytes()), StartsWith("top_k: found 4, wanted 1 to 3"));
}

TEST(WindowFile, is_refused_with_an_unknown_kind) {
  EXPECT_THAT(refusal_of(good().metadata("kind", "sums").bytes()),
              StartsWith("metadata kind: found sums, wanted samples or aggregate"));
}

TEST(WindowFile, is_refused_with_layers_that_are_no_list_of_l_numbers) {
  EXPECT_THAT(refusal_of(good().metadata("layers", "[1, 2]").bytes()),
              StartsWith("metadata layers: found \"[1, 2]\", wanted a JSON list of 1 integers"));
  EXPECT_THAT(refusal_of(good().metadata("layers", "[1.5]").bytes()), StartsWith("metadata layers[0]: found"));
  EXPECT_THAT(refusal_of(good().metadata("layers", "one").bytes()), StartsWith("metadata layers: invalid JSON"));
  EXPECT_THAT(refusal_of(good().metadata("layers", "[1]\\u0000junk").bytes()), StartsWith("metadata layers: "));
}

TEST(WindowFile, is_refused_without_counts_or_lengths) {
  EXPECT_THAT(refusal_of(good().remove("counts").bytes()),
              StartsWith("tensor counts: missing, wanted U16, U32 or I32 [N, L, E]"));
  EXPECT_THAT(refusal_of(good().remove("lengths").bytes()), StartsWith("tensor lengths: missing, wanted I32 [2]"));
}

TEST(WindowFile, is_refused_with_a_wrong_dtype) {
  const auto eight = raw<std::int64_t>({5, 6});
  EXPECT_THAT(refusal_of(good().replace("counts", "F32", "[2, 1, 3]", std::string(24, '\0')).bytes()),
              StartsWith("tensor counts: dtype: found F32, wanted U16, U32 or I32"));
  EXPECT_THAT(refusal_of(good().replace("lengths", "I64", "[2]", eight).bytes()),
              StartsWith("tensor lengths: dtype: found I64, wanted I32"));
  for (const std::string_view name : {"recorded", "groups", "atomic"}) {
    EXPECT_THAT(refusal_of(good().tensor(name, "I64", "[2]", eight).bytes()),
                StartsWith("tensor " + std::string(name) + ": dtype: found I64, wanted I32"));
  }
  EXPECT_THAT(refusal_of(good().tensor("pad_counts", "I32", "[1, 3]", std::string(12, '\0')).bytes()),
              StartsWith("tensor pad_counts: dtype: found I32, wanted U32"));
  EXPECT_THAT(refusal_of(good().tensor("ids", "U64", "[2]", eight).bytes()),
              StartsWith("tensor ids: dtype: found U64, wanted I64"));
}

TEST(WindowFile, is_refused_with_a_wrong_rank) {
  EXPECT_THAT(refusal_of(good().replace("counts", "U16", "[2, 3]", raw<std::uint16_t>({1, 2, 2, 0, 6, 0})).bytes()),
              StartsWith("tensor counts: shape: found [2, 3], wanted [N, L, E]"));
  EXPECT_THAT(refusal_of(good().replace("lengths", "I32", "[2, 1]", raw<std::int32_t>({5, 6})).bytes()),
              StartsWith("tensor lengths: shape: found [2, 1], wanted [2]"));
  EXPECT_THAT(refusal_of(good().tensor("recorded", "I32", "[1, 2]", raw<std::int32_t>({5, 6})).bytes()),
              StartsWith("tensor recorded: shape: found [1, 2], wanted [2] or [2, 1]"));
  EXPECT_THAT(refusal_of(good().tensor("pad_counts", "U32", "[3]", std::string(12, '\0')).bytes()),
              StartsWith("tensor pad_counts: shape: found [3], wanted [1, 3]"));
  EXPECT_THAT(refusal_of(good().tensor("groups", "I32", "[0]", "").bytes()),
              StartsWith("tensor groups: shape: found [0], wanted [2]"));
}

TEST(WindowFile, is_refused_when_n_l_or_e_is_zero) {
  for (const std::string_view shape : {"[0, 1, 3]", "[2, 0, 3]", "[2, 1, 0]"}) {
    EXPECT_THAT(refusal_of(good().replace("counts", "U16", shape, "").bytes()),
                StartsWith("tensor counts: shape: found " + std::string(shape) + ", wanted [N, L, E], each from 1"));
  }
}

TEST(WindowFile, is_refused_with_a_negative_count) {
  EXPECT_THAT(refusal_of(good().replace("counts", "I32", "[2, 1, 3]", raw<std::int32_t>({5, 0, 0, 0, -6, 0})).bytes()),
              StartsWith("tensor counts[1, 0, 1]: found -6, wanted 0 or more"));
}

TEST(WindowFile, is_refused_with_contents_that_no_window_has) {
  EXPECT_THAT(refusal_of(good().replace("lengths", "I32", "[2]", raw<std::int32_t>({5, 0})).bytes()),
              StartsWith("tensor lengths[1]: found 0"));
  EXPECT_THAT(refusal_of(good().tensor("recorded", "I32", "[2, 1]", raw<std::int32_t>({5, 5})).bytes()),
              StartsWith("tensor counts[1, 0, :]: found a sum of 6, wanted 5"));
}

}  // namespace
}  // namespace routepack
