// SPDX-License-Identifier: Apache-2.0
// What a team's members send is what docs/scaling.md says, to the byte.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "comm/in_process.h"
#include "comm/team_link.h"
#include "cost/kernels/lanes.h"
#include "routepack/plan.h"
#include "support/builders.h"

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

TEST(TeamVolume, a_round_of_the_search_sends_cells_samples_and_loads_and_nothing_else) {
  const Window window = testing::make_window(testing::random_window(5, 200, 4, 16, 2, 20, 400));
  const CostModel cost({{.name = "full", .alpha = 12.0, .beta = 3.0}});
  const Instance instance(window, Topology::megatron({.dp = 4, .ep = 4, .tp = 2}), cost, 1000, {}, Sync::Step);
  PlanParams params;
  params.effort = Effort::Fast;
  params.placement = PlacementMode::Keep;
  params.threads = 1;

  InProcessNetwork network(kMembers);
  std::vector<std::map<std::string, std::vector<std::size_t>>> told(kMembers);
  std::vector<std::int64_t> sent(kMembers);
  std::vector<std::int64_t> rows(kMembers);
  std::vector<std::int64_t> levels(kMembers);
  {
    std::vector<std::jthread> members;
    for (std::int32_t r = 0; r < kMembers; ++r) {
      members.emplace_back([&, r] {
        TeamLink link(network.end(r), std::chrono::seconds(60));
        Recording recording(link);
        const auto made =
            make_plan(instance, params, nullptr, {.observer = &recording, .stop = {}, .team = &recording});
        const auto at = static_cast<std::size_t>(r);
        rows[at] = std::get<Plan>(made).rows.rows;
        levels[at] = std::get<Plan>(made).search.levels;
        told[at] = recording.told;
        sent[at] = link.sent_bytes();
      });
    }
  }

  const SearchParams search = params.effective_search();
  const auto shards = static_cast<std::size_t>(instance.topology.shards());
  const auto slots = static_cast<std::size_t>(instance.topology.slots());
  const std::size_t row_shards = static_cast<std::size_t>(rows.front()) * shards;
  const std::size_t blocks = row_shards / static_cast<std::size_t>(search.block_rows);
  const std::size_t lanes = LaneShape(4, 4).lanes();
  ASSERT_GT(blocks, 1U);
  const std::size_t of_a_round = row_shards * (4 + 4 * lanes) + static_cast<std::size_t>(rows.front()) * slots * 48 +
                                 static_cast<std::size_t>(window.samples()) * 4 + blocks * 32 + kMembers * 8;

  // Longer messages are rounds; the rest asks whether time is over.
  std::vector<std::vector<std::size_t>> rounds(kMembers);
  for (std::size_t r = 0; r < kMembers; ++r) {
    for (const std::size_t bytes : told[r].at("search")) {
      if (bytes > 8) rounds[r].push_back(bytes);
    }
    ASSERT_EQ(rounds[r].size(), static_cast<std::size_t>(levels[r] * search.rounds));
  }
  for (std::size_t k = 0; k < rounds.front().size(); ++k) {
    std::size_t all = 0;
    for (const auto& mine : rounds) all += mine[k];
    EXPECT_EQ(all, of_a_round) << "round " << k;
  }

  // A message to all is sent to each of the others, behind its size.
  for (std::size_t r = 0; r < kMembers; ++r) {
    std::int64_t wanted = 0;
    for (const auto& [phase, messages] : told[r]) {
      for (const std::size_t bytes : messages) wanted += (kMembers - 1) * static_cast<std::int64_t>(8 + bytes);
    }
    EXPECT_EQ(sent[r], wanted);
  }
}

}  // namespace
}  // namespace routepack
