// SPDX-License-Identifier: Apache-2.0
// What a grid layout is, what it refuses, and its file.
#include "routepack/grid_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "routepack/error.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "support/transfer_layouts.h"

namespace routepack::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

std::vector<ExpertParameter> one_parameter() {
  return {{"fc", {4, 8}}};
}
ExpertTensor weight() {
  return {"fc.weight", TensorRole::Weight, ScalarType::BF16, Spread::Replicated, 32, 0};
}
ExpertTensor master() {
  return {"fc.master", TensorRole::Master, ScalarType::F32, Spread::Sharded, 32, 0};
}

/// What a 2 × 2 grid with these tensors says.
std::string refused(std::vector<ExpertTensor> tensors) {
  return refusal<InvalidInput>(
      [&] { GridLayout::megatron({.ep = 2, .edp = 2}, 1, 2, one_parameter(), std::move(tensors)); });
}

TEST(ExpertGrid, counts_ranks_as_megatron_does_ep_inside_edp) {
  const ExpertGrid grid{.ep = 4, .edp = 2};
  EXPECT_EQ(grid.ranks(), 8);
  EXPECT_EQ(grid.rank(2, 1), 6);
  EXPECT_EQ(grid.ep_rank(6), 2);
  EXPECT_EQ(grid.lane(6), 1);
}

TEST(GridLayout, has_weights_master_and_both_moments_of_a_gated_ffn) {
  const GridLayout layout = GridLayout::adam({.ep = 4, .edp = 2}, 3, 2, 16, 12);
  ASSERT_EQ(layout.parameters().size(), 2U);
  EXPECT_EQ(layout.parameters()[0].elements(), 384);
  EXPECT_EQ(layout.parameters()[1].elements(), 192);
  ASSERT_EQ(layout.tensors().size(), 9U);  // 2 · (weight, master, 2 moments) and the canary
  std::int64_t replicated = 0, sharded = 0, moments = 0;
  for (const ExpertTensor& tensor : layout.tensors().first(8)) {
    (tensor.spread == Spread::Replicated ? replicated : sharded) += tensor.bytes();
    moments += tensor.role == TensorRole::Moment ? 1 : 0;
  }
  EXPECT_EQ(replicated, 2 * 576);
  EXPECT_EQ(sharded, 12 * 576);
  EXPECT_EQ(moments, 4);
  EXPECT_EQ(layout.layers(), 3);
  EXPECT_EQ(layout.slots(), 2);
  EXPECT_EQ(layout.experts(), 8);
}

TEST(GridLayout, ends_with_the_canary) {
  const GridLayout layout = GridLayout::adam({.ep = 2, .edp = 2}, 1, 1, 16, 12);
  EXPECT_EQ(layout.canary(), 8);
  const ExpertTensor& canary = layout.tensors().back();
  EXPECT_EQ(canary.role, TensorRole::Canary);
  EXPECT_EQ(canary.type, ScalarType::I64);
  EXPECT_EQ(canary.spread, Spread::Replicated);
  EXPECT_EQ(canary.elements, 2);
  EXPECT_EQ(layout.bytes_on(LayerId(0), 0, layout.canary(), 1), 16);
}

TEST(ScalarType, has_the_size_that_its_name_says) {
  const std::vector<std::pair<ScalarType, std::int64_t>> sizes = {
      {ScalarType::U8, 1},      {ScalarType::I8, 1},  {ScalarType::I16, 2},     {ScalarType::U16, 2},
      {ScalarType::I32, 4},     {ScalarType::I64, 8}, {ScalarType::F16, 2},     {ScalarType::BF16, 2},
      {ScalarType::F32, 4},     {ScalarType::F64, 8}, {ScalarType::F8_E4M3, 1}, {ScalarType::F8_E5M2, 1},
      {ScalarType::F8_E8M0, 1},
  };
  for (const auto& [type, size] : sizes) EXPECT_EQ(bytes_of(type), size) << static_cast<int>(type);
}

TEST(GridLayout, takes_every_kind_of_state_that_can_be_moved) {
  for (const NamedLayout& it : layouts_of_every_kind({.ep = 3, .edp = 2})) {
    SCOPED_TRACE(it.name);
    EXPECT_GE(it.layout.tensors().size(), 2U);
    EXPECT_EQ(it.layout.grid(), (ExpertGrid{.ep = 3, .edp = 2}));
  }
}

