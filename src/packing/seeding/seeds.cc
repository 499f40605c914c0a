// SPDX-License-Identifier: Apache-2.0
#include "packing/seeding/seeds.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "core/assert.h"
#include "cost/row_cost.h"
#include "packing/fill_rows.h"
#include "packing/row_table.h"
#include "packing/seeding/canonical.h"
#include "packing/seeding/construct.h"
#include "packing/seeding/draws.h"
#include "packing/seeding/profile.h"
#include "packing/seeding/select.h"
#include "packing/seeding/units.h"

namespace routepack {
namespace {

/// Comparisons of items below which handing work to other threads costs more than it saves.
constexpr std::size_t kWorthSharing = 200'000;

enum class Outcome { Found, NoRoom, OverRankLimit, NotTried };

struct Candidate {
  Outcome outcome = Outcome::NotTried;
  Seed seed = {};
  RowFeatures features = {};
  bool exchanged = false;
};

/// The ways to a candidate.
class Builder {
 public:
  Builder(const Instance& instance, const UnitLoads& loads, std::span<const std::int64_t> pad_rates, const Items& items,
          const FittedCells& fitted, const SeedBudget& budget, std::uint64_t seed, const std::stop_token& stop)
      : instance_(instance),
        loads_(loads),
        pad_rates_(pad_rates),
        items_(items),
        fitted_(fitted),
        budget_(budget),
        choice_(std::max<std::size_t>(budget.choice, 1)),
        seed_(seed),
        stop_(stop),
        units_(make_units(items, fitted)) {}

  /// The fit as fill_rows arranges it.
  [[nodiscard]] Candidate filled() const {
    auto arrangement = fill_rows(instance_, loads_, pad_rates_, fitted_);
    ROUTEPACK_ASSERT(arrangement.has_value(), "seeds were asked for a fit that cannot be filled");
    return in_place(arrangement->cells);
  }

  [[nodiscard]] Candidate filled_anew() const { return paired(fitted_.cells, {budget_.pair_key, 1}, nullptr); }

  [[nodiscard]] Candidate first_fit_in_order() const {
    auto cells = first_fit_cells();
    if (!cells) return {.outcome = Outcome::NoRoom};
    if (!instance_.constraints.equal_count) return in_place(*cells);
    // The n-th cell of a slot goes to row n.
    const auto slots = static_cast<std::size_t>(instance_.topology.slots());
    std::vector<std::size_t> row(slots, 0);
    std::vector<Cell> placed(cells->size());
    for (Cell& cell : *cells) {
      const SlotId d = *cell.slot;
      placed[row[d]++ * slots + d] = std::move(cell);
    }
    return in_place(placed);
  }

  [[nodiscard]] Candidate first_fit_anew() const {
    const auto cells = first_fit_cells();
    if (!cells) return {.outcome = Outcome::NoRoom};
    return paired(*cells, {budget_.pair_key, 1}, nullptr);
  }

  [[nodiscard]] Candidate trial(std::uint32_t number) const {
    Draws shuffling(seed_, Draws::Purpose::Shuffle, number);
    const auto order = window_shuffle(units_.free.size(), choice_, shuffling);
    std::vector<SlotId> slots;
    if (instance_.constraints.equal_count) {
      Draws dealing(seed_, Draws::Purpose::Slots, number);
      slots = exchange_slots(units_, order, choice_, dealing);
    }
    Draws fitting(seed_, Draws::Purpose::BestFit, number);
    auto cells = all_cells(order, slots, [&](const Compartment& compartment) {
      return randomized_fit(instance_, items_, units_, compartment, budget_.fit_rule, choice_, fitting);
    });
    const bool exchange = !cells && budget_.exchange_when_full;
    if (exchange) {
      Draws exchanging(seed_, Draws::Purpose::Exchange, number);
      cells = exchanged_cells(instance_, items_, units_, fitted_, order, choice_, exchanging);
    }
    if (!cells) return {.outcome = Outcome::NoRoom};
    if (stop_.stop_requested()) return {};
    Draws pairing(seed_, Draws::Purpose::Pair, number);
    Candidate candidate = paired(*cells, {budget_.pair_key, choice_}, &pairing);
    candidate.exchanged = exchange;
    return candidate;
  }

