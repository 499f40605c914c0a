// SPDX-License-Identifier: Apache-2.0
// Megatron-Core's flat buffers: the worked example of docs/data-plane.md, and tables that Megatron-Core itself wrote.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "routepack/error.h"
#include "routepack/grid_layout.h"
#include "support/property.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace routepack::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// hidden 16, width 12: fc1 of 384 elements, fc2 of 192.
std::vector<ExpertParameter> example_parameters() {
  return {{"fc1", {24, 16}}, {"fc2", {16, 12}}};
}

BufferSpan span(std::int32_t slot, std::int32_t parameter, std::int64_t begin, std::int64_t end) {
  return {.layer = LayerId(0),
          .local_slot = slot,
          .parameter = parameter,
          .begin = begin,
          .end = end,
          .bucket_begin = 0,
          .bucket_end = 1152};
}

std::vector<LaneRange> lanes(const GridLayout& layout, std::int32_t layer, std::int32_t slot, std::int32_t parameter) {
  const auto found = layout.lanes_of(LayerId(layer), slot, parameter);
  return {found.begin(), found.end()};
}

TEST(MegatronSpans, lie_as_in_the_worked_example) {
  const auto spans = megatron_spans({.ep = 4, .edp = 2}, 1, 2, example_parameters(), {});
  const std::vector<BufferSpan> wanted = {span(1, 1, 0, 192), span(0, 1, 192, 384), span(1, 0, 384, 768),
                                          span(0, 0, 768, 1152)};
  EXPECT_EQ(spans, wanted);
}

TEST(MegatronLanes, are_as_in_the_worked_example) {
  const GridLayout layout = GridLayout::adam({.ep = 4, .edp = 2}, 1, 2, 16, 12);
  using Ranges = std::vector<LaneRange>;
  EXPECT_EQ(lanes(layout, 0, 0, 0), (Ranges{{1, 0, 384}}));
  EXPECT_EQ(lanes(layout, 0, 0, 1), (Ranges{{0, 0, 192}}));
  EXPECT_EQ(lanes(layout, 0, 1, 0), (Ranges{{0, 0, 192}, {1, 192, 384}}));
  EXPECT_EQ(lanes(layout, 0, 1, 1), (Ranges{{0, 0, 192}}));
  EXPECT_EQ(layout.range_of(LayerId(0), 1, 0, 1), (LaneRange{1, 192, 384}));
  EXPECT_EQ(layout.range_of(LayerId(0), 0, 0, 0).size(), 0);
  EXPECT_EQ(layout.range_of(LayerId(0), 0, 1, 1).size(), 0);
}

struct RecordedSpan {
  BufferSpan span;
  std::vector<LaneRange> lanes;
};
struct RecordedCase {
  std::string name;
  ExpertGrid grid;
  std::int32_t layers, slots;
  std::vector<ExpertParameter> parameters;
  MegatronBuffers buffers;
  std::vector<RecordedSpan> spans;
};

RecordedCase recorded_case(const nlohmann::json& json) {
  RecordedCase it{.name = "",
                  .grid = {.ep = 2, .edp = json.at("edp")},
                  .layers = json.at("layers"),
                  .slots = json.at("slots"),
                  .parameters = {},
                  .buffers = {},
                  .spans = {}};
  for (const auto& parameter : json.at("parameters")) {
    it.parameters.push_back({parameter.at(0), parameter.at(1).get<std::vector<std::int64_t>>()});
  }
  it.buffers.registration = json.at("registration") == "grouped" ? Registration::Grouped : Registration::Sequential;
  if (!json.at("bucket_elements").is_null()) it.buffers.bucket_elements = json.at("bucket_elements");
  it.buffers.high_bus_bandwidth = json.at("high_bus_bandwidth");
  for (const auto& chunk : json.at("chunks")) {
    auto& layers = it.buffers.chunks.emplace_back();
    for (const std::int32_t layer : chunk) layers.emplace_back(layer);
  }
  for (const auto& row : json.at("spans")) {
    RecordedSpan recorded;
    recorded.span = {.layer = LayerId(row.at(0).get<std::int32_t>()),
                     .local_slot = row.at(1),
                     .parameter = row.at(2),
                     .chunk = row.at(3),
                     .bucket = row.at(4),
                     .begin = row.at(5),
                     .end = row.at(6),
                     .bucket_begin = row.at(7),
                     .bucket_end = row.at(8)};
    for (const auto& lane : row.at(9)) recorded.lanes.push_back({lane.at(0), lane.at(1), lane.at(2)});
    it.spans.push_back(std::move(recorded));
  }
  auto head = json;
  head.erase("spans");
  it.name = head.dump();
  return it;
}