TEST(GridLayout, refuses_sizes_below_one) {
  const auto adam = [](ExpertGrid grid, std::int32_t layers, std::int32_t slots, std::int64_t hidden) {
    return refusal<InvalidInput>([&] { GridLayout::adam(grid, layers, slots, hidden, 12); });
  };
  EXPECT_THAT(adam({.ep = 0, .edp = 1}, 1, 1, 16), HasSubstr("0"));
  EXPECT_THAT(adam({.ep = -4, .edp = 1}, 1, 1, 16), HasSubstr("-4"));
  EXPECT_THAT(adam({.ep = 2, .edp = 0}, 1, 1, 16), HasSubstr("0"));
  EXPECT_THAT(adam({.ep = 2, .edp = -1}, 1, 1, 16), HasSubstr("-1"));
  EXPECT_THAT(adam({.ep = 2, .edp = 1}, 0, 1, 16), HasSubstr("0"));
  EXPECT_THAT(adam({.ep = 2, .edp = 1}, -3, 1, 16), HasSubstr("-3"));
  EXPECT_THAT(adam({.ep = 2, .edp = 1}, 1, 0, 16), HasSubstr("0"));
  EXPECT_THAT(adam({.ep = 2, .edp = 1}, 1, -1, 16), HasSubstr("-1"));
  EXPECT_THAT(adam({.ep = 2, .edp = 1}, 1, 1, 0), HasSubstr("0"));
  EXPECT_THAT(adam({.ep = 2, .edp = 1}, 1, 1, -16), HasSubstr("-16"));
}

TEST(GridLayout, refuses_a_single_ep_rank_since_there_is_nowhere_to_move_to) {
  EXPECT_THAT(refusal<InvalidInput>([] { GridLayout::adam({.ep = 1, .edp = 4}, 1, 2, 16, 12); }), HasSubstr("1"));
}

TEST(GridLayout, refuses_more_ranks_than_a_16_bit_number_counts) {
  EXPECT_NO_THROW(GridLayout::adam({.ep = 32767, .edp = 1}, 1, 1, 1, 1));
  EXPECT_THAT(refusal<InvalidInput>([] { GridLayout::adam({.ep = 32768, .edp = 1}, 1, 1, 1, 1); }), HasSubstr("32768"));
  EXPECT_NE(refusal<InvalidInput>([] { GridLayout::adam({.ep = 16384, .edp = 2}, 1, 1, 1, 1); }), "");
  EXPECT_NE(refusal<InvalidInput>([] { GridLayout::adam({.ep = 65536, .edp = 65536}, 1, 1, 1, 1); }), "");
}

TEST(GridLayout, refuses_products_of_sizes_that_no_64_bit_number_counts) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  const auto refuses = [](auto&& call) { return refusal<InvalidInput>(call) != ""; };
  EXPECT_TRUE(refuses([] { GridLayout::adam({.ep = 2, .edp = 1}, 1, 1, kHuge, kHuge); }));
  EXPECT_TRUE(
      refuses([] { GridLayout::adam({.ep = 2, .edp = 1}, 1, 1, std::numeric_limits<std::int64_t>::max(), 1); }));
  EXPECT_TRUE(
      refuses([] { GridLayout::adam({.ep = 2, .edp = 1}, 1, 1, 1, std::numeric_limits<std::int64_t>::max()); }));
  EXPECT_TRUE(refuses([] { GridLayout::megatron({.ep = 2, .edp = 1}, 1, 1, {{"a", {kHuge, 1, kHuge}}}, {weight()}); }));
  ExpertTensor large = weight();
  large.parameter.reset();
  large.elements = std::int64_t{1} << 61;
  EXPECT_TRUE(refuses([&] { GridLayout::megatron({.ep = 2, .edp = 1}, 1, 1, one_parameter(), {large}); }));
  // Each tensor fits, all of them on a rank do not.
  large.elements = std::int64_t{1} << 59;
  EXPECT_TRUE(refuses([&] { GridLayout::megatron({.ep = 2, .edp = 1}, 16, 8, one_parameter(), {large}); }));
}

