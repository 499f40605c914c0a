// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "core/integer.h"
#include "packing/peers/areal.h"
#include "packing/peers/karmarkar_karp.h"
#include "packing/peers/packers.h"

namespace routepack::peers {
namespace {

std::variant<Bins, Infeasible> allocate_kk(const Lengths& lengths, const std::vector<std::int64_t>& of_slot,
                                           std::size_t min_groups) {
  const std::size_t step = lengths.row_multiple;
  const std::int64_t tokens = std::accumulate(of_slot.begin(), of_slot.end(), std::int64_t{0});
  const auto needed = static_cast<std::size_t>(ceil_div(tokens, lengths.capacity));
  const std::size_t groups = (std::max(min_groups, needed) + step - 1) / step * step;
  if (of_slot.size() < groups) return too_few(of_slot.size(), groups);
  Bins bins = karmarkar_karp(of_slot, groups, false);
  const auto fits = [&](const Bin& bin) { return sum_over(bin, of_slot) <= lengths.capacity; };
  return std::ranges::all_of(bins, fits) ? bins : areal::allocate_ffd(lengths, of_slot, min_groups);
}

}  // namespace

Packed areal_kk(const Lengths& lengths) {
  return areal::pack(lengths, allocate_kk);
}

}  // namespace routepack::peers