 private:
  /// The closed cells and what `fill` makes of the compartments; empty when one of them fails.
  template <class Fill>
  std::optional<std::vector<Cell>> all_cells(std::span<const std::size_t> order, std::span<const SlotId> slots,
                                             Fill fill) const {
    std::vector<Cell> cells = units_.closed;
    for (const Compartment& compartment : compartments(instance_, units_, fitted_.rows, order, slots)) {
      auto more = fill(compartment);
      if (!more) return std::nullopt;
      std::ranges::move(*more, std::back_inserter(cells));
    }
    return cells;
  }

  [[nodiscard]] std::optional<std::vector<Cell>> first_fit_cells() const {
    std::vector<std::size_t> order(units_.free.size());
    for (std::size_t u = 0; u < order.size(); ++u) order[u] = u;
    return all_cells(order, fitted_slots(units_),
                     [&](const Compartment& compartment) { return first_fit(instance_, items_, units_, compartment); });
  }

  /// Cells [R, D] that are where they shall be.
  [[nodiscard]] Candidate in_place(std::span<const Cell> cells) const {
    RowTable table(instance_, loads_, pad_rates_, fitted_.rows, cells);
    join_in_place(table);
    const std::int64_t limit = instance_.constraints.max_rank_tokens;
    if (limit > 0 && table.peak() > limit) return {.outcome = Outcome::OverRankLimit};
    return finished(table);
  }

  Candidate paired(std::span<const Cell> cells, const Pairing& pairing, Draws* draws) const {
    RowTable table(instance_, loads_, pad_rates_, fitted_.rows, cells);
    switch (edp_aware_pair(instance_, table, pairing, draws, stop_)) {
      case PairOutcome::Paired:
        if (budget_.settle_shards) settle_shards(instance_, table);
        return finished(table);
      case PairOutcome::OverRankLimit:
        return {.outcome = Outcome::OverRankLimit};
      default:
        return {};
    }
  }

  [[nodiscard]] Score from_scratch(const Arrangement& arrangement) const {
    RowTable table(instance_, loads_, pad_rates_, arrangement.rows, arrangement.cells);
    join_in_place(table);
    return table.score();
  }

  void join_in_place(RowTable& table) const {
    const auto slots = static_cast<std::size_t>(instance_.topology.slots());
    for (std::size_t at = 0; at < table.size(); ++at) {
      for (const SlotId d : instance_.topology.slots_of(ShardId(at % table.shards()))) {
        const std::size_t c = at / table.shards() * slots + d;
        table.join(at, c, table.price_with(at, c));
      }
    }
  }

  Candidate finished(RowTable& table) const {
    Canonical canonical = canonicalize(instance_, items_, table.arrangement());
    std::vector<double> joint;
    joint.reserve(table.size());
    for (const std::size_t r : canonical.row_order) {
      for (std::size_t g = 0; g < table.shards(); ++g) joint.push_back(table.price(r * table.shards() + g).joint);
    }
    const Score score =
        combine_rows(joint, static_cast<std::int32_t>(table.rows()), instance_.topology.shards(), instance_.sync);
    ROUTEPACK_HEAVY_ASSERT(score == from_scratch(canonical.arrangement), "a seed's score differs from a new one's");
    return {.outcome = Outcome::Found,
            .seed = {std::move(canonical.arrangement), score, canonical.signature},
            .features = row_features(instance_, table)};
  }