TEST(GridLayout, refuses_names_that_are_empty_or_come_twice) {
  ExpertTensor nameless = weight();
  nameless.name = "";
  EXPECT_THAT(refused({nameless}), HasSubstr("name"));
  EXPECT_THAT(refused({weight(), master(), weight()}), HasSubstr("fc.weight"));
  EXPECT_THAT(refusal<InvalidInput>(
                  [] { GridLayout::megatron({.ep = 2, .edp = 1}, 1, 1, {{"twin", {4}}, {"twin", {4}}}, {weight()}); }),
              HasSubstr("twin"));
  EXPECT_THAT(refusal<InvalidInput>([] { GridLayout::megatron({.ep = 2, .edp = 1}, 1, 1, {{"", {4}}}, {weight()}); }),
              HasSubstr("name"));
}

TEST(GridLayout, refuses_a_sharded_tensor_without_parameter_or_of_another_size) {
  ExpertTensor lost = master();
  lost.parameter.reset();
  EXPECT_THAT(refused({lost}), AllOf(HasSubstr("fc.master"), HasSubstr("parameter")));
  ExpertTensor short_by_one = master();
  short_by_one.elements = 31;
  EXPECT_THAT(refused({short_by_one}), AllOf(HasSubstr("fc.master"), HasSubstr("31"), HasSubstr("32")));
  for (const std::int32_t index : {-1, 1, 1000}) {
    ExpertTensor astray = master();
    astray.parameter = index;
    EXPECT_THAT(refused({astray}), HasSubstr(std::to_string(index)));
    ExpertTensor replicated = weight();
    replicated.parameter = index;
    EXPECT_THAT(refused({replicated}), HasSubstr(std::to_string(index)));
  }
}

TEST(GridLayout, refuses_tensors_without_elements) {
  for (const std::int64_t elements : {std::int64_t{0}, std::int64_t{-1}}) {
    ExpertTensor empty = weight();
    empty.elements = elements;
    EXPECT_THAT(refused({empty}), AllOf(HasSubstr("fc.weight"), HasSubstr(std::to_string(elements))));
  }
}

TEST(GridLayout, keeps_the_canary_to_itself) {
  EXPECT_THAT(refused({weight(), {"mine", TensorRole::Canary, ScalarType::I64, Spread::Replicated, 2, {}}}),
              AllOf(HasSubstr("mine"), HasSubstr("canary")));
}

TEST(GridLayout, refuses_a_role_that_nobody_knows) {
  ExpertTensor strange = weight();
  strange.role = static_cast<TensorRole>(99);
  EXPECT_THAT(refused({strange}), HasSubstr("fc.weight"));
}

TEST(GridLayout, compares_steps_and_nothing_else_instead_of_moving_them) {
  EXPECT_THAT(refused({weight(), {"count", TensorRole::Moment, ScalarType::F32, Spread::Equal, 1, {}}}),
              HasSubstr("count"));
  EXPECT_THAT(refused({weight(), {"step", TensorRole::Step, ScalarType::F32, Spread::Replicated, 1, {}}}),
              HasSubstr("step"));
}

TEST(GridLayout, refuses_sharded_states_that_a_repartition_would_quantise_again) {
  for (const TensorRole role : {TensorRole::Master, TensorRole::Moment}) {
    for (const ScalarType type : {ScalarType::F16, ScalarType::F8_E4M3, ScalarType::F8_E5M2}) {
      ExpertTensor scaled = master();
      scaled.role = role;
      scaled.type = type;
      EXPECT_THAT(refused({weight(), scaled}), HasSubstr("fc.master"));
    }
    ExpertTensor raw = master();
    raw.role = role;
    raw.type = ScalarType::BF16;  // moved as it is
    EXPECT_NO_THROW(GridLayout::megatron({.ep = 2, .edp = 2}, 1, 2, one_parameter(), {weight(), raw}));
  }
}

GridLayout with_ranges(std::vector<LaneRange> ranges) {
  return GridLayout::explicit_ranges({.ep = 2, .edp = 3}, 1, 1, one_parameter(), {weight(), master()},
                                     {std::move(ranges)});
}

