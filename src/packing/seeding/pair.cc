// SPDX-License-Identifier: Apache-2.0
#include "packing/seeding/pair.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace routepack {
namespace {

struct Place {
  double increase = 0.0;
  std::size_t at = 0;
  RowTable::Price price;

  [[nodiscard]] bool before(const Place& other) const {
    if (increase != other.increase) return increase < other.increase;
    if (price.peak != other.price.peak) return price.peak < other.price.peak;
    return at < other.at;
  }
};

/// The `choice` best places for a cell, best first.
void find_places(const Instance& instance, RowTable& table, const Band& band, std::size_t cell, const Pairing& pairing,
                 std::vector<Place>& best) {
  const std::int64_t limit = instance.constraints.max_rank_tokens;
  best.clear();
  for (std::size_t at = band.first; at < band.last; ++at) {
    if (!table.has_room(at, cell)) continue;
    const RowTable::Price now = table.price(at);
    Place place{.increase = 0.0, .at = at, .price = table.price_with(at, cell)};
    if (limit > 0 && place.price.peak > limit) continue;
    place.increase = pairing.key == PairKey::Peaks ? place.price.peaks - now.peaks : place.price.joint - now.joint;
    if (best.size() == pairing.choice && !place.before(best.back())) continue;
    if (best.size() == pairing.choice) best.pop_back();
    best.insert(std::ranges::upper_bound(best, place, [](const Place& a, const Place& b) { return a.before(b); }),
                place);
  }
}

}  // namespace

PairOutcome edp_aware_pair(const Instance& instance, RowTable& table, const Pairing& pairing, Draws* draws,
                           const std::stop_token& stop) {
  std::vector<Place> best;
  std::vector<std::pair<std::int64_t, std::size_t>> order;
  for (const Band& band : row_bands(instance, table.rows(), table.cells())) {
    if (stop.stop_requested()) return PairOutcome::Stopped;
    order.clear();
    for (const std::size_t c : band.cells) order.emplace_back(table.peak_of(c), c);
    std::ranges::sort(order, [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    for (const auto& [peak, c] : order) {
      find_places(instance, table, band, c, pairing, best);
      if (best.empty()) return PairOutcome::OverRankLimit;
      const Place& chosen = best[best.size() == 1 || draws == nullptr ? 0 : draws->decaying(best.size())];
      table.join(chosen.at, c, chosen.price);
    }
  }
  return PairOutcome::Paired;
}

}  // namespace routepack
