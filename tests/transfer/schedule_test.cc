// SPDX-License-Identifier: Apache-2.0
// Which bytes go where: the worked example of docs/data-plane.md copy by copy, and laws on random grids.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "routepack/error.h"
#include "routepack/move_schedule.h"
#include "routepack/moves.h"
#include "support/moved_bytes.h"
#include "support/property.h"
#include "support/refusal.h"
#include "support/transfer_layouts.h"

namespace routepack::testing {
namespace {

using ::testing::HasSubstr;

/// EP = 4, EDP = 2, two slots per rank, hidden 16, width 12.
GridLayout example() {
  return GridLayout::adam({.ep = 4, .edp = 2}, 1, 2, 16, 12);
}
/// Expert 0, in (ep 0, slot 0), changes places with expert 5, in (ep 2, slot 1).
Placement example_target() {
  return swapped(Placement::identity(1, 8, 4), 0, 0, 5);
}

/// A copy as the example's text says it: kind, hop, peer, expert, tensor, range of elements, source and final or not.
struct Line {
  CopyKind kind;
  std::int32_t hop, peer, expert;
  std::string tensor;
  std::int64_t begin, end;
  bool from_live, to_final;
  friend bool operator==(const Line&, const Line&) = default;
  friend bool operator<(const Line& a, const Line& b) {
    return std::tie(a.kind, a.hop, a.peer, a.expert, a.tensor, a.begin) <
           std::tie(b.kind, b.hop, b.peer, b.expert, b.tensor, b.begin);
  }
  friend std::ostream& operator<<(std::ostream& out, const Line& line) {
    static constexpr const char* kNames[] = {"local", "send", "receive"};
    return out << kNames[static_cast<std::size_t>(line.kind)] << " hop " << line.hop << " peer " << line.peer
               << " expert " << line.expert << " " << line.tensor << " [" << line.begin << ", " << line.end << ")"
               << (line.from_live ? " live" : "") << (line.to_final ? " final" : "");
  }
};

/// fc1's or fc2's sharded tensors, or the replicated one.
std::string kind_of(const GridLayout& layout, std::int32_t tensor) {
  const ExpertTensor& it = layout.tensors()[static_cast<std::size_t>(tensor)];
  const std::string parameter = layout.parameters()[static_cast<std::size_t>(*it.parameter)].name;
  return parameter + (it.spread == Spread::Sharded ? " state" : " weight");
}

/// The schedule of one rank without the canary; the three state tensors of a parameter, which must be alike, counted.
std::map<Line, int> lines_of(const GridLayout& layout, const Placement& to, std::int32_t rank, Route route) {
  std::map<Line, int> lines;
  for (const LayerSchedule& layer : schedule_moves(layout, identity_of(layout), to, rank, route)) {
    for (const Copy& copy : layer.copies) {
      if (copy.piece.tensor == layout.canary()) continue;
      const bool live = copy.kind == CopyKind::Receive ? false : copy.from_live;
      const bool final = copy.kind == CopyKind::Send ? false : copy.to_final;
      ++lines[{copy.kind, copy.hop, copy.peer, copy.piece.expert.value(), kind_of(layout, copy.piece.tensor),
               copy.piece.begin, copy.piece.end, live, final}];
    }
  }
  return lines;
}

using Lines = std::map<Line, int>;
constexpr auto kSend = CopyKind::Send;
constexpr auto kReceive = CopyKind::Receive;

TEST(ScheduleOfTheExample, sends_what_the_text_says_from_the_lane_that_owns_fc1) {
  const GridLayout layout = example();
  const std::int32_t here = layout.grid().rank(0, 1), there = layout.grid().rank(2, 1);
  const std::int32_t other_lane = layout.grid().rank(0, 0);
  const Lines wanted = {
      {{kSend, 1, there, 0, "fc1 weight", 0, 384, true, false}, 1},
      {{kSend, 1, there, 0, "fc2 weight", 0, 192, true, false}, 1},
      // Three states of fc1[0, 384): the part that stays on lane 1, and the part that goes on to lane 0.
      {{kSend, 1, there, 0, "fc1 state", 0, 192, true, false}, 3},
      {{kSend, 1, there, 0, "fc1 state", 192, 384, true, false}, 3},
      // The partner, expert 5, comes from slot-local 1: lane 1 there owns fc1[192, 384) and keeps it here too.
      {{kReceive, 1, there, 5, "fc1 weight", 0, 384, false, true}, 1},
      {{kReceive, 1, there, 5, "fc2 weight", 0, 192, false, true}, 1},
      {{kReceive, 1, there, 5, "fc1 state", 192, 384, false, true}, 3},
      {{kReceive, 2, other_lane, 5, "fc1 state", 0, 192, false, true}, 3},
  };
  EXPECT_EQ(lines_of(layout, example_target(), here, Route::TwoHop), wanted);
}

TEST(ScheduleOfTheExample, sends_fc2_from_the_lane_that_owns_it_and_passes_the_partner_on) {
  const GridLayout layout = example();
  const std::int32_t here = layout.grid().rank(0, 0), there = layout.grid().rank(2, 0);
  const std::int32_t other_lane = layout.grid().rank(0, 1);
  const Lines wanted = {
      {{kSend, 1, there, 0, "fc1 weight", 0, 384, true, false}, 1},
      {{kSend, 1, there, 0, "fc2 weight", 0, 192, true, false}, 1},
      {{kSend, 1, there, 0, "fc2 state", 0, 192, true, false}, 3},
      {{kReceive, 1, there, 5, "fc1 weight", 0, 384, false, true}, 1},
      {{kReceive, 1, there, 5, "fc2 weight", 0, 192, false, true}, 1},
      {{kReceive, 1, there, 5, "fc2 state", 0, 192, false, true}, 3},
      // fc1[0, 192) of expert 5 was on lane 0 there and belongs to lane 1 here.
      {{kReceive, 1, there, 5, "fc1 state", 0, 192, false, false}, 3},
      {{kSend, 2, other_lane, 5, "fc1 state", 0, 192, false, false}, 3},
  };
  EXPECT_EQ(lines_of(layout, example_target(), here, Route::TwoHop), wanted);
}

TEST(ScheduleOfTheExample, repartitions_inside_the_destination_group) {
  const GridLayout layout = example();
  const std::int32_t lane0 = layout.grid().rank(2, 0), lane1 = layout.grid().rank(2, 1);
  const std::int32_t from0 = layout.grid().rank(0, 0), from1 = layout.grid().rank(0, 1);
  const Lines at_lane1 = {
      {{kSend, 1, from1, 5, "fc1 weight", 0, 384, true, false}, 1},
      {{kSend, 1, from1, 5, "fc2 weight", 0, 192, true, false}, 1},
      {{kSend, 1, from1, 5, "fc1 state", 192, 384, true, false}, 3},
      {{kReceive, 1, from1, 0, "fc1 weight", 0, 384, false, true}, 1},
      {{kReceive, 1, from1, 0, "fc2 weight", 0, 192, false, true}, 1},
      {{kReceive, 1, from1, 0, "fc1 state", 0, 192, false, false}, 3},
      {{kReceive, 1, from1, 0, "fc1 state", 192, 384, false, true}, 3},
      {{kSend, 2, lane0, 0, "fc1 state", 0, 192, false, false}, 3},
  };
  EXPECT_EQ(lines_of(layout, example_target(), lane1, Route::TwoHop), at_lane1);
  const Lines at_lane0 = {
      {{kSend, 1, from0, 5, "fc1 weight", 0, 384, true, false}, 1},
      {{kSend, 1, from0, 5, "fc2 weight", 0, 192, true, false}, 1},
      {{kSend, 1, from0, 5, "fc1 state", 0, 192, true, false}, 3},
      {{kSend, 1, from0, 5, "fc2 state", 0, 192, true, false}, 3},
      {{kReceive, 1, from0, 0, "fc1 weight", 0, 384, false, true}, 1},
      {{kReceive, 1, from0, 0, "fc2 weight", 0, 192, false, true}, 1},
      {{kReceive, 1, from0, 0, "fc2 state", 0, 192, false, true}, 3},
      {{kReceive, 2, lane1, 0, "fc1 state", 0, 192, false, true}, 3},
  };
  EXPECT_EQ(lines_of(layout, example_target(), lane0, Route::TwoHop), at_lane0);
}

TEST(ScheduleOfTheExample, goes_straight_to_the_final_lane_when_asked) {
  const GridLayout layout = example();
  const std::int32_t here = layout.grid().rank(0, 1);
  const std::int32_t lane0 = layout.grid().rank(2, 0), lane1 = layout.grid().rank(2, 1);
  const Lines wanted = {
      {{kSend, 1, lane1, 0, "fc1 weight", 0, 384, true, false}, 1},
      {{kSend, 1, lane1, 0, "fc2 weight", 0, 192, true, false}, 1},
      {{kSend, 1, lane0, 0, "fc1 state", 0, 192, true, false}, 3},
      {{kSend, 1, lane1, 0, "fc1 state", 192, 384, true, false}, 3},
      {{kReceive, 1, lane1, 5, "fc1 weight", 0, 384, false, true}, 1},
      {{kReceive, 1, lane1, 5, "fc2 weight", 0, 192, false, true}, 1},
      {{kReceive, 1, lane1, 5, "fc1 state", 192, 384, false, true}, 3},
      {{kReceive, 1, lane0, 5, "fc1 state", 0, 192, false, true}, 3},
  };
  EXPECT_EQ(lines_of(layout, example_target(), here, Route::Direct), wanted);
}

TEST(ScheduleOfTheExample, leaves_ranks_alone_that_hold_neither_expert) {
  const GridLayout layout = example();
  for (const std::int32_t ep_rank : {1, 3}) {
    for (const std::int32_t lane : {0, 1}) {
      const auto schedule =
          schedule_moves(layout, identity_of(layout), example_target(), layout.grid().rank(ep_rank, lane));
      ASSERT_EQ(schedule.size(), 1U);
      EXPECT_TRUE(schedule[0].copies.empty());
      EXPECT_EQ(schedule[0].staging_bytes, 0);
    }
  }
}

TEST(ScheduleOfTheExample, is_forecast_byte_by_byte) {
  const GridLayout layout = example();
  const auto forecast = forecast_traffic(layout, identity_of(layout), example_target());
  // Two experts of 576 parameters: weights on both lanes and 12 bytes of state once; fc1[0, 192) goes on, both ways.
  EXPECT_EQ(forecast.total.across_ep, 2 * 576 * (2 * 2 + 12));
  EXPECT_EQ(forecast.total.within_edp, 2 * 192 * 12);
  EXPECT_EQ(forecast.total.across_both, 0);
  EXPECT_EQ(forecast.total.local, 0);
  EXPECT_EQ(forecast.moved_experts, 2);
  EXPECT_EQ(forecast.local_experts, 0);
  EXPECT_EQ(forecast.layers, 1);
  const auto direct = forecast_traffic(layout, identity_of(layout), example_target(), Route::Direct);
  EXPECT_EQ(direct.total.across_ep, 2 * (576 * (2 * 2 + 12) - 192 * 12));
  EXPECT_EQ(direct.total.across_both, 2 * 192 * 12);
  EXPECT_EQ(direct.total.within_edp, 0);
}

TEST(Schedule, has_nothing_to_do_between_equal_placements) {
  const GridLayout layout = example();
  for (std::int32_t rank = 0; rank < 8; ++rank) {
    EXPECT_TRUE(schedule_moves(layout, example_target(), example_target(), rank).empty());
  }
  EXPECT_EQ(forecast_traffic(layout, example_target(), example_target()).total, LinkTraffic{});
}

TEST(Schedule, needs_no_second_hop_between_equal_local_slots) {
  const GridLayout layout = example();
  const Placement to = swapped(swapped(identity_of(layout), 0, 1, 5), 0, 2, 6);
  for (std::int32_t rank = 0; rank < 8; ++rank) {
    for (const LayerSchedule& layer : schedule_moves(layout, identity_of(layout), to, rank)) {
      for (const Copy& copy : layer.copies) EXPECT_EQ(copy.hop, 1);
      EXPECT_EQ(layer.transit_bytes, 0);
    }
  }
  EXPECT_EQ(forecast_traffic(layout, identity_of(layout), to).total.within_edp, 0);
}

TEST(Schedule, never_leaves_the_rank_for_weights_that_change_slot_inside_it) {
  const GridLayout layout = example();
  const Placement to = swapped(identity_of(layout), 0, 0, 1);
  const auto forecast = forecast_traffic(layout, identity_of(layout), to);
  EXPECT_EQ(forecast.total.across_ep, 0);
  EXPECT_EQ(forecast.total.within_edp, 2 * 192 * 12);  // fc1[0, 192) changes its lane, both ways
  EXPECT_EQ(forecast.total.local, 2 * (2 * 2 * 576 + 12 * (576 - 192)));
  EXPECT_EQ(forecast.local_experts, 2);
  EXPECT_EQ(forecast.moved_experts, 0);
}

TEST(Schedule, lists_every_layer_in_which_any_rank_moves_anything) {
  const GridLayout layout = GridLayout::adam({.ep = 3, .edp = 1}, 5, 1, 16, 12);
  const Placement to = swapped(swapped(identity_of(layout), 1, 0, 1), 4, 1, 2);
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    std::vector<std::int32_t> layers;
    for (const LayerSchedule& layer : schedule_moves(layout, identity_of(layout), to, rank)) {
      layers.push_back(layer.layer.value());
    }
    EXPECT_EQ(layers, (std::vector<std::int32_t>{1, 4}));
  }
}

TEST(Schedule, reads_everything_of_a_cycle_before_it_could_be_written) {
  const GridLayout layout = GridLayout::adam({.ep = 3, .edp = 2}, 1, 2, 16, 12);
  const Placement to = placement_of(3, {{5, 0, 1, 2, 3, 4}});  // one cycle through all slots
  for (const Route route : {Route::TwoHop, Route::Direct}) {
    MovedBytes world(layout, identity_of(layout), to, route);
    EXPECT_EQ(world.problem(), "");
  }
}

TEST(Schedule, refuses_placements_of_another_shape_and_ranks_off_the_grid) {
  const GridLayout layout = example();
  const Placement good = identity_of(layout);
  EXPECT_NE(refusal<InvalidInput>([&] { schedule_moves(layout, good, Placement::identity(2, 8, 4), 0); }), "");
  EXPECT_NE(refusal<InvalidInput>([&] { schedule_moves(layout, Placement::identity(1, 16, 4), good, 0); }), "");
  EXPECT_NE(refusal<InvalidInput>([&] { schedule_moves(layout, good, Placement::identity(1, 8, 2), 0); }), "");
  EXPECT_THAT(refusal<InvalidInput>([&] { schedule_moves(layout, good, good, 8); }), HasSubstr("8"));
  EXPECT_THAT(refusal<InvalidInput>([&] { schedule_moves(layout, good, good, -1); }), HasSubstr("-1"));
  EXPECT_NE(refusal<InvalidInput>([&] { forecast_traffic(layout, good, Placement::identity(1, 4, 4)); }), "");
}

TEST(Forecast, refuses_rates_that_are_not_positive_where_traffic_needs_them) {
  const GridLayout layout = example();
  const auto seconds = [&](LinkRates rates) {
    return forecast_traffic(layout, identity_of(layout), example_target(), Route::TwoHop, 0, rates).seconds;
  };
  const LinkRates good{.across_ep = 1e9, .within_edp = 2e9, .between_nodes = 1e8, .memory = 1e10, .message_seconds = 0};
  const double base = seconds(good);
  EXPECT_GT(base, 0.0);
  LinkRates slow = good;
  slow.across_ep /= 2;
  EXPECT_GT(seconds(slow), base);
  slow = good;
  slow.within_edp /= 2;
  EXPECT_GT(seconds(slow), base);
  slow = good;
  slow.message_seconds = 1e-3;
  EXPECT_GT(seconds(slow), base + 1e-3);
  for (const double bad : {0.0, -1.0}) {
    LinkRates rates = good;
    rates.across_ep = bad;
    EXPECT_NE(refusal<InvalidInput>([&] { seconds(rates); }), "");
    rates = good;
    rates.within_edp = bad;
    EXPECT_NE(refusal<InvalidInput>([&] { seconds(rates); }), "");
  }
  EXPECT_EQ(forecast_traffic(layout, identity_of(layout), example_target()).seconds, 0.0);
}

/// A grid of at most 8 × 4, a layout and two placements.
struct Case {
  GridLayout layout;
  Placement from, to;
  Route route;
};

Case draw_case() {
  const ExpertGrid grid{.ep = draw(2, 8), .edp = draw(1, 4)};
  const std::int32_t layers = draw(1, 3), slots = draw(1, 3);
  std::mt19937_64 random(draw_seed());
  GridLayout layout = random_layout(random, grid, layers, slots);
  Placement from = draw(0, 1) == 0 ? identity_of(layout) : random_placement(random, layout);
  Placement to = from;
  if (draw(0, 3) == 0) {
    to = random_placement(random, layout);
  } else {
    for (std::int32_t k = draw(0, 4); k > 0; --k) {
      to = swapped(to, draw(0, layers - 1), draw(0, layout.experts() - 1), draw(0, layout.experts() - 1));
    }
  }
  return {std::move(layout), std::move(from), std::move(to), draw(0, 1) == 0 ? Route::TwoHop : Route::Direct};
}

TEST(ScheduleLaws, every_byte_of_a_changed_slot_arrives_once_and_is_the_right_one) {
  for_all(150, [] {
    const Case it = draw_case();
    MovedBytes world(it.layout, it.from, it.to, it.route);
    RC_ASSERT(world.problem() == "");
  });
}

TEST(ScheduleLaws, staging_holds_what_comes_in_and_what_passes_through_and_no_more) {
  for_all(150, [] {
    const Case it = draw_case();
    for (std::int32_t rank = 0; rank < it.layout.grid().ranks(); ++rank) {
      for (const LayerSchedule& layer : schedule_moves(it.layout, it.from, it.to, rank, it.route)) {
        std::int64_t inflow = 0, transit = 0, rounded = 0;
        for (const Copy& copy : layer.copies) {
          if (copy.kind == CopyKind::Send) continue;
          (copy.to_final ? inflow : transit) += copy.bytes;
          rounded += (copy.bytes + 63) / 64 * 64;
        }
        RC_ASSERT(layer.staging_bytes >= inflow + transit);
        RC_ASSERT(layer.staging_bytes <= rounded);
        RC_ASSERT(layer.transit_bytes >= transit);
        RC_ASSERT(layer.transit_bytes <= layer.staging_bytes - inflow);
        RC_ASSERT((layer.transit_bytes == 0) == (transit == 0));
        if (it.route == Route::Direct) RC_ASSERT(transit == 0);
      }
    }
  });
}

TEST(ScheduleLaws, copies_come_in_the_order_that_every_rank_knows) {
  for_all(150, [] {
    const Case it = draw_case();
    for (std::int32_t rank = 0; rank < it.layout.grid().ranks(); ++rank) {
      for (const LayerSchedule& layer : schedule_moves(it.layout, it.from, it.to, rank, it.route)) {
        const auto key = [](const Copy& copy) {
          return std::tuple(copy.hop, copy.piece.expert.value(), copy.piece.tensor, copy.piece.from_lane,
                            copy.piece.to_lane);
        };
        RC_ASSERT(std::is_sorted(layer.copies.begin(), layer.copies.end(),
                                 [&](const Copy& a, const Copy& b) { return key(a) < key(b); }));
      }
    }
  });
}

/// Traffic of one rank counted from its schedule, canaries left out.
LinkTraffic counted(const Case& it, std::int32_t rank, CopyKind direction, std::int32_t per_node) {
  LinkTraffic traffic;
  const ExpertGrid& grid = it.layout.grid();
  for (const LayerSchedule& layer : schedule_moves(it.layout, it.from, it.to, rank, it.route)) {
    for (const Copy& copy : layer.copies) {
      if (copy.piece.tensor == it.layout.canary()) continue;
      if (copy.kind == CopyKind::Local) traffic.local += copy.bytes;
      if (copy.kind != direction) continue;
      const bool ep = grid.ep_rank(copy.peer) != grid.ep_rank(rank), lane = grid.lane(copy.peer) != grid.lane(rank);
      (ep && lane ? traffic.across_both : ep ? traffic.across_ep : traffic.within_edp) += copy.bytes;
      if (per_node > 0 && copy.peer / per_node != rank / per_node) traffic.between_nodes += copy.bytes;
    }
  }
  return traffic;
}

LinkTraffic without_extras(LinkTraffic traffic) {
  traffic.overhead = traffic.messages = 0;
  return traffic;
}

TEST(ForecastLaws, is_the_sum_of_all_schedules) {
  for_all(150, [] {
    const Case it = draw_case();
    const std::int32_t per_node = draw(0, it.layout.grid().ranks());
    const auto forecast = forecast_traffic(it.layout, it.from, it.to, it.route, per_node);
    LinkTraffic total, incoming;
    RC_ASSERT(forecast.ranks.size() == static_cast<std::size_t>(it.layout.grid().ranks()));
    const auto add = [](LinkTraffic& sum, const LinkTraffic& part) {
      sum.local += part.local;
      sum.across_ep += part.across_ep;
      sum.within_edp += part.within_edp;
      sum.across_both += part.across_both;
      sum.between_nodes += part.between_nodes;
      sum.overhead += part.overhead;
      sum.messages += part.messages;
    };
    for (std::int32_t rank = 0; rank < it.layout.grid().ranks(); ++rank) {
      const RankLoad& load = forecast.ranks[static_cast<std::size_t>(rank)];
      RC_ASSERT(without_extras(load.out) == counted(it, rank, CopyKind::Send, per_node));
      RC_ASSERT(without_extras(load.in) == counted(it, rank, CopyKind::Receive, per_node));
      add(total, load.out);
      add(incoming, load.in);
      std::int64_t peak = 0, sum = 0;
      for (const LayerSchedule& layer : schedule_moves(it.layout, it.from, it.to, rank, it.route)) {
        peak = std::max(peak, layer.staging_bytes);
        sum += layer.staging_bytes;
      }
      RC_ASSERT(load.staging_peak == peak);
      RC_ASSERT(load.staging_total == sum);
    }
    RC_ASSERT(forecast.total == total);
    RC_ASSERT(total == incoming);
    const Moves moves = count_moves(it.from, it.to);
    RC_ASSERT(forecast.moved_experts == moves.experts);
    RC_ASSERT(forecast.local_experts == moves.local);
  });
}

TEST(ForecastLaws, direct_sends_never_more_than_two_hops) {
  for_all(100, [] {
    const Case it = draw_case();
    const LinkTraffic two = forecast_traffic(it.layout, it.from, it.to, Route::TwoHop).total;
    const LinkTraffic direct = forecast_traffic(it.layout, it.from, it.to, Route::Direct).total;
    RC_ASSERT(two.across_both == 0);
    RC_ASSERT(direct.across_ep + direct.across_both == two.across_ep);
    RC_ASSERT(direct.within_edp <= two.within_edp);
  });
}

TEST(ForecastLaws, bytes_between_ep_ranks_are_those_that_the_planner_charges) {
  for_all(100, [] {
    const ExpertGrid grid{.ep = draw(2, 8), .edp = draw(1, 4)};
    std::mt19937_64 random(draw_seed());
    MegatronBuffers buffers;
    if (draw(0, 1) == 1) buffers.bucket_elements = draw(1, 1000);
    // 12 bytes per parameter divide by every number of lanes up to 4, so that no share is rounded.
    const std::int64_t hidden = draw(1, 20), width = draw(1, 20);
    const GridLayout layout = GridLayout::adam(grid, draw(1, 3), draw(1, 3), hidden, width, buffers);
    const Placement from = random_placement(random, layout), to = random_placement(random, layout);
    const std::int64_t per_lane =
        expert_state_bytes(gated_ffn_parameters(hidden, width), {.optimizer_shards = grid.edp});
    const MoveList charged = list_moves(from, to, per_lane);
    const Route route = draw(0, 1) == 0 ? Route::TwoHop : Route::Direct;
    const auto forecast = forecast_traffic(layout, from, to, route);
    for (std::int32_t p = 0; p < grid.ep; ++p) {
      std::int64_t out = 0, in = 0;
      for (std::int32_t lane = 0; lane < grid.edp; ++lane) {
        const RankLoad& load = forecast.ranks[static_cast<std::size_t>(grid.rank(p, lane))];
        out += load.out.across_ep + load.out.across_both;
        in += load.in.across_ep + load.in.across_both;
      }
      RC_ASSERT(out == charged.ranks[static_cast<std::size_t>(p)].out * grid.edp);
      RC_ASSERT(in == charged.ranks[static_cast<std::size_t>(p)].in * grid.edp);
    }
  });
}

}  // namespace
}  // namespace routepack::testing