TEST(ExplicitRanges, take_lanes_in_any_order_and_lanes_that_own_nothing) {
  const GridLayout layout = with_ranges({{2, 0, 10}, {0, 10, 32}});
  EXPECT_EQ(layout.range_of(LayerId(0), 0, 0, 2), (LaneRange{2, 0, 10}));
  EXPECT_EQ(layout.range_of(LayerId(0), 0, 0, 0), (LaneRange{0, 10, 32}));
  EXPECT_EQ(layout.range_of(LayerId(0), 0, 0, 1).size(), 0);
  EXPECT_EQ(layout.bytes_on(LayerId(0), 0, 1, 1), 0);
  EXPECT_EQ(layout.bytes_on(LayerId(0), 0, 1, 0), 88);
  EXPECT_NO_THROW(with_ranges({{1, 0, 32}}));
}

TEST(ExplicitRanges, refuse_what_is_no_partition_in_order_of_begin) {
  const auto says = [](std::vector<LaneRange> ranges) {
    return refusal<InvalidInput>([&] { with_ranges(std::move(ranges)); });
  };
  EXPECT_NE(says({}), "");
  EXPECT_NE(says({{0, 0, 10}, {1, 11, 32}}), "");               // a hole
  EXPECT_NE(says({{0, 0, 11}, {1, 10, 32}}), "");               // an overlap
  EXPECT_NE(says({{0, 0, 10}, {1, 10, 31}}), "");               // short
  EXPECT_NE(says({{0, 0, 10}, {1, 10, 33}}), "");               // long
  EXPECT_NE(says({{0, 1, 32}}), "");                            // late
  EXPECT_NE(says({{0, -1, 32}}), "");                           // early
  EXPECT_NE(says({{0, 10, 32}, {1, 0, 10}}), "");               // not in order
  EXPECT_NE(says({{0, 0, 10}, {1, 10, 20}, {0, 20, 32}}), "");  // one lane twice
  EXPECT_NE(says({{3, 0, 32}}), "");                            // no such lane
  EXPECT_NE(says({{-1, 0, 32}}), "");
  EXPECT_NE(says({{0, 0, 32}, {1, 32, 20}, {2, 20, 32}}), "");  // backwards
}

TEST(ExplicitRanges, refuse_another_number_of_lists_than_slots_and_parameters) {
  const auto says = [](std::vector<std::vector<LaneRange>> lists) {
    return refusal<InvalidInput>([&] {
      GridLayout::explicit_ranges({.ep = 2, .edp = 3}, 2, 2, one_parameter(), {weight(), master()}, std::move(lists));
    });
  };
  const std::vector<LaneRange> whole = {{0, 0, 32}};
  EXPECT_THAT(says({}), HasSubstr("4"));
  EXPECT_THAT(says({whole, whole, whole}), AllOf(HasSubstr("3"), HasSubstr("4")));
  EXPECT_THAT(says({whole, whole, whole, whole, whole}), AllOf(HasSubstr("5"), HasSubstr("4")));
}

TEST(TrainerFacts, refuse_each_by_name_what_cannot_be_moved) {
  EXPECT_NO_THROW(TrainerFacts{}.refuse_unmovable());
  const auto says = [](TrainerFacts facts) { return refusal<InvalidInput>([&] { facts.refuse_unmovable(); }); };
  const std::vector<std::string> all = {says({.fully_sharded = true}),  says({.weight_remat = 2}),
                                        says({.experts_differ = true}), says({.replay_in_flight = true}),
                                        says({.offloaded = true}),      says({.params_gather_pending = true})};
  EXPECT_THAT(all[0], HasSubstr("fully_sharded"));
  EXPECT_THAT(all[1], HasSubstr("2"));
  EXPECT_THAT(all[2], HasSubstr("experts"));
  EXPECT_THAT(all[3], HasSubstr("replay"));
  EXPECT_THAT(all[4], AnyOf(HasSubstr("offload"), HasSubstr("host")));
  EXPECT_THAT(all[5], HasSubstr("gather"));
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = a + 1; b < all.size(); ++b) EXPECT_NE(all[a], all[b]);
  }
}

