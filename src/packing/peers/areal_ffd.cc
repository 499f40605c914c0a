// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "core/assert.h"
#include "packing/peers/areal.h"
#include "packing/peers/packers.h"

namespace routepack::peers {
namespace areal {
namespace {

/// By falling length to the lightest slot that has not got its N / D samples yet.
std::vector<Bin> equal_counts(const Lengths& lengths) {
  const std::size_t share = lengths.size() / lengths.slots;
  std::vector<Bin> of_slot(lengths.slots);
  std::vector<std::int64_t> sums(lengths.slots, 0);
  for (const std::size_t i : by_falling(lengths.of)) {
    std::size_t lightest = lengths.slots;
    for (std::size_t d = 0; d < lengths.slots; ++d) {
      if (of_slot[d].size() < share && (lightest == lengths.slots || sums[d] < sums[lightest])) lightest = d;
    }
    of_slot[lightest].push_back(i);
    sums[lightest] += lengths.of[i];
  }
  return of_slot;
}

Bins one_pass(const std::vector<std::int64_t>& of_slot, std::int64_t capacity, std::size_t min_groups) {
  Bins bins;
  std::vector<std::int64_t> sums;
  for (const std::size_t i : by_falling(of_slot)) {
    std::size_t best = bins.size();
    if (bins.size() >= min_groups) {
      for (std::size_t b = 0; b < bins.size(); ++b) {
        if (sums[b] + of_slot[i] > capacity) continue;
        if (best == bins.size() || std::pair(bins[b].size(), sums[b]) < std::pair(bins[best].size(), sums[best])) {
          best = b;
        }
      }
    }
    if (best == bins.size()) {
      bins.emplace_back();
      sums.push_back(0);
    }
    bins[best].push_back(i);
    sums[best] += of_slot[i];
  }
  return bins;
}

}  // namespace

std::variant<Bins, Infeasible> allocate_ffd(const Lengths& lengths, const std::vector<std::int64_t>& of_slot,
                                            std::size_t min_groups) {
  const std::size_t step = lengths.row_multiple;
  for (min_groups = std::max(min_groups, step); min_groups <= of_slot.size(); min_groups += step - min_groups % step) {
    Bins bins = one_pass(of_slot, lengths.capacity, min_groups);
    if (bins.size() % step == 0) return bins;
  }
  return too_few(of_slot.size(), min_groups);
}

Packed pack(const Lengths& lengths, Allocate allocate) {
  ROUTEPACK_ASSERT(lengths.size() % lengths.slots == 0, "sample counts that cannot be equal");
  if (Infeasible why; !all_fit(lengths, why)) return why;
  const std::vector<Bin> of_slot = equal_counts(lengths);
  std::size_t rows = lengths.min_rows;
  while (true) {
    SlotCells cells;
    std::size_t most = 0;
    for (const Bin& samples : of_slot) {
      std::vector<std::int64_t> local;
      for (const std::size_t i : samples) local.push_back(lengths.of[i]);
      auto allocated = allocate(lengths, local, rows);
      if (auto* why = std::get_if<Infeasible>(&allocated)) return std::move(*why);
      Bins& bins = cells.emplace_back(std::get<Bins>(std::move(allocated)));
      for (Bin& bin : bins) std::ranges::sort(bin);
      std::ranges::sort(bins);  // the row order: by the smallest local index
      for (Bin& bin : bins) {
        for (std::size_t& i : bin) i = samples[i];
      }
      most = std::max(most, bins.size());
    }
    if (std::ranges::all_of(cells, [&](const Bins& bins) { return bins.size() == most; })) return cells;
    rows = most;
  }
}

}  // namespace areal

Packed areal_ffd(const Lengths& lengths) {
  return areal::pack(lengths, areal::allocate_ffd);
}

}  // namespace routepack::peers
