// SPDX-License-Identifier: Apache-2.0
#include "simulate/chrome_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "support/problems.h"

namespace routepack {
namespace {

using ::testing::ElementsAre;

/// Four samples in two rows of two slots, a shard each of two ranks; one MoE layer between two that are not.
testing::Problem problem() {
  testing::Problem problem;
  problem.spec = {.samples = 4, .layers = 1, .experts = 2, .top_k = 1};
  problem.spec.lengths = {2, 3, 1, 4};
  problem.spec.counts = {2, 0, 2, 1, 0, 1, 1, 3};
  problem.ranks = 2;
  problem.shards = {{0}, {1}};
  problem.expert = {1.0};
  problem.capacity = 4;
  return problem;
}

StepTiming timing() {
  StepTiming timing;
  timing.layers = {{.stage = "first", .routed = false, .token = {1e-3, 2e-3}},
                   {.stage = "say \"moe\"\n", .routed = true, .token = {1e-3, 2e-3}},
                   {.stage = "head", .routed = false, .token = {1e-3, 2e-3}}};
  timing.expert = {3e-3, 6e-3};
  timing.exchange = {1e-4, 1e-4};
  timing.row = 1e-3;
  timing.reduce = 5e-3;
  timing.optimizer = 7e-3;
  return timing;
}

class Keeper final : public TimelineSink {
 public:
  void interval(const Interval& interval) override { intervals.push_back(interval); }
  std::vector<Interval> intervals;
};

StepTimes simulate(const StepTiming& timing, TimelineSink* sink) {
  const testing::Problem of = problem();
  const testing::Scene scene(of);
  return simulate_step(scene.instance, Placement::identity(1, 2, 2), testing::to_layout({{{0}, {1}}, {{2}, {3}}}, of),
                       timing, {.stages = 2}, sink);
}

struct Written {
  Json document;
  std::int64_t events = 0;
};

Written trace(std::int32_t rows = std::numeric_limits<std::int32_t>::max()) {
  const StepTiming timed = timing();
  std::string text;
  ChromeTrace trace(
      timed,
      [&](std::span<const std::byte> bytes) {
        for (const std::byte byte : bytes) text += static_cast<char>(byte);
      },
      rows);
  trace.finish(simulate(timed, &trace));
  return {parse_json(text, "trace"), trace.events()};
}

std::vector<Json> of_kind(const Json& document, const std::string& phase) {
  std::vector<Json> events;
  for (const Json& event : document.at("traceEvents")) {
    if (event.at("ph") == phase) events.push_back(event);
  }
  return events;
}

TEST(ChromeTrace, has_every_interval_in_microseconds_on_the_track_of_its_device) {
  Keeper kept;
  const StepTiming timed = timing();
  const StepTimes times = simulate(timed, &kept);
  const Written written = trace();
  const auto events = of_kind(written.document, "X");
  ASSERT_EQ(events.size(), kept.intervals.size());
  EXPECT_EQ(written.events, static_cast<std::int64_t>(written.document.at("traceEvents").size()));
  std::map<std::pair<std::int64_t, std::int64_t>, std::set<std::tuple<std::int32_t, std::int32_t, std::int32_t>>>
      tracks;
  double last = 0.0;
  for (std::size_t n = 0; n < events.size(); ++n) {
    const Interval& interval = kept.intervals[n];
    const Json& event = events[n];
    EXPECT_NEAR(event.at("ts").get<double>(), 1e6 * interval.begin, 1e-3);
    EXPECT_NEAR(event.at("dur").get<double>(), 1e6 * (interval.end - interval.begin), 1e-3);
    EXPECT_EQ(event.at("cat").get<std::string>(), name_of(interval.activity));
    EXPECT_EQ(event.at("args").contains("row"), interval.row >= 0);
    if (interval.row >= 0) {
      EXPECT_EQ(event.at("args").at("row"), interval.row);
    }
    if (interval.layer >= 0) {
      EXPECT_EQ(event.at("args").at("layer"), interval.layer);
      EXPECT_EQ(event.at("args").at("pass"), interval.pass == Pass::Forward ? "forward" : "backward");
    }
    tracks[{event.at("pid").get<std::int64_t>(), event.at("tid").get<std::int64_t>()}].emplace(
        interval.device.stage, interval.device.shard.value(), interval.device.place);
    last = std::max(last, event.at("ts").get<double>() + event.at("dur").get<double>());
  }
  EXPECT_NEAR(last, 1e6 * times.seconds, 1e-2);
  EXPECT_EQ(tracks.size(), times.devices.size());
  for (const auto& [_, devices] : tracks) EXPECT_EQ(devices.size(), 1U);
}

TEST(ChromeTrace, names_work_by_its_stage_and_tracks_by_their_devices) {
  const Json document = trace().document;
  std::set<std::string> names;
  for (const Json& event : of_kind(document, "X")) names.insert(event.at("name"));
  EXPECT_THAT(names, ElementsAre("combine", "dispatch", "experts", "first", "head", "optimizer", "reduce", "row",
                                 "say \"moe\"\n", "wait"));
  std::map<std::int64_t, std::string> processes;
  std::multiset<std::string> threads;
  for (const Json& event : of_kind(document, "M")) {
    const std::string name = event.at("args").at("name");
    if (event.at("name") == "process_name") {
      processes[event.at("pid")] = name;
    } else {
      EXPECT_EQ(event.at("name"), "thread_name");
      threads.insert(name);
    }
  }
  std::vector<std::string> found;
  for (const auto& [_, name] : processes) found.push_back(name);
  EXPECT_THAT(found, ElementsAre("stage 0, shard 0", "stage 0, shard 1", "stage 1, shard 0", "stage 1, shard 1"));
  EXPECT_EQ(threads.count("device 0"), 4U);
  EXPECT_EQ(threads.count("device 1"), 4U);
  for (const Json& event : of_kind(document, "X")) EXPECT_TRUE(processes.contains(event.at("pid")));
}

TEST(ChromeTrace, leaves_out_later_rows_and_keeps_what_belongs_to_none) {
  const Json all = trace().document;
  const Json first = trace(1).document;
  const auto count = [](const Json& document, const auto& keep) {
    const auto events = of_kind(document, "X");
    return std::ranges::count_if(events, keep);
  };
  const auto of_row = [](int row) {
    return [row](const Json& event) { return event.at("args").value("row", -1) == row; };
  };
  for (const int row : {-1, 0}) {
    EXPECT_GT(count(first, of_row(row)), 0);
    EXPECT_EQ(count(first, of_row(row)), count(all, of_row(row)));
  }
  EXPECT_GT(count(all, of_row(1)), 0);
  EXPECT_EQ(count(first, of_row(1)), 0);
  EXPECT_EQ(of_kind(first, "M").size(), of_kind(all, "M").size());
}

TEST(ChromeTrace, of_many_events_is_written_in_pieces_that_make_one_document) {
  const StepTiming timed = timing();
  std::string text;
  int writes = 0;
  ChromeTrace trace(timed, [&](std::span<const std::byte> bytes) {
    ++writes;
    for (const std::byte byte : bytes) text += static_cast<char>(byte);
  });
  constexpr std::int32_t kMany = 20'000;
  for (std::int32_t n = 0; n < kMany; ++n) {
    trace.interval(
        {.device = {}, .activity = Activity::Experts, .row = n, .layer = 1, .begin = 1.0 * n, .end = 1.0 * n + 1.0});
  }
  trace.finish({});
  EXPECT_GT(writes, 1);
  EXPECT_EQ(parse_json(text, "trace").at("traceEvents").size(), static_cast<std::size_t>(kMany));
}

TEST(ChromeTrace, of_nothing_is_a_document) {
  const StepTiming timed = timing();
  std::string text;
  ChromeTrace trace(timed, [&](std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) text += static_cast<char>(byte);
  });
  trace.finish({});
  EXPECT_TRUE(parse_json(text, "trace").at("traceEvents").empty());
}

}  // namespace
}  // namespace routepack