std::vector<RecordedCase> recorded_cases() {
  const auto json = nlohmann::json::parse(
      contents_of(std::filesystem::path(ROUTEPACK_SOURCE_DIR) / "tests/transfer/golden/megatron_ranges.json"));
  std::vector<RecordedCase> cases;
  for (const auto& each : json.at("cases")) cases.push_back(recorded_case(each));
  return cases;
}

/// One replicated weight and one sharded master per parameter.
std::vector<ExpertTensor> weight_and_master(const std::vector<ExpertParameter>& parameters) {
  std::vector<ExpertTensor> tensors;
  for (std::int32_t k = 0; const ExpertParameter& parameter : parameters) {
    tensors.push_back(
        {parameter.name, TensorRole::Weight, ScalarType::BF16, Spread::Replicated, parameter.elements(), k});
    tensors.push_back(
        {parameter.name + ".master", TensorRole::Master, ScalarType::F32, Spread::Sharded, parameter.elements(), k});
    ++k;
  }
  return tensors;
}

TEST(MegatronSpans, are_those_that_megatron_core_itself_computed) {
  const auto cases = recorded_cases();
  ASSERT_GE(cases.size(), 30U);
  for (const RecordedCase& it : cases) {
    SCOPED_TRACE(it.name);
    const auto spans = megatron_spans(it.grid, it.layers, it.slots, it.parameters, it.buffers);
    ASSERT_EQ(spans.size(), it.spans.size());
    for (std::size_t k = 0; k < spans.size(); ++k) EXPECT_EQ(spans[k], it.spans[k].span) << "span " << k;
  }
}

TEST(MegatronLanes, are_those_that_megatron_core_itself_computed) {
  for (const RecordedCase& it : recorded_cases()) {
    SCOPED_TRACE(it.name);
    const GridLayout layout =
        GridLayout::megatron(it.grid, it.layers, it.slots, it.parameters, weight_and_master(it.parameters), it.buffers);
    for (const RecordedSpan& recorded : it.spans) {
      const BufferSpan& at = recorded.span;
      EXPECT_EQ(lanes(layout, at.layer.value(), at.local_slot, at.parameter), recorded.lanes)
          << "layer " << at.layer.value() << " slot " << at.local_slot << " parameter " << at.parameter;
      const std::int32_t master = 2 * at.parameter + 1;
      for (std::int32_t lane = 0; lane < it.grid.edp; ++lane) {
        std::int64_t owned = 0;
        for (const LaneRange& range : recorded.lanes) owned += range.lane == lane ? range.size() : 0;
        EXPECT_EQ(layout.bytes_on(at.layer, at.local_slot, master, lane), 4 * owned);
        EXPECT_EQ(layout.bytes_on(at.layer, at.local_slot, master - 1, lane), 2 * (at.end - at.begin));
      }
    }
  }
}

/// The rules as Megatron words them, element by element: nothing here knows about spans or intersections.
std::vector<std::int32_t> owner_of_each_element(const std::vector<BufferSpan>& bucket, const BufferSpan& wanted,
                                                std::int32_t edp) {
  const std::int64_t part = (bucket.front().bucket_end - bucket.front().bucket_begin) / edp;
  std::vector<std::int32_t> owners;
  for (std::int64_t at = wanted.begin; at < wanted.end; ++at) {
    owners.push_back(static_cast<std::int32_t>((at - wanted.bucket_begin) / part));
  }
  return owners;
}

struct Drawn {
  ExpertGrid grid;
  std::int32_t layers, slots;
  std::vector<ExpertParameter> parameters = {};
  MegatronBuffers buffers = {};
};

Drawn draw_buffers() {
  Drawn it{.grid = {.ep = draw(2, 3), .edp = draw(1, 8)}, .layers = draw(1, 4), .slots = draw(1, 3)};
  for (std::int32_t k = draw(1, 3); k > 0; --k) {
    it.parameters.push_back({"p" + std::to_string(k), {draw(1, 20), draw(1, 30)}});
  }
  it.buffers.registration = draw(0, 1) == 0 ? Registration::Grouped : Registration::Sequential;
  if (draw(0, 2) != 0) it.buffers.bucket_elements = draw(1, 2000);
  it.buffers.high_bus_bandwidth = draw(0, 3) == 0;
  if (draw(0, 3) == 0) it.buffers.start_alignment = 1 << draw(0, 8);
  if (draw(0, 1) == 1) {
    it.buffers.chunks.resize(static_cast<std::size_t>(draw(1, it.layers)));
    const auto chunks = static_cast<std::int32_t>(it.buffers.chunks.size());
    for (std::int32_t l = 0; l < it.layers; ++l) {
      it.buffers.chunks[static_cast<std::size_t>(l % chunks)].emplace_back(l);
    }
  }
  return it;
}

