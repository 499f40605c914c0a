// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>

#include "core/assert.h"
#include "core/integer.h"
#include "packing/peers/karmarkar_karp.h"
#include "packing/peers/packers.h"

namespace routepack::peers {
namespace {

constexpr std::int64_t kLinear = 24576;  // a dense model of 7 billion parameters, whatever is trained

/// The samples of a slot by rising work, every other one first and the rest backwards: what the driver sends.
void light_at_both_ends(Bin& samples, const std::vector<std::int64_t>& work) {
  std::ranges::sort(samples,
                    [&](std::size_t a, std::size_t b) { return std::pair(work[a], a) < std::pair(work[b], b); });
  Bin ordered;
  for (std::size_t n = 0; n < samples.size(); n += 2) ordered.push_back(samples[n]);
  for (std::size_t n = samples.size() / 2; n > 0; --n) ordered.push_back(samples[2 * n - 1]);
  samples = std::move(ordered);
}

/// Cells of one slot, light ones first and last; they hold indices into `work`.
Bins cells_of(const std::vector<std::int64_t>& work, std::size_t count) {
  Bins bins = karmarkar_karp(work, count, false);
  for (Bin& bin : bins) std::ranges::sort(bin);
  const auto key = [&](const Bin& bin) { return std::pair(sum_over(bin, work), bin.empty() ? 0 : bin.front()); };
  std::ranges::sort(bins, [&](const Bin& a, const Bin& b) { return key(a) > key(b); });
  Bins ordered;
  for (std::size_t n = (bins.size() + 1) / 2; n > 0; --n) ordered.push_back(std::move(bins[2 * n - 2]));
  for (std::size_t n = 1; n < bins.size(); n += 2) ordered.push_back(std::move(bins[n]));
  return ordered;
}

template <class T>
std::vector<T> picked(const Bin& indices, const std::vector<T>& values) {
  std::vector<T> result;
  for (const std::size_t i : indices) result.push_back(values[i]);
  return result;
}

}  // namespace

Packed verl_kk_strict(const Lengths& lengths) {
  ROUTEPACK_ASSERT(lengths.size() % lengths.slots == 0, "sample counts that cannot be equal");
  if (Infeasible why; !all_fit(lengths, why)) return why;
  std::vector<std::int64_t> work;
  if (!work_of(lengths.of, kLinear, work)) return Infeasible{"the work of all samples passes 2^63", "a smaller window"};

  Bins of_slot = karmarkar_karp(work, lengths.slots, true);
  std::size_t needed = 1;
  for (Bin& samples : of_slot) {
    light_at_both_ends(samples, work);
    needed = std::max(needed, static_cast<std::size_t>(ceil_div(sum_over(samples, lengths.of), lengths.capacity)));
  }
  const std::size_t share = lengths.size() / lengths.slots;
  for (std::size_t rows = allowed_rows(lengths, needed); rows <= share; rows = allowed_rows(lengths, rows + 1)) {
    SlotCells cells;
    bool fits = true;
    for (const Bin& samples : of_slot) {
      Bins& bins = cells.emplace_back(cells_of(picked(samples, work), rows));
      for (Bin& bin : bins) {
        bin = picked(bin, samples);
        fits = fits && sum_over(bin, lengths.of) <= lengths.capacity;
      }
      if (!fits) break;
    }
    if (fits) return cells;
  }
  return too_few(lengths.size(), (share + 1) * lengths.slots);
}

}  // namespace routepack::peers