TEST(GridLayoutFingerprint, changes_with_everything_that_ranks_must_agree_on) {
  const ExpertGrid grid{.ep = 2, .edp = 2};
  const auto two = [&](std::vector<ExpertTensor> tensors) {
    return GridLayout::megatron(grid, 1, 2, one_parameter(), std::move(tensors)).fingerprint();
  };
  ExpertTensor renamed = weight(), retyped = weight(), recast = weight();
  renamed.name = "other";
  retyped.type = ScalarType::F16;
  recast.role = TensorRole::Bias;
  std::vector<std::string> all = {
      GridLayout::adam(grid, 1, 2, 16, 12).fingerprint(),
      GridLayout::adam(grid, 2, 2, 16, 12).fingerprint(),
      GridLayout::adam(grid, 1, 3, 16, 12).fingerprint(),
      GridLayout::adam(grid, 1, 2, 12, 16).fingerprint(),
      GridLayout::adam({.ep = 4, .edp = 1}, 1, 2, 16, 12).fingerprint(),
      GridLayout::adam(grid, 1, 2, 16, 12, {.bucket_elements = 100}).fingerprint(),
      GridLayout::adam(grid, 1, 2, 16, 12, {.high_bus_bandwidth = true}).fingerprint(),
      two({weight(), master()}),
      two({master(), weight()}),
      two({renamed, master()}),
      two({retyped, master()}),
      two({recast, master()}),
      with_ranges({{0, 0, 10}, {1, 10, 32}}).fingerprint(),
      with_ranges({{1, 0, 10}, {0, 10, 32}}).fingerprint(),
      with_ranges({{0, 0, 11}, {1, 11, 32}}).fingerprint(),
  };
  for (std::size_t a = 0; a < all.size(); ++a) {
    EXPECT_EQ(all[a].substr(0, 5), "xxh3:");
    EXPECT_EQ(all[a].size(), 21U);
    for (std::size_t b = a + 1; b < all.size(); ++b) EXPECT_NE(all[a], all[b]) << a << " and " << b;
  }
  EXPECT_EQ(all[7], two({weight(), master()}));
}

TEST(GridLayoutFile, survives_being_written_and_read) {
  const TemporaryFolder folder;
  for (const ExpertGrid grid : {ExpertGrid{.ep = 2, .edp = 1}, ExpertGrid{.ep = 3, .edp = 4}}) {
    for (const NamedLayout& it : layouts_of_every_kind(grid)) {
      SCOPED_TRACE(it.name);
      const std::string text = it.layout.to_json();
      const GridLayout again = GridLayout::from_json(text, "layout.json");
      EXPECT_EQ(again, it.layout);
      EXPECT_EQ(again.fingerprint(), it.layout.fingerprint());
      EXPECT_EQ(again.to_json(), text);
      it.layout.save(folder / "layout.json");
      EXPECT_EQ(contents_of(folder / "layout.json"), text);
      EXPECT_EQ(GridLayout::load(folder / "layout.json"), it.layout);
    }
  }
}

TEST(GridLayoutFile, says_which_format_it_is) {
  const Json json = Json::parse(GridLayout::adam({.ep = 2, .edp = 1}, 1, 1, 16, 12).to_json());
  EXPECT_EQ(json.at("format"), "routepack.grid-layout/1");
  EXPECT_EQ(json.at("format"), json.begin().value());
}

/// Every place in a JSON value, the root included.
void for_each_place(const Json& value, const Json::json_pointer& at,
                    const std::function<void(const Json&, const Json::json_pointer&)>& visit) {
  visit(value, at);
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) for_each_place(member, at / key, visit);
  } else if (value.is_array()) {
    for (std::size_t k = 0; k < value.size(); ++k) for_each_place(value[k], at / k, visit);
  }
}

/// Files of both forms, without the fingerprint, which would refuse every change by itself.
std::vector<Json> file_texts() {
  std::vector<Json> files = {Json::parse(
      contents_of(std::filesystem::path(ROUTEPACK_SOURCE_DIR) / "tests/fuzz/corpus/grid_layout/megatron.json"))};
  for (const NamedLayout& it : layouts_of_every_kind({.ep = 2, .edp = 2})) {
    files.push_back(Json::parse(it.layout.to_json()));
    EXPECT_EQ(files.back().erase("fingerprint"), 1U);
  }
  return files;
}

