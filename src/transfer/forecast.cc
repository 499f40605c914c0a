// SPDX-License-Identifier: Apache-2.0
// The whole move at once, one pass over its pieces.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "core/assert.h"
#include "routepack/error.h"
#include "routepack/move_schedule.h"
#include "transfer/pieces.h"

namespace routepack {
namespace {

constexpr std::int64_t kChecksumBytes = 8;  // of each piece that is sent

enum class Link { AcrossEp, WithinEdp, AcrossBoth };

struct Trip {
  Link link = Link::AcrossEp;
  bool leaves_node = false;
  bool canary = false;
  std::int64_t bytes = 0;
};

Trip trip_of(const ExpertGrid& grid, const Leg& leg, std::int32_t ranks_per_node) {
  const bool same_ep = grid.ep_rank(leg.from_rank) == grid.ep_rank(leg.to_rank);
  const bool same_lane = grid.lane(leg.from_rank) == grid.lane(leg.to_rank);
  return {.link = same_ep     ? Link::WithinEdp
                  : same_lane ? Link::AcrossEp
                              : Link::AcrossBoth,
          .leaves_node = ranks_per_node > 0 && leg.from_rank / ranks_per_node != leg.to_rank / ranks_per_node};
}

void add(LinkTraffic& traffic, const Trip& trip) {
  ++traffic.messages;
  traffic.overhead += kChecksumBytes + (trip.canary ? trip.bytes : 0);
  if (trip.canary) return;
  switch (trip.link) {
    case Link::AcrossEp:
      traffic.across_ep += trip.bytes;
      break;
    case Link::WithinEdp:
      traffic.within_edp += trip.bytes;
      break;
    case Link::AcrossBoth:
      traffic.across_both += trip.bytes;
      break;
  }
  if (trip.leaves_node) traffic.between_nodes += trip.bytes;
}

double seconds_of(std::int64_t bytes, double rate, std::string_view name) {
  if (bytes == 0) return 0.0;
  if (!(rate > 0.0) || !std::isfinite(rate)) {
    throw InvalidInput(
        fmt::format("link rates: {}: found {}, wanted a positive number of bytes per second, since "
                    "bytes take that link",
                    name, rate));
  }
  return static_cast<double>(bytes) / rate;
}

/// How busy ranks are in one layer; the next begins when the last of them has ended.
class LayerClock {
 public:
  LayerClock(const LinkRates& rates, std::int32_t ranks) : rates_(rates), loads_(static_cast<std::size_t>(ranks)) {
    if (!(rates.message_seconds >= 0.0) || !std::isfinite(rates.message_seconds)) {
      throw InvalidInput(fmt::format("link rates: message_seconds: found {}, wanted 0 or more", rates.message_seconds));
    }
  }

  void send(const Leg& leg, const Trip& trip) {
    const auto hop = static_cast<std::size_t>(leg.hop - 1);
    load(leg.from_rank).out[hop].add(trip);
    load(leg.to_rank).in[hop].add(trip);
  }
  void copy_locally(std::int32_t rank, std::int64_t bytes) { load(rank).local += bytes; }
  void commit(std::int32_t rank, std::int64_t bytes) { load(rank).committed += bytes; }

  /// Ends the layer.
  double seconds() {
    std::array<double, 2> hops{};
    double commit = 0.0;
    for (Load& load : loads_) {
      for (std::size_t h = 0; h < hops.size(); ++h) {
        const double local = h == 0 ? seconds_of(load.local, rates_.memory, "memory") : 0.0;
        hops[h] = std::max(hops[h], std::max(seconds(load.out[h]), seconds(load.in[h])) + local);
      }
      commit = std::max(commit, seconds_of(load.committed, rates_.memory, "memory"));
      load = {};
    }
    return hops[0] + hops[1] + commit;
  }

 private:
  struct Burst {
    std::array<std::int64_t, 3> near{};  // by Link, inside the node
    std::int64_t far = 0, messages = 0;
    void add(const Trip& trip) {
      ++messages;
      (trip.leaves_node ? far : near[static_cast<std::size_t>(trip.link)]) += trip.bytes;
    }
  };
  struct Load {
    std::array<Burst, 2> out, in;  // by hop
    std::int64_t local = 0, committed = 0;
  };

  Load& load(std::int32_t rank) { return loads_[static_cast<std::size_t>(rank)]; }

  [[nodiscard]] double seconds(const Burst& burst) const {
    const auto [ep, edp, both] = burst.near;
    // The slower of the two links that a piece across both may share.
    const bool slow_ep = rates_.across_ep <= rates_.within_edp;
    return seconds_of(ep, rates_.across_ep, "across_ep") + seconds_of(edp, rates_.within_edp, "within_edp") +
           seconds_of(both, slow_ep ? rates_.across_ep : rates_.within_edp, slow_ep ? "across_ep" : "within_edp") +
           seconds_of(burst.far, rates_.between_nodes, "between_nodes") +
           static_cast<double>(burst.messages) * rates_.message_seconds;
  }

