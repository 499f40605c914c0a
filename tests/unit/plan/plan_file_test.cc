// SPDX-License-Identifier: Apache-2.0
#include "routepack/plan_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "core/json.h"
#include "routepack/error.h"
#include "support/builders.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::make_window;
using testing::random_window;
using testing::refusal;
using ::testing::StartsWith;

/// The least that a plan file may say: 4 samples, 1 layer, 4 experts, 2 ranks, 2 slots.
const char* const kSmall = R"({
  "format": "routepack.plan/1",
  "topology": {"ep": 2, "shards": [[0, 1]]},
  "capacity": 10,
  "cost": {"stages": [{"name": "linear", "alpha": 2.0, "beta": 0.0}], "expert": 1.0},
  "rows": 2,
  "physical_to_logical": [[0, 1, 2, 3]],
  "layout": [[[0], [2]], [[1], [3]]]
})";

/// kSmall with one value replaced; an empty `value` takes the key away. `pointer` is a JSON pointer.
std::string with(const std::string& pointer, const std::string& value) {
  Json plan = Json::parse(kSmall);
  const Json::json_pointer at(pointer);
  if (value.empty()) {
    plan.at(at.parent_pointer()).erase(at.back());
  } else {
    plan[at] = Json::parse(value);
  }
  return plan.dump();
}

std::string said(const std::string& json) {
  return refusal<FormatError>([&] { parse_plan(json, "plan.json"); });
}

PlanRecord random_record(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int32_t n) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(n));
  };
  const auto number = [&] { return static_cast<double>(random() >> 11) * 0x1.0p-40; };
  PlanRecord record;
  record.ep = 1 + below(64);
  for (std::int32_t g = 1 + below(3); g > 0; --g) record.shards.push_back({below(9), below(9)});
  record.capacity = 1 + below(100'000);
  record.rows = below(50);
  for (std::int32_t l = below(4); l > 0; --l) record.physical_to_logical.push_back({below(9), below(9), below(9)});
  for (std::int32_t r = below(4); r > 0; --r) {
    auto& row = record.layout.emplace_back();
    for (std::int32_t d = below(3); d > 0; --d) row.emplace_back(static_cast<std::size_t>(below(4)), below(99));
  }
  for (std::int32_t s = below(3); s > 0; --s)
    record.stages.push_back({"stage \"" + std::to_string(s) + "\" é\n", number(), number()});
  record.expert_uniform = below(2) == 0;
  record.expert = {number()};
  if (!record.expert_uniform) record.expert.push_back(number());
  record.constraints.cell_multiple = 1 + below(64);
  record.constraints.equal_count = below(2) == 0;
  record.constraints.oversized = below(2) == 0 ? Oversized::Error : Oversized::OwnCell;
  record.sync = below(2) == 0 ? Sync::Step : Sync::Row;
  record.dummies = below(3);
  record.complete = below(2) == 0;
  if (below(2) == 0) record.window = PlanRecord::WindowStamp{below(9), below(9), below(9), "xxh3:0123456789abcdef"};
  if (below(2) == 0) record.pipeline_stages = 2 + below(6);
  if (below(2) == 0) record.rows_lower_bound = below(50);
  if (below(2) == 0) record.rows_certified = below(2) == 0;
  if (below(2) == 0) record.score = Score{number(), number(), number()};
  if (below(2) == 0) record.bound = number();
  if (below(2) == 0) record.gap = number();
  if (below(2) == 0) record.bound_fixed_placement = number();
  if (below(2) == 0)
    record.moves = PlanRecord::MovesRecord{below(99), below(99), number(),
                                           below(2) == 0 ? std::optional<std::int64_t>(below(9)) : std::nullopt};
  if (below(2) == 0) record.metrics = {{"cv_global", number()}, {"tail_peak", 17.0}, {"attention", 3.0}};
  if (below(2) == 0) record.timings_ms = {{"search", number()}};
  if (below(2) == 0) {
    record.params = PlanParams{};
    record.params->seed = below(1000);
    record.params->placement = PlacementMode::Keep;
    record.params->moves = below(2) == 0 ? "0.05 price:1,2" : "";
    record.params->sticky_eps = below(2) == 0 ? 0.25 : 0.01;
    if (below(2) == 0) {
      record.params->search = search_of(Effort::Paper);
      record.params->search->hot = 1.0 + number();
      record.params->search->paper_energy = below(2) == 0;
      record.params->search->levels = 1 + below(99);
    }
  }
  return record;
}

