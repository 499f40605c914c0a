// SPDX-License-Identifier: Apache-2.0
#include "packing/bins.h"

#include <algorithm>

namespace routepack {

std::int64_t BinProblem::total_size() const {
  std::int64_t total = 0;
  for (const Unit& unit : units) total += unit.size;
  return total;
}

std::int64_t BinProblem::total_count() const {
  std::int64_t total = 0;
  for (const Unit& unit : units) total += unit.count;
  return total;
}

bool is_packing(const BinProblem& problem, const Packing& packing) {
  std::vector<int> seen(problem.units.size(), 0);
  for (const auto& bin : packing) {
    std::int64_t size = 0;
    std::int64_t count = 0;
    for (const std::uint32_t u : bin) {
      if (u >= seen.size()) return false;
      ++seen[u];
      size += problem.units[u].size;
      count += problem.units[u].count;
    }
    if (size > problem.capacity || count > problem.max_count) return false;
  }
  return std::ranges::all_of(seen, [](int times) { return times == 1; });
}

Kinds::Kinds(const BinProblem& problem) {
  for (const auto& unit : problem.units) {
    if (size.empty() || size.back() != unit.size || count.back() != unit.count) {
      size.push_back(unit.size);
      count.push_back(unit.count);
      copies.push_back(0);
    }
    ++copies.back();
  }
}

Packing Kinds::deal(const std::vector<std::vector<std::uint32_t>>& bins) const {
  std::vector<std::uint32_t> next(kinds(), 0);
  for (std::size_t k = 1; k < kinds(); ++k) next[k] = next[k - 1] + static_cast<std::uint32_t>(copies[k - 1]);
  Packing packing;
  packing.reserve(bins.size());
  for (const auto& bin : bins) {
    auto& units = packing.emplace_back();
    units.reserve(bin.size());
    for (const std::uint32_t kind : bin) units.push_back(next[kind]++);
  }
  return packing;
}

}  // namespace routepack
