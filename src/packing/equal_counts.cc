// SPDX-License-Identifier: Apache-2.0
#include "packing/equal_counts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/integer.h"
#include "packing/heuristics.h"

namespace routepack {
namespace {

/// Steps of exchanging items between slots.
constexpr std::int64_t kLevelSteps = 400'000;
/// Steps of trying every assignment at one row count.
constexpr std::int64_t kEverySteps = 300'000;

std::vector<std::size_t> all_indices(const Items& items) {
  std::vector<std::size_t> indices(items.items.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  return indices;
}

using Shares = std::vector<std::vector<std::size_t>>;  // items of each slot

/// Slots get equally many samples: groups first, then falling lengths to the slot that `prefers` says.
template <class Prefers>
std::optional<Shares> share_equally(const Instance& instance, const Items& items, Prefers prefers) {
  const auto slots = static_cast<std::size_t>(instance.topology.slots());
  const auto share = static_cast<std::int64_t>(items.samples.size() / slots);
  std::vector<std::size_t> order = all_indices(items);
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return items.items[a].count > items.items[b].count; });

  Shares slot_items(slots);
  std::vector<std::int64_t> samples(slots, 0);
  std::vector<std::int64_t> tokens(slots, 0);
  for (const std::size_t index : order) {
    const Item& item = items.items[index];
    std::size_t best = slots;
    for (std::size_t d = 0; d < slots; ++d) {
      if (samples[d] + item.count > share) continue;
      if (best == slots || prefers(samples[d], tokens[d], samples[best], tokens[best])) best = d;
    }
    if (best == slots) return std::nullopt;
    slot_items[best].push_back(index);
    samples[best] += item.count;
    tokens[best] += item.totals.aligned;
  }
  for (auto& indices : slot_items) std::ranges::sort(indices);  // back to falling lengths
  return slot_items;
}

/// The same with tokens brought closer together than dealing does: slots as bins that exchange items.
/// Each slot's tokens leave room in `rows` cells.
std::optional<Shares> share_evenly(const Instance& instance, const Items& items, std::int64_t rows) {
  const std::int64_t slots = instance.topology.slots();
  const std::int64_t usable = room_of_a_cell(instance);
  BinProblem problem;
  for (const Item& item : items.items) problem.units.push_back({std::min(item.totals.aligned, usable), item.count});
  problem.max_count = problem.total_count() / slots;
  const std::int64_t mean = ceil_div(problem.total_size(), slots);
  problem.capacity = mean + std::max<std::int64_t>(0, rows * usable - mean) / 8;
  Work work(kLevelSteps);
  const auto packing = level_bins(problem, slots, work);
  if (!packing) return std::nullopt;
  Shares shares;
  for (const auto& slot : *packing) shares.emplace_back(slot.begin(), slot.end());
  return shares;
}

/// Cells dealt to slots, then exchanged, and single items moved, until every slot has the same number of samples.
class Regrouping {
 public:
  Regrouping(const Instance& instance, const Items& items, std::vector<Cell> cells, std::int64_t rows)
      : instance_(instance),
        items_(items),
        cells_(std::move(cells)),
        share_(static_cast<std::int64_t>(items.samples.size()) / instance.topology.slots()),
        slots_(static_cast<std::size_t>(instance.topology.slots())),
        samples_(slots_.size(), 0) {
    std::vector<std::size_t> order(cells_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order,
                             [&](std::size_t a, std::size_t b) { return cells_[a].samples > cells_[b].samples; });
    for (const std::size_t c : order) {
      std::size_t best = slots_.size();
      for (std::size_t d = 0; d < slots_.size(); ++d) {
        if (static_cast<std::int64_t>(slots_[d].size()) == rows) continue;
        if (best == slots_.size() || samples_[d] < samples_[best]) best = d;
      }
      slots_[best].push_back(c);
      samples_[best] += cells_[c].samples;
    }
  }

  bool even_out(Work& work) {
    while (true) {
      const auto most = static_cast<std::size_t>(std::ranges::max_element(samples_) - samples_.begin());
      const auto least = static_cast<std::size_t>(std::ranges::min_element(samples_) - samples_.begin());
      const std::int64_t wanted = std::min(samples_[most] - share_, share_ - samples_[least]);
      if (wanted == 0) return samples_[most] == samples_[least];
      if (exchange_cells(most, least, wanted, work) == 0 && move_item(most, least, wanted, work) == 0) return false;
      if (work.over()) return false;
    }
  }

  std::vector<Cell> take() {
    std::vector<Cell> result;
    for (std::size_t d = 0; d < slots_.size(); ++d) {
      for (const std::size_t c : slots_[d]) {
        cells_[c].slot = SlotId(d);
        result.push_back(std::move(cells_[c]));
      }
    }
    return result;
  }

 private:
  /// Swaps the two cells whose counts differ most but by no more than wanted.
  std::int64_t exchange_cells(std::size_t from, std::size_t to, std::int64_t wanted, Work& work) {
    std::int64_t best = 0;
    std::size_t out = 0;
    std::size_t in = 0;
    for (std::size_t a = 0; a < slots_[from].size() && best < wanted; ++a) {
      work.spend(static_cast<std::int64_t>(slots_[to].size()));
      for (std::size_t b = 0; b < slots_[to].size(); ++b) {
        const std::int64_t more = cells_[slots_[from][a]].samples - cells_[slots_[to][b]].samples;
        if (more > best && more <= wanted) {
          best = more;
          out = a;
          in = b;
        }
      }
    }
    if (best == 0) return 0;
    std::swap(slots_[from][out], slots_[to][in]);
    count(from, to, best);
    return best;
  }