void expect_equal(const PlanRecord& a, const PlanRecord& b) {
  EXPECT_EQ(a.ep, b.ep);
  EXPECT_EQ(a.shards, b.shards);
  EXPECT_EQ(a.capacity, b.capacity);
  EXPECT_EQ(a.rows, b.rows);
  EXPECT_EQ(a.physical_to_logical, b.physical_to_logical);
  EXPECT_EQ(a.layout, b.layout);
  EXPECT_EQ(a.stages, b.stages);
  EXPECT_EQ(a.expert, b.expert);
  EXPECT_EQ(a.expert_uniform, b.expert_uniform);
  EXPECT_EQ(a.constraints, b.constraints);
  EXPECT_EQ(a.sync, b.sync);
  EXPECT_EQ(a.dummies, b.dummies);
  EXPECT_EQ(a.complete, b.complete);
  EXPECT_EQ(a.pipeline_stages, b.pipeline_stages);
  EXPECT_EQ(a.rows_lower_bound, b.rows_lower_bound);
  EXPECT_EQ(a.rows_certified, b.rows_certified);
  EXPECT_EQ(a.bound, b.bound);
  EXPECT_EQ(a.gap, b.gap);
  EXPECT_EQ(a.bound_fixed_placement, b.bound_fixed_placement);
  EXPECT_EQ(a.metrics, b.metrics);
  EXPECT_EQ(a.timings_ms, b.timings_ms);
  EXPECT_EQ(a.params, b.params);
  ASSERT_EQ(a.window.has_value(), b.window.has_value());
  if (a.window) {
    EXPECT_EQ(a.window->samples, b.window->samples);
    EXPECT_EQ(a.window->layers, b.window->layers);
    EXPECT_EQ(a.window->experts, b.window->experts);
    EXPECT_EQ(a.window->fingerprint, b.window->fingerprint);
  }
  ASSERT_EQ(a.score.has_value(), b.score.has_value());
  if (a.score) {
    EXPECT_EQ(a.score->max_shard, b.score->max_shard);
    EXPECT_EQ(a.score->total, b.score->total);
    EXPECT_EQ(a.score->worst_row, b.score->worst_row);
  }
  ASSERT_EQ(a.moves.has_value(), b.moves.has_value());
  if (a.moves) {
    EXPECT_EQ(a.moves->experts, b.moves->experts);
    EXPECT_EQ(a.moves->local, b.moves->local);
    EXPECT_EQ(a.moves->fraction, b.moves->fraction);
    EXPECT_EQ(a.moves->bytes, b.moves->bytes);
  }
}

TEST(PlanFile, reads_the_least_that_a_plan_may_say) {
  const PlanRecord record = parse_plan(kSmall, "plan.json");
  EXPECT_EQ(record.source, "plan.json");
  EXPECT_EQ(record.ep, 2);
  EXPECT_EQ(record.capacity, 10);
  EXPECT_EQ(record.layout[1][0], std::vector<std::int32_t>{1});
  EXPECT_EQ(record.sync, Sync::Step);
  EXPECT_EQ(record.constraints, Constraints{});
  EXPECT_FALSE(record.window.has_value());
  EXPECT_FALSE(record.score.has_value());
}