/// The one-line refusal of a file; empty, and no failure, when it is taken.
std::string file_refusal(const std::string& text) {
  try {
    GridLayout::from_json(text, "layout.json");
  } catch (const InvalidInput& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find_first_of("\n\r"), std::string::npos) << message;
    EXPECT_EQ(message.substr(0, 11), "layout.json") << message;
    return message;
  }
  return "";
}

TEST(GridLayoutFile, ignores_keys_that_it_does_not_know_as_all_readers_of_a_version_do) {
  for (const Json& file : file_texts()) {
    const GridLayout layout = GridLayout::from_json(file.dump(), "layout.json");
    for_each_place(file, Json::json_pointer(), [&](const Json& value, const Json::json_pointer& at) {
      if (!value.is_object()) return;
      Json changed = file;
      changed[at]["surprise"] = 1;
      EXPECT_EQ(GridLayout::from_json(changed.dump(), "layout.json"), layout) << at.to_string();
    });
  }
}

TEST(GridLayoutFile, by_the_rules_of_megatron_is_the_layout_that_the_rules_give) {
  const Json file = file_texts().front();
  const GridLayout layout = GridLayout::from_json(file.dump(), "layout.json");
  std::vector<ExpertTensor> tensors(layout.tensors().begin(), layout.tensors().end() - 1);
  MegatronBuffers buffers{.registration = Registration::Sequential, .bucket_elements = 500};
  buffers.chunks = {{LayerId(0)}, {LayerId(1)}};
  const GridLayout wanted = GridLayout::megatron({.ep = 4, .edp = 2}, 2, 2, {{"fc1", {24, 16}}, {"fc2", {16, 12}}},
                                                 std::move(tensors), buffers);
  EXPECT_EQ(layout, wanted);
  ASSERT_EQ(layout.tensors().size(), 8U);
  const ExpertTensor blocks{"fc2.blocks", TensorRole::Weight, ScalarType::F8_E4M3, Spread::Replicated, 192, 1};
  EXPECT_EQ(layout.tensors()[2], blocks);
  const ExpertTensor step{"step", TensorRole::Step, ScalarType::I64, Spread::Equal, 1, {}};
  EXPECT_EQ(layout.tensors()[6], step);
}

TEST(GridLayoutFile, refuses_trainers_that_cannot_be_moved) {
  const Json file = file_texts().front();
  for (const char* fact :
       {"fully_sharded", "experts_differ", "replay_in_flight", "offloaded", "params_gather_pending"}) {
    Json changed = file;
    changed["trainer"][fact] = true;
    EXPECT_NE(file_refusal(changed.dump()), "") << fact;
  }
  Json changed = file;
  changed["trainer"]["weight_remat"] = 2;
  EXPECT_NE(file_refusal(changed.dump()), "");
}

TEST(GridLayoutFile, refuses_both_and_neither_of_rules_and_ranges) {
  Json file = file_texts().front();
  const Json ranges = file_texts().back().at("ranges");
  file["ranges"] = ranges;
  EXPECT_THAT(file_refusal(file.dump()), AllOf(HasSubstr("megatron"), HasSubstr("ranges")));
  file.erase("ranges");
  file.erase("megatron");
  EXPECT_THAT(file_refusal(file.dump()), AllOf(HasSubstr("megatron"), HasSubstr("ranges")));
}

TEST(GridLayoutFile, refuses_a_fingerprint_that_is_not_its_own) {
  Json file = Json::parse(GridLayout::adam({.ep = 2, .edp = 1}, 1, 1, 16, 12).to_json());
  file["layers"] = 2;
  file["ranges"].push_back(file["ranges"][0]);
  EXPECT_THAT(file_refusal(file.dump()), HasSubstr("fingerprint"));
}