  /// Moves the first item found, smallest first, that another cell takes.
  std::int64_t move_item(std::size_t from, std::size_t to, std::int64_t wanted, Work& work) {
    for (const std::size_t a : slots_[from]) {
      Cell& source = cells_[a];
      if (source.items.size() < 2) continue;
      for (std::size_t n = source.items.size(); n-- > 0;) {
        const std::size_t index = source.items[n];
        const Item& item = items_.items[index];
        if (item.count > wanted) continue;
        work.spend(static_cast<std::int64_t>(slots_[to].size()));
        for (const std::size_t b : slots_[to]) {
          if (!cells_[b].accepts(item, instance_)) continue;
          Cell rest;
          for (const std::size_t kept : source.items) {
            if (kept != index) rest.add(kept, items_.items[kept]);
          }
          source = std::move(rest);
          cells_[b].add(index, item);
          count(from, to, item.count);
          return item.count;
        }
        if (work.over()) return 0;
      }
    }
    return 0;
  }

  void count(std::size_t from, std::size_t to, std::int64_t samples) {
    samples_[from] -= samples;
    samples_[to] += samples;
  }

  const Instance& instance_;
  const Items& items_;
  std::vector<Cell> cells_;
  std::int64_t share_;
  std::vector<std::vector<std::size_t>> slots_;  // cells of each
  std::vector<std::int64_t> samples_;
};

void append(std::vector<Cell>& all, std::vector<Cell> cells, SlotId d) {
  for (Cell& cell : cells) {
    cell.slot = d;
    all.push_back(std::move(cell));
  }
}

}  // namespace

EqualFitter::EqualFitter(const Instance& instance, const Items& items, std::int64_t rows)
    : instance_(instance), items_(items), together_(instance, items, all_indices(items)) {
  const auto fewest_tokens = [](auto, auto tokens, auto, auto best) { return tokens < best; };
  const auto in_turn = [](auto samples, auto tokens, auto best_samples, auto best_tokens) {
    return std::pair(samples, tokens) < std::pair(best_samples, best_tokens);
  };
  for (auto shares : {share_equally(instance, items, fewest_tokens), share_equally(instance, items, in_turn),
                      share_evenly(instance, items, rows)}) {
    if (!shares) continue;
    auto& fitters = ways_.emplace_back();
    for (std::vector<std::size_t>& indices : *shares) fitters.emplace_back(instance, items, std::move(indices));
  }
}

std::optional<std::vector<Cell>> EqualFitter::fit(std::int64_t rows, Work& work) {
  for (auto& fitters : ways_) {
    std::vector<Cell> all;
    bool complete = true;
    for (std::size_t d = 0; d < fitters.size() && complete; ++d) {
      auto cells = fitters[d].quickly(rows);
      if (!cells && !work.over()) {
        Work part(work.left() / 8);
        const std::int64_t before = part.left();
        if (fitters[d].thoroughly(rows, part) == Proof::Fits) cells = fitters[d].fewest(rows);
        work.spend(before - part.left());
      }
      complete = cells.has_value();
      if (complete) append(all, *std::move(cells), SlotId(d));
    }
    if (complete) return all;
  }
  const std::int64_t count = rows * instance_.topology.slots();
  auto cells = together_.quickly(count);
  if (!cells && !work.over()) {
    Work part(work.left() / 2);
    const std::int64_t before = part.left();
    if (together_.thoroughly(count, part) == Proof::Fits) cells = together_.fewest(count);
    work.spend(before - part.left());
  }
  if (!cells) return std::nullopt;
  Regrouping regrouping(instance_, items_, *std::move(cells), rows);
  Work exchanges(kLevelSteps);
  if (!regrouping.even_out(exchanges)) return std::nullopt;
  return regrouping.take();
}

Proof EqualFitter::try_everything(std::int64_t rows, std::optional<std::vector<Cell>>& cells) const {
  EqualProblem problem;
  problem.slots = instance_.topology.slots();
  problem.rows = rows;
  problem.bins.capacity = room_of_a_cell(instance_);
  const std::int64_t limit = instance_.constraints.max_samples_per_cell;
  if (limit > 0) problem.bins.max_count = limit;
  for (const Item& item : items_.items) {
    problem.bins.units.push_back({item.totals.aligned, item.count});
    problem.alone.push_back(item.oversized);
  }
  Work work(kEverySteps);
  const ExactAnswer answer = pack_equal_counts(problem, work);
  if (answer.proof != Proof::Fits) return answer.proof;
  std::vector<Cell> all;
  for (std::size_t c = 0; c < answer.packing.size(); ++c) {
    Cell cell;
    for (const std::uint32_t index : answer.packing[c]) {
      cell.add(index, items_.items[index]);
      cell.closed = items_.items[index].oversized;
    }
    append(all, {std::move(cell)}, SlotId(c / static_cast<std::size_t>(rows)));
  }
  cells = std::move(all);
  return Proof::Fits;
}

}  // namespace routepack