  const Instance& instance_;
  const UnitLoads& loads_;
  std::span<const std::int64_t> pad_rates_;
  const Items& items_;
  const FittedCells& fitted_;
  const SeedBudget& budget_;
  std::size_t choice_;
  std::uint64_t seed_;
  const std::stop_token& stop_;
  Units units_;
};

std::vector<Candidate> build_all(const Builder& builder, const SeedBudget& budget, Executor& executor,
                                 const std::stop_token& stop) {
  constexpr std::size_t kFixed = 4;
  const std::size_t count = budget.candidates < 2 ? 1 : kFixed + budget.candidates - 2;
  std::vector<Candidate> candidates(count);
  executor.for_each(count, [&](std::size_t n) {
    if (n > 0 && stop.stop_requested()) return;
    switch (n) {
      case 0:
        candidates[n] = builder.filled();
        break;
      case 1:
        candidates[n] = builder.filled_anew();
        break;
      case 2:
        candidates[n] = builder.first_fit_in_order();
        break;
      case 3:
        candidates[n] = builder.first_fit_anew();
        break;
      default:
        candidates[n] = builder.trial(static_cast<std::uint32_t>(n - kFixed));
    }
  });
  return candidates;
}

/// Which of the candidates are chosen.
std::vector<std::size_t> choose(const Items& items, const std::vector<Candidate>& candidates,
                                const std::vector<std::size_t>& found, const SeedBudget& budget, Executor& executor,
                                const std::stop_token& stop) {
  std::vector<Score> scores;
  for (const std::size_t n : found) scores.push_back(candidates[n].seed.score);
  const std::size_t wanted = std::clamp<std::size_t>(budget.population, 1, found.size());

  std::vector<Profile> profiles(found.size());
  SerialExecutor here;
  Executor& sharing = found.size() * items.items.size() < kWorthSharing ? here : executor;
  if (wanted > 1) {
    const SlicedWasserstein sketcher(candidates.front().features, budget.projections);
    sharing.for_each(found.size(), [&](std::size_t n) {
      if (stop.stop_requested()) return;
      const Candidate& candidate = candidates[found[n]];
      profiles[n] = make_profile(items, candidate.seed.arrangement, sketcher.sketch(candidate.features));
    });
  }
  return quality_diversity_select(scores, wanted, budget.price_of_gap,
                                  [&](std::span<const std::size_t> all, std::size_t from) {
                                    std::vector<double> distance(all.size(), 0.0);
                                    sharing.for_each(all.size(), [&](std::size_t n) {
                                      // Without distances the scores alone decide.
                                      if (stop.stop_requested()) return;
                                      Distance measure;
                                      distance[n] = measure(profiles[all[n]], profiles[from]);
                                    });
                                    return distance;
                                  });
}

}  // namespace

Seeds diverse_seeds(const Instance& instance, const UnitLoads& loads, std::span<const std::int64_t> pad_rates,
                    const Items& items, const FittedCells& fitted, const SeedBudget& budget, std::uint64_t seed,
                    Executor& executor, const std::stop_token& stop) {
  const Builder builder(instance, loads, pad_rates, items, fitted, budget, seed, stop);
  std::vector<Candidate> candidates = build_all(builder, budget, executor, stop);

  Seeds result;
  CanonicalMap forms;
  for (std::size_t n = 0; n < candidates.size(); ++n) {
    const Candidate& candidate = candidates[n];
    result.exchanged += candidate.exchanged ? 1 : 0;
    switch (candidate.outcome) {
      case Outcome::Found:
        if (!forms.add(candidate.seed.signature, candidate.seed.score, n)) ++result.repeated;
        break;
      case Outcome::NoRoom:
        ++result.no_room;
        break;
      case Outcome::OverRankLimit:
        ++result.over_rank_limit;
        break;
      case Outcome::NotTried:
        ++result.not_tried;
        break;
    }
  }
  result.found = forms.entries().size();
  const auto chosen = choose(items, candidates, forms.entries(), budget, executor, stop);
  std::vector<std::size_t> numbers(chosen.size());
  for (std::size_t k = 0; k < chosen.size(); ++k) {
    numbers[k] = k;
    result.distinct.push_back(std::move(candidates[forms.entries()[chosen[k]]].seed));
  }
  result.population = filled_cyclically(numbers, budget.population);
  return result;
}

}  // namespace routepack
