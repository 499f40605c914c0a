// SPDX-License-Identifier: Apache-2.0
// What a team's members send is what docs/scaling.md says, to the byte.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "comm/team_link.h"
#include "cost/kernels/lanes.h"
#include "routepack/plan.h"
#include "support/builders.h"
#include "support/team.h"

namespace routepack {
namespace {

constexpr std::int32_t kMembers = 3;

/// Notes the size of every message to all, by phase.
class Recording final : public Communicator, public Observer {
 public:
  explicit Recording(TeamLink& link) : link_(link) {}
  [[nodiscard]] std::int32_t rank() const override { return link_.rank(); }
  [[nodiscard]] std::int32_t ranks() const override { return link_.ranks(); }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override {
    told[phase_].push_back(mine.size());
    return link_.all_gather(mine);
  }
  void sum(std::span<std::int64_t> values) override { link_.sum(values); }
  void sum(std::span<std::int32_t> values) override { link_.sum(values); }
  void phase_begins(Phase phase) override { phase_ = std::string(kPhaseNames[static_cast<std::size_t>(phase)]); }

  std::map<std::string, std::vector<std::size_t>> told;

 private:
  TeamLink& link_;
  std::string phase_ = "before";
};

struct Member {
  std::map<std::string, std::vector<std::size_t>> told;
  std::int64_t sent = 0;
  Plan plan;
};

std::vector<Member> planned_by_members(const Instance& instance, const PlanParams& params) {
  return testing::in_team(kMembers, [&](TeamLink& link) {
    Recording recording(link);
    auto made = make_plan(instance, params, nullptr, {.observer = &recording, .stop = {}, .team = &recording});
    return Member{recording.told, link.sent_bytes(), std::get<Plan>(std::move(made))};
  });
}

class TeamVolume : public ::testing::Test {
 protected:
  const Window window_ = testing::make_window(testing::random_window(5, 200, 4, 16, 2, 20, 400));
  const CostModel cost_ = CostModel({{.name = "full", .alpha = 12.0, .beta = 3.0}});
  const Instance instance_ =
      Instance(window_, Topology::megatron({.dp = 4, .ep = 4, .tp = 2}), cost_, 1000, {}, Sync::Step);
  PlanParams params_ = [] {
    PlanParams params;
    params.effort = Effort::Fast;
    params.placement = PlacementMode::Keep;
    params.threads = 1;
    return params;
  }();
};

TEST_F(TeamVolume, a_round_of_the_search_sends_cells_samples_and_loads_and_nothing_else) {
  const auto members = planned_by_members(instance_, params_);
  const Plan& plan = members.front().plan;

  const SearchParams search = params_.effective_search();
  const auto shards = static_cast<std::size_t>(instance_.topology.shards());
  const auto slots = static_cast<std::size_t>(instance_.topology.slots());
  const std::size_t row_shards = static_cast<std::size_t>(plan.rows.rows) * shards;
  const std::size_t blocks = row_shards / static_cast<std::size_t>(search.block_rows);
  const std::size_t lanes = LaneShape(4, 4).lanes();
  ASSERT_GT(blocks, 1U);
  const std::size_t of_a_round = row_shards * (4 + 4 * lanes) + static_cast<std::size_t>(plan.rows.rows) * slots * 48 +
                                 static_cast<std::size_t>(window_.samples()) * 4 + blocks * 32 + kMembers * 8;

  // Longer messages are rounds; the rest asks whether time is over.
  std::vector<std::vector<std::size_t>> rounds(kMembers);
  for (std::size_t r = 0; r < kMembers; ++r) {
    for (const std::size_t bytes : members[r].told.at("search")) {
      if (bytes > 8) rounds[r].push_back(bytes);
    }
    ASSERT_EQ(rounds[r].size(), static_cast<std::size_t>(plan.search.levels * search.rounds));
  }
  for (std::size_t k = 0; k < rounds.front().size(); ++k) {
    std::size_t all = 0;
    for (const auto& mine : rounds) all += mine[k];
    EXPECT_EQ(all, of_a_round) << "round " << k;
  }

  // A message to all is sent to each of the others, behind its size.
  for (const Member& member : members) {
    std::int64_t wanted = 0;
    for (const auto& [phase, messages] : member.told) {
      for (const std::size_t bytes : messages) wanted += (kMembers - 1) * static_cast<std::int64_t>(8 + bytes);
    }
    EXPECT_EQ(member.sent, wanted);
  }
}

TEST_F(TeamVolume, the_sticky_placement_sends_the_swaps_ahead_of_each_layer) {
  params_.placement = PlacementMode::Sticky;
  params_.moves = "free";  // nothing limits or prices them, so that all swaps ahead are taken
  params_.sticky_eps = 0.0001;
  const auto members = planned_by_members(instance_, params_);
  const PlacementReport& report = members.front().plan.placing;
  std::size_t wanted = kMembers * 8 + report.layers.size() * 8 + static_cast<std::size_t>(report.sticky_swaps) * 40;
  for (const LayerEnd end : report.layers) wanted += end != LayerEnd::Kept ? 32 : 0;
  ASSERT_GT(report.sticky_swaps, 0);

  std::size_t all = 0;
  for (const Member& member : members) {
    for (const std::size_t bytes : member.told.at("place")) all += bytes;
  }
  EXPECT_EQ(all, wanted);
}

}  // namespace
}  // namespace routepack