TEST(PlanFile, reads_back_every_field_that_it_wrote) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const PlanRecord record = random_record(seed);
    const std::string json = to_json(record);
    SCOPED_TRACE(json);
    expect_equal(parse_plan(json, "plan.json"), record);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST(PlanFile, writes_keys_in_the_documented_order) {
  PlanRecord record = parse_plan(kSmall, "plan.json");
  record.window = PlanRecord::WindowStamp{4, 1, 4, "xxh3:0123456789abcdef"};
  record.rows_lower_bound = 2;
  record.rows_certified = true;
  record.dummies = 1;
  record.score = Score{};
  record.bound = 1.0;
  record.moves = PlanRecord::MovesRecord{};
  record.metrics = {{"joint", 1.0}};
  record.timings_ms = {{"search", 1.0}};
  record.params = PlanParams{};
  record.search = SearchReport{};
  record.placing = PlacementReport{};
  record.placing->first_batch = Placement::identity(1, 4, 2);
  std::vector<std::string> keys;
  const Json json = Json::parse(to_json(record));
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("format", "window", "topology", "capacity", "constraints", "cost", "sync", "complete",
                                "rows", "rows_lower_bound", "rows_certified", "dummies", "physical_to_logical",
                                "layout", "score", "bound", "moves", "placing", "first_batch", "search", "metrics",
                                "timings_ms", "params", "seed", "version"));
}

TEST(PlanFile, writes_a_line_per_layer_and_per_row) {
  const std::string json = to_json(parse_plan(kSmall, "plan.json"));
  EXPECT_THAT(json, HasSubstr("\n  \"topology\": {\"ep\": 2, \"shards\": [[0, 1]]},\n"));
  EXPECT_THAT(json, HasSubstr("\n  \"physical_to_logical\": [\n    [0, 1, 2, 3]\n  ],\n"));
  EXPECT_THAT(json, HasSubstr("\n  \"layout\": [\n    [[0], [2]],\n    [[1], [3]]\n  ],\n"));
}

TEST(PlanFile, writes_every_constraint_and_parameter_under_its_name) {
  PlanRecord record = parse_plan(kSmall, "plan.json");
  record.constraints.max_rank_tokens = 77;
  record.constraints.oversized = Oversized::OwnCell;
  record.params = PlanParams{.effort = Effort::Quality, .seed = 5};
  const Json json = Json::parse(to_json(record));
  EXPECT_EQ(json["constraints"].size(), 9U);
  EXPECT_EQ(json["constraints"]["max_rank_tokens"], 77);
  EXPECT_EQ(json["constraints"]["oversized"], "own-cell");
  EXPECT_EQ(json["params"]["effort"], "quality");
  EXPECT_EQ(json["seed"], 5);
}

TEST(PlanFile, writes_the_moves_as_cycles_of_slots_and_as_traffic_of_ranks) {
  PlanRecord record = parse_plan(with("/physical_to_logical", "[[0, 1, 2, 3], [2, 1, 0, 3]]"), "plan.json");
  record.moves = PlanRecord::MovesRecord{2, 0, 0.25, 20};
  record.placing = PlacementReport{};
  record.placing->layers = {LayerEnd::Kept, LayerEnd::HotExpert};
  record.placing->sticky_swaps = 1;
  record.placing->moves = list_moves(Placement::identity(2, 4, 2),
                                     Placement::from_maps(2,
                                                          {{ExpertId(0), ExpertId(1), ExpertId(2), ExpertId(3)},
                                                           {ExpertId(2), ExpertId(1), ExpertId(0), ExpertId(3)}},
                                                          "test"),
                                     10, 1);
  const Json json = Json::parse(to_json(record));
  EXPECT_EQ(json["moves"], Json::parse(R"({"experts": 2, "fraction": 0.25, "local": 0, "bytes": 20,
      "between_nodes": 2, "same_index": 2, "bytes_in": [10, 10], "bytes_out": [10, 10], "cycles": [[], [[0, 2]]]})"));
  EXPECT_EQ(json["placing"], Json::parse(R"({"sticky_swaps": 1, "swaps_needed": 0, "row_aware_swaps": 0,
      "layers": ["kept", "hot expert"]})"));
  EXPECT_FALSE(json.contains("first_batch"));
}

TEST(PlanFile, writes_what_the_search_did_and_with_which_parameters) {
  PlanRecord record = parse_plan(kSmall, "plan.json");
  record.search = SearchReport{.ending = Ending::NothingToMove, .seed = 2.5, .seeds = 3, .failed_seeds = 1};
  record.params = PlanParams{.search = search_of(Effort::Paper)};
  const Json json = Json::parse(to_json(record));
  EXPECT_EQ(json["search"], Json::parse(R"({"ending": "nothing to move", "seed": 2.5, "seeds": 3, "failed_seeds": 1,
      "levels": 0, "proposals": 0, "accepted": 0})"));
  EXPECT_EQ(json["params"]["search"]["population"], 8);
  EXPECT_EQ(json["params"]["search"]["paper_energy"], true);
}

