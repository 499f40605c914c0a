// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "routepack/window.h"
#include "support/builders.h"
#include "support/safetensors_bytes.h"
#include "support/temporary_folder.h"

namespace routepack {
namespace {

using testing::make_window;
using testing::raw;
using testing::SafetensorsText;
using testing::WindowSpec;

/// Two samples, two layers, two experts, one chosen per token.
WindowSpec small() {
  return {.samples = 2,
          .layers = 2,
          .experts = 2,
          .top_k = 1,
          .lengths = {5, 6},
          .counts = {1, 4, 2, 3, 6, 0, 0, 6},
          .recorded = {5, 6},
          .atomic = {-1, 0}};
}

TEST(Fingerprint, is_xxh3_over_the_bytes_that_the_format_lists) {
  // Computed with the xxHash library from bytes packed by hand: sizes, lengths, 1 and recorded widened to [N, L],
  // 1 and atomic, 0 for the absent pad_counts, counts as u32.
  EXPECT_EQ(make_window(small()).fingerprint(), "xxh3:0ff66a25cebc16dd");
}

TEST(Fingerprint, puts_one_zero_in_the_place_of_lengths_that_an_aggregate_lacks) {
  const Window window = make_window({.samples = 1,
                                     .layers = 1,
                                     .experts = 2,
                                     .top_k = 1,
                                     .kind = WindowKind::Aggregate,
                                     .counts = {70'000, 1},
                                     .pad_counts = {7, 8}});
  EXPECT_EQ(window.fingerprint(), "xxh3:d0fc9b70d89365bf");
}

TEST(Fingerprint, does_not_depend_on_stored_types_or_file_layout) {
  const auto lengths = raw<std::int32_t>({5, 6});
  const auto narrow = raw<std::uint16_t>({1, 4, 2, 3, 6, 0, 0, 6});
  const auto wide = raw<std::uint32_t>({1, 4, 2, 3, 6, 0, 0, 6});
  const auto file = [] {
    return SafetensorsText()
        .metadata("format", "routepack.window/1")
        .metadata("top_k", "1")
        .tensor("atomic", "I32", "[2]", raw<std::int32_t>({-1, 0}));
  };
  const auto per_layer = raw<std::int32_t>({5, 5, 6, 6});
  const testing::TemporaryFolder folder;
  std::set<std::string> seen = {make_window(small()).fingerprint()};
  for (const std::string& bytes : {file()
                                       .tensor("counts", "U16", "[2, 2, 2]", narrow)
                                       .tensor("lengths", "I32", "[2]", lengths)
                                       .tensor("recorded", "I32", "[2]", lengths)
                                       .bytes(1),
                                   file()
                                       .tensor("recorded", "I32", "[2, 2]", per_layer)
                                       .tensor("lengths", "I32", "[2]", lengths)
                                       .tensor("counts", "U32", "[2, 2, 2]", wide)
                                       .bytes(),
                                   file()
                                       .tensor("lengths", "I32", "[2]", lengths)
                                       .tensor("recorded", "I32", "[2, 2]", per_layer)
                                       .tensor("counts", "I32", "[2, 2, 2]", wide)
                                       .tensor("other", "U8", "[1]", "x")
                                       .bytes(3)}) {
    seen.insert(Window::load(folder.file("w", bytes)).fingerprint());
  }
  EXPECT_EQ(seen.size(), 1U);
}

TEST(Fingerprint, does_not_depend_on_the_type_of_counts_longer_than_a_buffer) {
  const WindowSpec spec = testing::random_window(3, 20, 10, 50, 2, 1, 9);
  const std::vector<std::uint16_t> narrow(spec.counts.begin(), spec.counts.end());
  WindowArrays arrays = make_window(spec).arrays();
  arrays.lengths = spec.lengths;
  arrays.recorded = spec.recorded;
  arrays.counts = std::span<const std::uint16_t>(narrow);
  EXPECT_EQ(Window(arrays, nullptr).fingerprint(), make_window(spec).fingerprint());
}

TEST(Fingerprint, changes_with_every_tensor_and_size_that_planning_reads) {
  const WindowSpec base{
      .samples = 2, .layers = 2, .experts = 2, .top_k = 1, .lengths = {5, 6}, .counts = {1, 0, 0, 0, 0, 0, 0, 0}};
  std::set<std::string> seen = {make_window(base).fingerprint()};
  std::size_t variants = 1;
  const auto differs = [&](auto&& change) {
    WindowSpec spec = base;
    change(spec);
    ++variants;
    EXPECT_TRUE(seen.insert(make_window(spec).fingerprint()).second) << "variant " << variants;
  };
  differs([](auto& spec) { spec.lengths[1] = 7; });
  differs([](auto& spec) { spec.counts[7] = 1; });
  differs([](auto& spec) { spec.top_k = 2; });
  differs([](auto& spec) { spec.layers = 1, spec.experts = 4; });
  differs([](auto& spec) { spec.layers = 4, spec.experts = 1; });
  differs([](auto& spec) { spec.counts[0] = 0, spec.recorded = {0, 0}; });
  differs([](auto& spec) { spec.counts[0] = 0; });
  differs([](auto& spec) { spec.atomic = {-1, -1}; });
  differs([](auto& spec) { spec.atomic = {-1, 0}; });
  differs([](auto& spec) { spec.pad_counts = {0, 0, 0, 0}; });
  differs([](auto& spec) { spec.pad_counts = {0, 0, 0, 1}; });
}

TEST(Fingerprint, does_not_change_with_what_planning_never_reads) {
  WindowSpec spec = small();
  spec.groups = {1, 2};
  spec.ids = {3, 4};
  spec.model = "m";
  EXPECT_EQ(make_window(spec).fingerprint(), make_window(small()).fingerprint());
}

}  // namespace
}  // namespace routepack
