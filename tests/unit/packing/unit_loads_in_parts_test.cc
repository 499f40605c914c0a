// SPDX-License-Identifier: Apache-2.0
// Rank loads of items whose counts lie in several processes: the same everywhere, and no more said than is needed.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

#include "exec/executor.h"
#include "exec/team.h"
#include "packing/items.h"
#include "packing/unit_loads.h"
#include "routepack/error.h"
#include "support/team.h"
#include "support/window_parts.h"

namespace routepack {
namespace {

using testing::cut;
using testing::in_team;
using testing::join_as_member;
using testing::join_parts;
using testing::WindowSpec;

const CostModel kCost({{.name = "full", .alpha = 1.0, .beta = 1.0}});

Instance instance_of(const Window& window, Constraints constraints = {}) {
  return Instance(window, Topology::megatron({.dp = 4, .ep = 4}), kCost, 50'000, constraints);
}

/// 23 samples in four parts, some in atomic groups.
WindowSpec spec_of(bool wide) {
  WindowSpec spec = testing::random_window(7, 23, 3, 8, 1, 5, 60);
  for (int i = 0; i < 23; ++i) spec.atomic.push_back(i % 5 == 0 ? i / 10 : -1);
  if (wide) {  // sample 8, in the second part: more than 16 bits hold, with a sign
    spec.lengths[8] = spec.recorded[8] = 40'000;
    std::fill_n(spec.counts.begin() + std::int64_t{8} * 24, 24, 0U);
    for (std::size_t l = 0; l < 3; ++l) spec.counts[8 * 24 + l * 8 + l] = 40'000;
  }
  return spec;
}
const std::vector<std::int64_t> kCuts = {6, 13, 14};

struct Loads {
  bool narrow = true;
  std::vector<std::int64_t> loads;  ///< [item, L, P]
  std::int64_t sent = 0;
};

Loads loads_of(const Instance& instance, Executor& executor) {
  const Placement placement = Placement::identity(instance.window.layers(), instance.window.experts(), 4);
  const auto items = make_items(instance);
  const UnitLoads loads(instance, placement, std::get<Items>(items), executor);
  Loads seen{.narrow = loads.narrow(), .loads = {}, .sent = 0};
  for (std::size_t item = 0; item < loads.items(); ++item) {
    std::vector<std::int64_t> own(loads.shape().layers() * loads.shape().ranks());
    loads.add_to(item, own);
    seen.loads.insert(seen.loads.end(), own.begin(), own.end());
  }
  return seen;
}

Loads loads_in_team(const Window& window, TeamLink& link, Constraints constraints = {}) {
  SerialExecutor serial;
  Team team(serial, link);
  Loads loads = loads_of(instance_of(window, constraints), team);
  loads.sent = link.sent_bytes();
  return loads;
}

TEST(UnitLoadsInParts, are_those_of_one_process) {
  SerialExecutor alone;
  const Constraints dummies{.equal_count = true, .add_dummies = true};
  for (const bool wide : {false, true}) {
    const auto parts = cut(spec_of(wide), kCuts);
    const Window joined = join_parts(parts);
    const Loads wanted = loads_of(instance_of(joined, dummies), alone);
    EXPECT_EQ(wanted.narrow, !wide);
    for (const auto& holder : {std::vector<std::int32_t>{0, 1, 2, 0}, std::vector<std::int32_t>{2, 0, 0, 2},
                               std::vector<std::int32_t>{1, 1, 1, 1}}) {
      for (const Loads& found : in_team(3, [&](TeamLink& link) {
             return loads_in_team(join_as_member(parts, holder, link.rank()), link, dummies);
           })) {
        EXPECT_EQ(found.narrow, !wide);
        EXPECT_EQ(found.loads, wanted.loads);
      }
    }
  }
}

TEST(UnitLoadsInParts, are_told_once_by_the_member_that_has_the_counts) {
  // Beside what a team says about a whole window: a list of items with its length, and their lanes.
  for (const bool wide : {false, true}) {
    const auto parts = cut(spec_of(wide), kCuts);
    const std::vector<std::int32_t> holder = {0, 2, 2, 0};
    const auto whole = in_team(3, [&](TeamLink& link) { return loads_in_team(join_parts(parts), link); });
    const auto divided =
        in_team(3, [&](TeamLink& link) { return loads_in_team(join_as_member(parts, holder, link.rank()), link); });

    const Window joined = join_parts(parts);
    const Instance instance = instance_of(joined);
    const Items items = std::get<Items>(make_items(instance));
    std::vector<std::int64_t> of_member(3);
    for (const Item& item : items.items) {
      const std::int32_t first = items.samples_of(item).front().value();
      const std::size_t part = first < 6 ? 0 : first < 13 ? 1 : first < 14 ? 2 : 3;
      ++of_member[static_cast<std::size_t>(holder[part])];
    }
    ASSERT_EQ(std::accumulate(of_member.begin(), of_member.end(), std::int64_t{0}),
              static_cast<std::int64_t>(items.items.size()));
    const LaneShape shape(3, 4);
    const auto lane = static_cast<std::int64_t>(shape.lanes()) * (wide ? 4 : 2);
    for (std::size_t r = 0; r < 3; ++r) {
      const std::int64_t to_each = 8 + 8 + of_member[r] * (4 + lane);
      EXPECT_EQ(divided[r].sent - whole[r].sent, 2 * to_each) << "member " << r << (wide ? ", 32 bits" : ", 16 bits");
    }
  }
}

TEST(UnitLoadsInParts, over_the_limit_are_refused_by_all_members) {
  WindowSpec spec{.samples = 2, .layers = 1, .experts = 4, .lengths = {1 << 30, 1 << 30}};
  spec.counts = {1U << 30, 0, 0, 0, 1U << 30, 0, 0, 0};
  spec.atomic = {0, 0};
  WindowSpec other = spec;
  other.counts = {1, 0, 0, 0, 1, 0, 0, 0};
  const std::vector<WindowSpec> parts = {other, spec};
  for (const std::string& said : in_team(2, [&](TeamLink& link) -> std::string {
         const Window window = join_as_member(parts, {0, 1}, link.rank());
         SerialExecutor serial;
         Team team(serial, link);
         Instance instance(window, Topology::megatron({.dp = 1, .ep = 1}), kCost, 1000, {});
         instance.constraints.oversized = Oversized::OwnCell;
         Items items;  // an atomic group per part, whatever the cap says of it
         items.items = {{.first = 0, .count = 2, .totals = {}}, {.first = 2, .count = 2, .totals = {}}};
         items.samples = {SampleId(0), SampleId(1), SampleId(2), SampleId(3)};
         try {
           const UnitLoads loads(instance, Placement::identity(1, 4, 1), items, team);
         } catch (const InvalidInput& error) {
           return error.what();
         }
         return "nothing was refused";
       })) {
    EXPECT_NE(said.find("sends 2147483648 routed tokens to one rank"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace routepack