TEST(PlanFile, refuses_search_parameters_outside_their_bounds) {
  EXPECT_EQ(said(with("/params", R"({"search": {"levels": 0}})")),
            "plan.json: params.search.levels: found the number 0, wanted an integer from 1 to 1048576");
  EXPECT_EQ(said(with("/params", R"({"search": {"near_share": 1.5}})")),
            "plan.json: params.search.near_share: found 1.5, wanted 0 to 1");
  EXPECT_EQ(said(with("/params", R"({"search": 3})")),
            "plan.json: params.search: found the number 3, wanted an object");
}

TEST(PlanFile, leaves_out_dummies_stages_and_bytes_that_there_are_not) {
  PlanRecord record = parse_plan(kSmall, "plan.json");
  record.pipeline_stages = 1;
  record.moves = PlanRecord::MovesRecord{};
  const Json json = Json::parse(to_json(record));
  EXPECT_FALSE(json.contains("dummies"));
  EXPECT_FALSE(json["topology"].contains("pp"));
  EXPECT_FALSE(json["moves"].contains("bytes"));
}

TEST(PlanFile, writes_token_sums_as_integers) {
  PlanRecord record = parse_plan(kSmall, "plan.json");
  record.metrics = {{"expert_peak_sum", 13.0}, {"attention", 13.0}};
  EXPECT_THAT(to_json(record), HasSubstr("\"metrics\": {\"expert_peak_sum\": 13, \"attention\": 13.0}"));
}

TEST(PlanFile, ignores_keys_that_it_does_not_know) {
  EXPECT_NO_THROW(parse_plan(with("/future", R"({"x": [null]})"), "plan.json"));
  EXPECT_NO_THROW(parse_plan(with("/constraints", R"({"future": null})"), "plan.json"));
  EXPECT_NO_THROW(parse_plan(with("/topology/future", "null"), "plan.json"));
}

TEST(PlanFile, reads_an_uneven_layout_and_leaves_rules_to_the_verifier) {
  const PlanRecord record = parse_plan(with("/layout", "[[[0], []], [[1, 1, 99]], []]"), "plan.json");
  EXPECT_EQ(record.layout.size(), 3U);
  EXPECT_EQ(record.rows, 2);
  EXPECT_NO_THROW(parse_plan(with("/physical_to_logical", "[[0, 0], [7]]"), "plan.json"));
  EXPECT_NO_THROW(parse_plan(with("/topology/shards", "[[0], [0, 5]]"), "plan.json"));
}

TEST(PlanFile, refuses_a_plan_without_a_needed_key) {
  for (const std::string key : {"format", "topology", "capacity", "rows", "physical_to_logical", "layout", "cost"}) {
    EXPECT_EQ(said(with("/" + key, "")), "plan.json: key \"" + key + "\" is missing");
  }
  EXPECT_EQ(said(with("/topology/ep", "")), "plan.json: topology: key \"ep\" is missing");
  EXPECT_EQ(said(with("/cost/stages/0/beta", "")), "plan.json: cost.stages[0]: key \"beta\" is missing");
  EXPECT_EQ(said(with("/cost/expert", "")), "plan.json: cost: key \"expert\" is missing");
}

TEST(PlanFile, refuses_another_format_or_major_version) {
  EXPECT_THAT(said(with("/format", "\"routepack.plan/2\"")),
              StartsWith("plan.json: format: found version 2 of routepack.plan, wanted version 1"));
  EXPECT_EQ(said(with("/format", "\"routepack.placement/1\"")),
            "plan.json: format: found the string \"routepack.placement/1\", wanted \"routepack.plan/1\"");
}

