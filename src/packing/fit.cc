// SPDX-License-Identifier: Apache-2.0
#include "packing/fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "core/assert.h"
#include "core/integer.h"
#include "packing/equal_counts.h"
#include "packing/fitter.h"
#include "packing/free_space_tree.h"

namespace routepack {
namespace {

using ItemIndices = std::vector<std::size_t>;

/// Steps that the searches may take for one window.
constexpr std::int64_t kSearchSteps = 6'500'000;
/// Row counts at which every assignment is tried after a proof has failed, when counts must be equal.
constexpr std::int64_t kEqualTries = 8;

/// Items in order, each to the first cell that takes it; cells that stay empty get one from the fullest.
std::optional<std::vector<Cell>> first_fit(const Instance& instance, const Items& items, const ItemIndices& wanted,
                                           std::vector<Cell> cells) {
  const std::int64_t usable = room_of_a_cell(instance);
  FreeSpaceTree free_space(cells.size(), usable);
  const auto update = [&](std::size_t c) { free_space.set(c, cells[c].closed ? 0 : usable - cells[c].totals.aligned); };
  for (std::size_t c = 0; c < cells.size(); ++c) update(c);
  for (const std::size_t index : wanted) {
    const Item& item = items.items[index];
    // An oversized sample takes a whole cell; the other rules are asked of the cell itself.
    const std::int64_t needed = std::min(item.totals.aligned, usable);
    std::size_t c = free_space.first_with(needed, 0);
    while (c < cells.size() && !(item.oversized ? cells[c].items.empty() : cells[c].accepts(item, instance))) {
      c = free_space.first_with(needed, c + 1);
    }
    if (c == cells.size()) return std::nullopt;
    cells[c].closed = item.oversized;
    cells[c].add(index, item);
    update(c);
  }
  if (!fill_empty_cells(cells, items)) return std::nullopt;
  return cells;
}

ItemIndices all_indices(const Items& items) {
  ItemIndices indices(items.items.size());
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  return indices;
}

/// The smallest change of each rule that asks for more than `most` rows.
std::string rows_remedy(const Instance& instance, const Items& items, std::int64_t most) {
  const Constraints& rules = instance.constraints;
  const std::int64_t cells = most * instance.topology.slots();
  std::vector<std::string> changes;
  if (rules.min_rows > most) changes.push_back(fmt::format("--min-rows {}", most));
  if (rules.row_multiple > most) changes.push_back(fmt::format("--row-multiple {} or less", most));
  if (instance.topology.pipeline_stages() > most) changes.push_back(fmt::format("--pp {} or less", most));
  std::int64_t tokens = 0;
  for (const Item& item : items.items) tokens += std::min(item.totals.aligned, room_of_a_cell(instance));
  if (tokens > cells * room_of_a_cell(instance)) {
    changes.push_back(fmt::format("--cap {} or more", instance.aligned_cell(ceil_div(tokens, cells))));
  }
  const auto samples = static_cast<std::int64_t>(items.samples.size());
  if (rules.max_samples_per_cell > 0 && samples > cells * rules.max_samples_per_cell) {
    changes.push_back(fmt::format("--max-samples-per-cell {} or more", ceil_div(samples, cells)));
  }
  return changes.empty() ? fmt::format("fewer slots, or less strict rules: {} rows at most", most)
                         : fmt::format("{}", fmt::join(changes, ", "));
}

Infeasible too_few_items(const Instance& instance, const Items& items, const RowBound& bound) {
  const std::int64_t slots = instance.topology.slots();
  const auto units = static_cast<std::int64_t>(items.items.size());
  const auto samples = static_cast<std::int64_t>(items.samples.size());
  const std::string what = units == samples ? fmt::format("{} samples", samples)
                                            : fmt::format("{} samples in {} units that stay together", samples, units);
  return {fmt::format("{} row{} of {} cells ({}) need at least {} samples, found {}", bound.rows,
                      bound.rows == 1 ? "" : "s", slots, bound.because, bound.rows * slots, what),
          units < slots ? fmt::format("{} slots at most, or {} samples at least", units, slots)
                        : rows_remedy(instance, items, units / slots)};
}

Infeasible nothing_found(const Instance& instance, const RowBound& bound, std::int64_t last_rows) {
  std::string side;
  const Constraints& rules = instance.constraints;
  if (rules.equal_count) side += " equal_count,";
  if (rules.max_samples_per_cell > 0) side += fmt::format(" max_samples_per_cell {},", rules.max_samples_per_cell);
  if (rules.row_multiple > 1) side += fmt::format(" row_multiple {},", rules.row_multiple);
  if (!instance.window.arrays().atomic.empty()) side += " atomic groups,";
  return {fmt::format(
              "no fit found from {} rows ({}) to {} rows, where every cell would hold one unit; at work:{} capacity "
              "{}",
              bound.rows, bound.because, last_rows, side, instance.capacity),
          "a larger --cap, or without one of these rules"};
}

RowBound beyond(const RowBound& bound, std::int64_t step) {
  return {bound.rows + step,
          fmt::format("an exhaustive search found no way into {} row{}", bound.rows, bound.rows == 1 ? "" : "s")};
}

std::variant<FittedCells, Infeasible> fewest_free_rows(const Instance& instance, const Items& items, RowBound bound,
                                                       std::int64_t most) {
  const std::int64_t slots = instance.topology.slots();
  const std::int64_t step = instance.constraints.row_multiple;
  Fitter fitter(instance, items, all_indices(items));
  Work work(kSearchSteps);
  while (true) {
    if (bound.rows > most) return too_few_items(instance, items, bound);
    if (auto cells = fitter.quickly(bound.rows * slots)) return FittedCells{bound.rows, *std::move(cells), bound};
    const Proof proof = fitter.thoroughly(bound.rows * slots, work);
    if (proof == Proof::Fits) return FittedCells{bound.rows, *fitter.fewest(bound.rows * slots), bound};
    if (proof == Proof::Unknown) break;
    bound = beyond(bound, step);
  }

  // More rows than the best packing takes are never needed; between it and the bound an even fit may still exist.
  std::int64_t rows = round_up(ceil_div(fitter.fewest_cells(), slots), step);
  if (rows > most) return nothing_found(instance, bound, most);
  auto cells = fitter.quickly(rows * slots);
  for (std::int64_t failed = bound.rows; rows - failed > step;) {
    const std::int64_t middle = failed + std::max(step, round_down((rows - failed) / 2, step));
    if (auto fewer = fitter.quickly(middle * slots)) {
      rows = middle;
      cells = std::move(fewer);
    } else {
      failed = middle;
    }
  }
  ROUTEPACK_ASSERT(cells.has_value(), "the best packing known does not fit its own number of cells");
  return FittedCells{rows, *std::move(cells), bound};
}

std::variant<FittedCells, Infeasible> fewest_equal_rows(const Instance& instance, const Items& items, RowBound bound,
                                                        std::int64_t most) {
  const std::int64_t step = instance.constraints.row_multiple;
  EqualFitter fitter(instance, items, bound.rows);
  Work work(kSearchSteps);
  const RowBound at_least = bound;
  bool proven = true;
  std::optional<std::vector<Cell>> cells;
  // Whole groups may add up at one row count and not at the next, so the counts are tried in turn; in wider steps once
  // many have failed.
  std::int64_t tries = 0;
  for (std::int64_t rows = bound.rows; rows <= most;) {
    cells = fitter.fit(rows, work);
    if (!cells && (proven || tries < kEqualTries)) {
      const Proof proof = fitter.try_everything(rows, cells);
      if (proven && proof == Proof::Impossible) bound = beyond({rows, ""}, step);
      proven = proven && proof == Proof::Impossible;
    }
    if (cells) return FittedCells{rows, *std::move(cells), bound};
    ++tries;
    const std::int64_t next = rows + step * std::max<std::int64_t>(1, proven ? 1 : tries / 8);
    rows = rows < most ? std::min(most, next) : next;
  }
  if (!proven) return nothing_found(instance, at_least, most);
  return Infeasible{
      fmt::format("no way to give every slot the same number of samples: tried all of {} rows ({}) to {} rows; at "
                  "work: equal_count{} and capacity {}",
                  at_least.rows, at_least.because, most,
                  instance.window.arrays().atomic.empty() ? "" : ", atomic groups", instance.capacity),
      "without --equal-count, smaller atomic groups or a larger --cap"};
}

}  // namespace

std::variant<FittedCells, Infeasible> fewest_rows(const Instance& instance, const Items& items,
                                                  const RowBound& at_least) {
  const std::int64_t step = instance.constraints.row_multiple;
  const std::int64_t most = round_down(static_cast<std::int64_t>(items.items.size()) / instance.topology.slots(), step);
  if (at_least.rows > most) return too_few_items(instance, items, at_least);
  return instance.constraints.equal_count ? fewest_equal_rows(instance, items, at_least, most)
                                          : fewest_free_rows(instance, items, at_least, most);
}

std::optional<std::vector<Cell>> first_fit_decreasing(const Instance& instance, const Items& items,
                                                      std::int64_t cells) {
  return first_fit(instance, items, all_indices(items), std::vector<Cell>(static_cast<std::size_t>(cells)));
}

}  // namespace routepack