TEST(GridLayoutFile, of_few_bytes_does_not_ask_for_much_memory) {
  Json file = file_texts().front();
  file["megatron"].erase("chunks");
  for (const auto& [layers, slots] : {std::pair(2147483647, 1), std::pair(1, 1073741823), std::pair(46340, 46340)}) {
    file["layers"] = layers;
    file["slots"] = slots;
    EXPECT_NE(file_refusal(file.dump()), "") << layers << " layers of " << slots;
  }
}

TEST(GridLayoutFile, refuses_a_value_of_another_type_in_every_place) {
  for (const Json& file : file_texts()) {
    for_each_place(file, Json::json_pointer(), [&](const Json& value, const Json::json_pointer& at) {
      const std::vector<Json> others = {
          Json(nullptr), Json(true), Json(1.5), Json("text"), Json::array({Json::object()}), Json::object({{"a", 1}})};
      for (const Json& other : others) {
        if (other.type() == value.type()) continue;
        Json changed = file;
        changed[at] = other;
        EXPECT_NE(file_refusal(changed.dump()), "") << at.to_string() << " = " << other.dump();
      }
    });
  }
}

TEST(GridLayoutFile, refuses_numbers_that_are_out_of_bounds_in_every_place) {
  for (const Json& file : file_texts()) {
    for_each_place(file, Json::json_pointer(), [&](const Json& value, const Json::json_pointer& at) {
      if (!value.is_number()) return;
      for (const char* number : {"-1", "9223372036854775807", "-9223372036854775808", "18446744073709551615",
                                 "9223372036854775808", "1e400", "1.0e18"}) {
        Json changed = file;
        changed[at] = "NUMBER";
        std::string text = changed.dump();
        text.replace(text.find("\"NUMBER\""), 8, number);
        const std::string says = file_refusal(text);
        // As a bucket size every positive integer has a meaning.
        if (at.to_string() == "/megatron/bucket_elements" && std::string(number) == "9223372036854775807") continue;
        EXPECT_NE(says, "") << at.to_string() << " = " << number;
      }
    });
  }
}

TEST(GridLayoutFile, refuses_or_completes_a_file_that_lacks_a_key) {
  for (const Json& file : file_texts()) {
    const GridLayout whole = GridLayout::from_json(file.dump(), "layout.json");
    for_each_place(file, Json::json_pointer(), [&](const Json&, const Json::json_pointer& at) {
      if (at.empty()) return;
      Json changed = file;
      Json& parent = changed[at.parent_pointer()];
      if (!parent.is_object()) return;
      parent.erase(at.back());
      if (file_refusal(changed.dump()).empty()) {
        const GridLayout less = GridLayout::from_json(changed.dump(), "layout.json");
        EXPECT_EQ(GridLayout::from_json(less.to_json(), "layout.json"), less) << at.to_string();
      }
    });
    for (const char* key : {"format"}) {
      Json changed = file;
      changed.erase(key);
      EXPECT_THAT(file_refusal(changed.dump()), HasSubstr(key));
    }
  }
}

TEST(GridLayoutFile, refuses_another_format_and_another_version) {
  Json file = file_texts().front();
  for (const char* format : {"routepack.grid-layout/2", "routepack.placement/1", "", "routepack.grid-layout/1 "}) {
    file["format"] = format;
    EXPECT_THAT(file_refusal(file.dump()), HasSubstr("format")) << format;
  }
}

TEST(GridLayoutFile, refuses_text_that_is_no_json_object) {
  const std::string good = file_texts().front().dump();
  for (const std::string& text :
       {std::string(), std::string("null"), std::string("[]"), std::string("3"), std::string("\"x\""),
        good.substr(0, good.size() - 1), good + "}", good + " {}", std::string("\xff\xfe{}", 4),
        std::string(100'000, '['), "{\"format\": \"routepack.grid-layout/1\", " + good.substr(1)}) {
    EXPECT_NE(file_refusal(text), "") << text.substr(0, 60);
  }
}

TEST(GridLayoutFile, names_a_file_that_is_not_there) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal<IoError>([&] { GridLayout::load(folder / "missing.json"); }), HasSubstr("missing.json"));
  const auto path = folder.file("bad.json", "{}");
  EXPECT_THAT(refusal<FormatError>([&] { GridLayout::load(path); }), HasSubstr("bad.json"));
}

}  // namespace
}  // namespace routepack::testing