TEST(PlanFile, refuses_wrong_types_with_the_path_to_the_element) {
  EXPECT_EQ(said(with("/rows", "2.0")),
            "plan.json: rows: found the number 2.0, wanted an integer from 0 to 2147483647");
  EXPECT_EQ(said(with("/layout/1/1/0", "-1")),
            "plan.json: layout[1][1][0]: found the number -1, wanted an integer from 0 to 2147483647");
  EXPECT_EQ(said(with("/layout/0/1", "2")), "plan.json: layout[0][1]: found the number 2, wanted an array");
  EXPECT_EQ(said(with("/physical_to_logical/0/2", "\"2\"")),
            "plan.json: physical_to_logical[0][2]: found the string \"2\", wanted an integer from 0 to 2147483647");
  EXPECT_EQ(said(with("/topology/shards/0/0", "true")),
            "plan.json: topology.shards[0][0]: found true, wanted an integer from 0 to 2147483647");
  EXPECT_EQ(said(with("/topology", "[]")), "plan.json: topology: found an array of 0, wanted an object");
  EXPECT_EQ(said(with("/capacity", "0")),
            "plan.json: capacity: found the number 0, wanted an integer from 1 to 94906265");
  EXPECT_EQ(said(with("/cost/stages/0/alpha", "\"x\"")),
            "plan.json: cost.stages[0].alpha: found the string \"x\", wanted a number");
  EXPECT_EQ(said(with("/cost/expert", "{}")),
            "plan.json: cost.expert: found an object, wanted a number, or a list with one number per layer");
  EXPECT_EQ(said(with("/cost/expert", "[1, null]")), "plan.json: cost.expert[1]: found null, wanted a number");
}

TEST(PlanFile, refuses_null_and_wrong_types_in_optional_keys) {
  for (const std::string key :
       {"window", "constraints", "score", "bound", "moves", "metrics", "timings_ms", "params"}) {
    EXPECT_EQ(said(with("/" + key, "null")), "plan.json: " + key + ": found null, wanted an object");
  }
  EXPECT_EQ(said(with("/complete", "1")), "plan.json: complete: found the number 1, wanted true or false");
  EXPECT_EQ(said(with("/sync", "\"often\"")),
            "plan.json: sync: found the string \"often\", wanted one of \"step\", \"row\"");
  EXPECT_EQ(said(with("/metrics", R"({"joint": "8"})")),
            "plan.json: metrics.joint: found the string \"8\", wanted a number");
  EXPECT_EQ(said(with("/score", R"({"max_shard": 1, "total": 1})")), "plan.json: score: key \"worst_row\" is missing");
  EXPECT_EQ(said(with("/bound", R"({"gap": null})")), "plan.json: bound.gap: found null, wanted a number");
  EXPECT_EQ(said(with("/version", "1")), "plan.json: version: found the number 1, wanted a string");
}

TEST(PlanFile, refuses_constraints_outside_their_bounds) {
  EXPECT_EQ(said(with("/constraints", R"({"sample_multiple": 0})")),
            "plan.json: constraints.sample_multiple: found the number 0, wanted an integer from 1 to 94906265");
  EXPECT_EQ(said(with("/constraints", R"({"equal_count": "yes"})")),
            "plan.json: constraints.equal_count: found the string \"yes\", wanted true or false");
  EXPECT_EQ(said(with("/constraints", R"({"oversized": "drop"})")),
            "plan.json: constraints.oversized: found the string \"drop\", wanted one of \"error\", \"own-cell\"");
}

TEST(PlanFile, refuses_a_seed_that_contradicts_the_parameters) {
  Json plan = Json::parse(with("/params", R"({"seed": 3})"));
  plan["seed"] = 4;
  EXPECT_EQ(said(plan.dump()), "plan.json: seed: found 4, wanted 3, as in params.seed");
}

TEST(PlanFile, loads_what_it_saved_and_names_the_file) {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "plan_file_test.json";
  const PlanRecord record = random_record(1);
  save_plan(record, path);
  const PlanRecord loaded = load_plan(path);
  expect_equal(loaded, record);
  EXPECT_EQ(loaded.source, path.string());
  std::filesystem::remove(path);
  EXPECT_THAT(refusal<IoError>([&] { load_plan(path); }), HasSubstr(path.string()));
}