  LinkRates rates_;
  std::vector<Load> loads_;
};

LinkTraffic sum_of_out(std::span<const RankLoad> ranks) {
  LinkTraffic total;
  for (const RankLoad& rank : ranks) {
    total.local += rank.out.local;
    total.across_ep += rank.out.across_ep;
    total.within_edp += rank.out.within_edp;
    total.across_both += rank.out.across_both;
    total.between_nodes += rank.out.between_nodes;
    total.overhead += rank.out.overhead;
    total.messages += rank.out.messages;
  }
  return total;
}

#ifdef ROUTEPACK_HEAVY_ASSERTS
/// Whether the schedules of all ranks add up to the same loads; true without looking when that would take long.
bool schedules_agree(const GridLayout& layout, const Placement& from, const Placement& to, Route route,
                     std::int32_t ranks_per_node, std::span<const RankLoad> loads) {
  const ExpertGrid& grid = layout.grid();
  if (std::int64_t{grid.ranks()} * layout.layers() * layout.experts() > 1 << 14) return true;
  for (std::int32_t rank = 0; rank < grid.ranks(); ++rank) {
    RankLoad load;
    for (const LayerSchedule& layer : schedule_moves(layout, from, to, rank, route)) {
      load.staging_peak = std::max(load.staging_peak, layer.staging_bytes);
      load.staging_total += layer.staging_bytes;
      for (const Copy& copy : layer.copies) {
        const bool canary = copy.piece.tensor == layout.canary();
        if (copy.kind == CopyKind::Local) {
          load.out.local += canary ? 0 : copy.bytes;
          load.in.local += canary ? 0 : copy.bytes;
          continue;
        }
        Trip trip = trip_of(grid, {.hop = copy.hop, .from_rank = rank, .to_rank = copy.peer}, ranks_per_node);
        trip.canary = canary;
        trip.bytes = copy.bytes;
        add(copy.kind == CopyKind::Send ? load.out : load.in, trip);
      }
    }
    const RankLoad& other = loads[static_cast<std::size_t>(rank)];
    if (load.out != other.out || load.in != other.in || load.staging_peak != other.staging_peak ||
        load.staging_total != other.staging_total) {
      return false;
    }
  }
  return true;
}
#endif

}  // namespace

TrafficForecast forecast_traffic(const GridLayout& layout, const Placement& from, const Placement& to, Route route,
                                 std::int32_t ranks_per_node, const std::optional<LinkRates>& rates) {
  check_move(layout, from, to);
  if (ranks_per_node < 0) {
    throw InvalidInput(fmt::format("ranks_per_node: found {}, wanted at least 0", ranks_per_node));
  }
  const ExpertGrid& grid = layout.grid();
  const std::int32_t slots = layout.slots();
  const auto ranks = static_cast<std::size_t>(grid.ranks());
  TrafficForecast forecast;
  forecast.ranks.resize(ranks);
  std::optional<LayerClock> clock;
  if (rates) clock.emplace(*rates, grid.ranks());

  std::vector<std::int64_t> staged(ranks);
  std::vector<SlotChange> changes;
  PieceCutter cutter(layout);
  const auto take = [&](const PlacedPiece& placed, const Leg& leg) {
    const auto source = static_cast<std::size_t>(leg.from_rank);
    const auto target = static_cast<std::size_t>(leg.to_rank);
    staged[target] += staged_size(placed.bytes);
    if (clock && leg.to_final) clock->commit(leg.to_rank, placed.bytes);
    const bool canary = placed.piece.tensor == layout.canary();
    if (source == target) {
      forecast.ranks[source].out.local += canary ? 0 : placed.bytes;
      forecast.ranks[source].in.local += canary ? 0 : placed.bytes;
      if (clock) clock->copy_locally(leg.to_rank, placed.bytes);
      return;
    }
    Trip trip = trip_of(grid, leg, ranks_per_node);
    trip.canary = canary;
    trip.bytes = placed.bytes;
    add(forecast.ranks[source].out, trip);
    add(forecast.ranks[target].in, trip);
    if (clock) clock->send(leg, trip);
  };
  for (const LayerId l : IdRange<LayerId>(layout.layers())) {
    find_changes(from, to, l, changes);
    if (changes.empty()) continue;
    ++forecast.layers;
    std::ranges::fill(staged, 0);
    for (const SlotChange& change : changes) {
      ++(change.from_slot / slots == change.to_slot / slots ? forecast.local_experts : forecast.moved_experts);
      for (const PlacedPiece& placed : cutter.cut(l, change, std::nullopt)) {
        for (const Leg& leg : legs_of(grid, slots, placed.piece, route)) take(placed, leg);
      }
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      forecast.ranks[r].staging_peak = std::max(forecast.ranks[r].staging_peak, staged[r]);
      forecast.ranks[r].staging_total += staged[r];
    }
    if (clock) forecast.seconds += clock->seconds();
  }
  forecast.total = sum_of_out(forecast.ranks);
  ROUTEPACK_HEAVY_ASSERT(schedules_agree(layout, from, to, route, ranks_per_node, forecast.ranks),
                         "a forecast differs from the schedules");
  return forecast;
}

}  // namespace routepack
