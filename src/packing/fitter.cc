// SPDX-License-Identifier: Apache-2.0
#include "packing/fitter.h"

#include <algorithm>
#include <utility>

#include "packing/heuristics.h"

namespace routepack {
namespace {

/// Steps of exchanging units in one attempt at an even fit.
constexpr std::int64_t kLevelSteps = 400'000;
/// Proofs are for sets with at most this many cells.
constexpr std::int64_t kProvableCells = 2048;
/// With more cells than this a complete proof is rare, and the steps find more elsewhere.
constexpr std::int64_t kOftenProven = 128;

std::optional<Packing> even(const Reduced& reduced, std::int64_t bins) {
  Work work(kLevelSteps);
  return level_bins(reduced.problem, bins, work);
}

}  // namespace

Fitter::Fitter(const Instance& instance, const Items& items, std::vector<std::size_t> wanted)
    : items_(items),
      wanted_(std::move(wanted)),
      apart_(reduce(instance, items, wanted_, RoutelessItems::Apart)),
      merged_(reduce(instance, items, wanted_, RoutelessItems::Merged)),
      fewest_(first_fit_bins(apart_.problem)) {}

std::optional<std::vector<Cell>> Fitter::quickly(std::int64_t count) const {
  const std::int64_t bins = count - alone();
  if (bins < 0 || static_cast<std::int64_t>(wanted_.size()) < count) return std::nullopt;
  if (auto packing = even(merged_, bins)) return to_cells(merged_, *packing, count);
  if (auto packing = best_fit(merged_.problem, bins)) return to_cells(merged_, *packing, count);
  if (merged_.merged) {
    if (auto packing = even(apart_, bins)) return to_cells(apart_, *packing, count);
  }
  if (fewest_cells() <= count) return to_cells(apart_, fewest_, count);
  return std::nullopt;
}

Proof Fitter::thoroughly(std::int64_t count, Work& work) {
  const std::int64_t bins = count - alone();
  if (bins < 0) return Proof::Impossible;
  if (apart_.problem.units.empty() || fewest_cells() <= count) return Proof::Fits;
  if (bins == 0) return Proof::Impossible;
  const auto spend = [&](std::int64_t share, auto&& search) {
    Work part(share);
    search(part);
    work.spend(share - part.left());
  };
  spend(work.left() / 16, [&](Work& part) { fewest_ = fewer_bins(apart_.problem, bins, std::move(fewest_), part); });
  Proof proof = fewest_cells() <= count ? Proof::Fits : Proof::Unknown;
  if (proof == Proof::Unknown && bins <= kProvableCells) {
    spend(work.left() / (bins <= kOftenProven ? 2 : 8), [&](Work& part) {
      ExactAnswer answer = pack_exactly(apart_.problem, bins, part);
      proof = answer.proof;
      if (proof == Proof::Fits) fewest_ = std::move(answer.packing);
    });
  }
  if (proof == Proof::Unknown) {
    spend(work.left() * 15 / 16,
          [&](Work& part) { fewest_ = fewer_bins(apart_.problem, bins, std::move(fewest_), part); });
    if (fewest_cells() <= count) proof = Proof::Fits;
  }
  return proof;
}

std::optional<std::vector<Cell>> Fitter::fewest(std::int64_t count) const {
  if (fewest_cells() > count || static_cast<std::int64_t>(wanted_.size()) < count) return std::nullopt;
  return to_cells(apart_, fewest_, count);
}

std::optional<std::vector<Cell>> Fitter::to_cells(const Reduced& reduced, const Packing& packing,
                                                  std::int64_t count) const {
  std::vector<Cell> cells;
  cells.reserve(static_cast<std::size_t>(count));
  for (const std::size_t index : reduced.alone) {
    Cell& cell = cells.emplace_back();
    cell.add(index, items_.items[index]);
    cell.closed = true;
  }
  for (const auto& bin : packing) {
    std::vector<std::size_t> indices;
    for (const std::uint32_t u : bin) {
      indices.insert(indices.end(), reduced.members[u].begin(), reduced.members[u].end());
    }
    std::ranges::sort(indices);  // falling lengths
    Cell& cell = cells.emplace_back();
    for (const std::size_t index : indices) cell.add(index, items_.items[index]);
  }
  cells.resize(static_cast<std::size_t>(count));
  if (!fill_empty_cells(cells, items_)) return std::nullopt;
  return cells;
}

}  // namespace routepack