TEST(CheckRecord, turns_a_record_into_validated_types) {
  const Window window = make_window(random_window(1, 4, 1, 4, 1, 1, 5));
  const CheckedPlan checked = check_record(parse_plan(kSmall, "plan.json"), window);
  EXPECT_EQ(checked.layout.rows(), 2);
  EXPECT_EQ(checked.placement, Placement::identity(1, 4, 2));
  EXPECT_EQ(checked.instance.topology.slots(), 2);
  EXPECT_EQ(checked.instance.cost.stages()[0].alpha, 2.0);
}

TEST(CheckRecord, takes_the_fingerprint_of_the_window_and_no_other) {
  const Window window = make_window(random_window(1, 4, 1, 4, 1, 1, 5));
  PlanRecord record = parse_plan(kSmall, "plan.json");
  record.window = PlanRecord::WindowStamp{4, 1, 4, window.fingerprint()};
  EXPECT_NO_THROW(check_record(record, window));
  record.window->fingerprint = "xxh3:0000000000000000";
  EXPECT_EQ(refusal<InvalidInput>([&] { check_record(record, window); }),
            "plan.json: window.fingerprint: found xxh3:0000000000000000, wanted " + window.fingerprint() +
                ", as in the window: the plan is for another window");
  record.window->layers = 2;
  EXPECT_EQ(refusal<InvalidInput>([&] { check_record(record, window); }),
            "plan.json: window.layers: found 2, wanted 1, as in the window: the plan is for another window");
}

TEST(CheckRecord, refuses_a_plan_for_a_window_of_another_shape) {
  const auto against = [](const Window& window) {
    return refusal<InvalidInput>([&] { check_record(parse_plan(kSmall, "plan.json"), window); });
  };
  EXPECT_EQ(
      against(make_window(random_window(1, 4, 2, 4, 1, 1, 5))),
      "plan.json: layers in physical_to_logical: found 1, wanted 2, as in the window: the plan is for another window");
  EXPECT_EQ(
      against(make_window(random_window(1, 4, 1, 8, 1, 1, 5))),
      "plan.json: experts in physical_to_logical[0]: found 4, wanted 8, as in the window: the plan is for another "
      "window");
  EXPECT_EQ(against(make_window(random_window(1, 6, 1, 4, 1, 1, 5))),
            "plan.json: layout: found 4 of 6 samples, missing 4, 5");
}

TEST(CheckRecord, refuses_what_scoring_cannot_use_and_names_the_file) {
  const Window window = make_window(random_window(1, 4, 1, 4, 1, 1, 5));
  const auto against = [&](const std::string& pointer, const std::string& value) {
    return refusal<InvalidInput>([&] { check_record(parse_plan(with(pointer, value), "plan.json"), window); });
  };
  EXPECT_EQ(against("/rows", "3"), "plan.json: rows: found 3, wanted 2, the length of layout");
  EXPECT_EQ(against("/physical_to_logical/0/0", "3"),
            "plan.json: physical_to_logical[0]: expert 3 occurs twice (slots 0 and 3)");
  EXPECT_EQ(against("/topology/shards", "[[0, 0]]"),
            "plan.json: topology: shards[0][1]: slot 0 occurs twice (first in shards[0][0])");
  EXPECT_EQ(against("/layout/1", "[[1, 3]]"), "plan.json: layout[1]: found 1 cells, wanted 2, one per slot");
  EXPECT_EQ(against("/layout/1/0/0", "2"),
            "plan.json: layout[1][0][0]: sample 2 occurs twice (first in row 0, slot 1)");
  EXPECT_EQ(against("/cost/expert", "-1"),
            "plan.json: cost: expert: found -1, wanted a finite number, at least 0 and at most 1e+100");
  EXPECT_THAT(against("/topology/ep", "3"), StartsWith("plan.json: "));
  EXPECT_THAT(against("/cost/expert", "[1, 1]"), StartsWith("plan.json: "));
}

TEST(CheckRecord, counts_dummies_behind_the_samples_of_the_window) {
  const Window window = make_window(random_window(1, 3, 1, 4, 1, 1, 5));
  PlanRecord record = parse_plan(kSmall, "plan.json");
  record.dummies = 1;
  EXPECT_EQ(check_record(record, window).layout.cell(RowId(1), SlotId(1))[0], SampleId(3));
}

}  // namespace
}  // namespace routepack