TEST(MegatronSpans, obey_the_rules_of_starts_and_ends_and_place_everything_once) {
  for_all(150, [] {
    const Drawn it = draw_buffers();
    const auto spans = megatron_spans(it.grid, it.layers, it.slots, it.parameters, it.buffers);
    std::set<std::tuple<std::int32_t, std::int32_t, std::int32_t>> seen;
    for (std::size_t k = 0; k < spans.size(); ++k) {
      const BufferSpan& at = spans[k];
      RC_ASSERT(seen.emplace(at.layer.value(), at.local_slot, at.parameter).second);
      RC_ASSERT(at.end - at.begin == it.parameters[static_cast<std::size_t>(at.parameter)].elements());
      RC_ASSERT(at.begin % it.buffers.start_alignment == 0);
      RC_ASSERT(at.bucket_begin <= at.begin && at.end <= at.bucket_end);
      RC_ASSERT(at.bucket_end % 128 == 0 && at.bucket_end % it.grid.edp == 0);
      if (it.buffers.high_bus_bandwidth) RC_ASSERT(at.bucket_end % 65536 == 0);
      const bool first = k == 0 || spans[k - 1].chunk != at.chunk;
      const bool opens = first || spans[k - 1].bucket != at.bucket;
      if (first) {
        RC_ASSERT(at.bucket == 0 && at.bucket_begin == 0);
      } else {
        const BufferSpan& before = spans[k - 1];
        RC_ASSERT(at.begin >= before.end);
        if (opens) RC_ASSERT(at.bucket == before.bucket + 1 && at.bucket_begin == before.bucket_end);
        const bool full = it.buffers.bucket_elements && before.end - before.bucket_begin >= *it.buffers.bucket_elements;
        RC_ASSERT(opens == full);
      }
    }
    RC_ASSERT(seen.size() == static_cast<std::size_t>(it.layers * it.slots) * it.parameters.size());
  });
}

TEST(MegatronLanes, cut_every_bucket_into_equal_parts_whatever_lies_there) {
  for_all(100, [] {
    const Drawn it = draw_buffers();
    const auto spans = megatron_spans(it.grid, it.layers, it.slots, it.parameters, it.buffers);
    const GridLayout layout =
        GridLayout::megatron(it.grid, it.layers, it.slots, it.parameters, weight_and_master(it.parameters), it.buffers);
    for (const BufferSpan& at : spans) {
      const auto owners = owner_of_each_element({at}, at, it.grid.edp);
      std::vector<std::int32_t> found;
      for (const LaneRange& range : layout.lanes_of(at.layer, at.local_slot, at.parameter)) {
        RC_ASSERT(range.begin == static_cast<std::int64_t>(found.size()));
        RC_ASSERT(range.size() > 0);
        found.insert(found.end(), static_cast<std::size_t>(range.size()), range.lane);
      }
      RC_ASSERT(found == owners);
    }
  });
}

TEST(MegatronBuffers, refuse_chunks_that_are_no_partition_of_the_layers) {
  const auto refused = [](std::vector<std::vector<std::int32_t>> chunks) {
    MegatronBuffers buffers;
    for (const auto& chunk : chunks) {
      buffers.chunks.emplace_back();
      for (const std::int32_t layer : chunk) buffers.chunks.back().emplace_back(layer);
    }
    return refusal<InvalidInput>([&] { GridLayout::adam({.ep = 2, .edp = 2}, 3, 1, 16, 12, buffers); });
  };
  EXPECT_THAT(refused({{0, 1}}), HasSubstr("2"));          // layer 2 is in no chunk
  EXPECT_THAT(refused({{0, 1}, {1, 2}}), HasSubstr("1"));  // layer 1 is in two
  EXPECT_THAT(refused({{0, 1, 2, 3}}), HasSubstr("3"));    // layer 3 does not exist
  EXPECT_NE(refused({{0, 1}, {2, -1}}), "");               // negative
}

TEST(MegatronBuffers, refuse_sizes_that_mean_nothing) {
  const auto refused = [](MegatronBuffers buffers) {
    return refusal<InvalidInput>([&] { GridLayout::adam({.ep = 2, .edp = 2}, 1, 1, 16, 12, buffers); });
  };
  EXPECT_THAT(refused({.bucket_elements = 0}), AllOf(HasSubstr("bucket"), HasSubstr("0")));
  EXPECT_THAT(refused({.bucket_elements = -5}), AllOf(HasSubstr("bucket"), HasSubstr("-5")));
  EXPECT_THAT(refused({.start_alignment = 0}), AllOf(HasSubstr("alignment"), HasSubstr("0")));
  EXPECT_THAT(refused({.start_alignment = -64}), AllOf(HasSubstr("alignment"), HasSubstr("-64")));
}

}  // namespace
}  // namespace routepack::testing
