// SPDX-License-Identifier: Apache-2.0
#include "placement/relabel.h"

#include <fmt/format.h>

#include <limits>

#include "core/assert.h"
#include "placement/slots.h"
#include "routepack/error.h"

namespace routepack {

std::vector<std::int32_t> best_assignment(std::span<const std::int64_t> values, std::int32_t n) {
  const auto size = static_cast<std::size_t>(n);
  ROUTEPACK_ASSERT(values.size() == size * size, "the table is not square");
  constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  // Rows are added one by one; each takes the cheapest alternating path to a free column, costs (negative values) being
  // reduced by potentials so that they stay non-negative along paths. Column `size` stands for the row being added.
  std::vector<std::int64_t> row_potential(size, 0), column_potential(size + 1, 0);
  std::vector<std::size_t> row_of(size + 1, kNone);
  for (std::size_t added = 0; added < size; ++added) {
    std::vector<std::int64_t> distance(size, kFar);
    std::vector<std::size_t> before(size, size);
    std::vector<bool> reached(size + 1, false);
    row_of[size] = added;
    std::size_t column = size;
    while (row_of[column] != kNone) {
      reached[column] = true;
      const std::size_t row = row_of[column];
      std::int64_t step = kFar;
      std::size_t next = kNone;
      for (std::size_t j = 0; j < size; ++j) {
        if (reached[j]) continue;
        const std::int64_t cost = -values[row * size + j] - row_potential[row] - column_potential[j];
        if (cost < distance[j]) {
          distance[j] = cost;
          before[j] = column;
        }
        if (distance[j] < step) {
          step = distance[j];
          next = j;
        }
      }
      for (std::size_t j = 0; j <= size; ++j) {
        if (reached[j]) {
          row_potential[row_of[j]] += step;
          column_potential[j] -= step;
        } else {
          distance[j] -= step;
        }
      }
      column = next;
    }
    while (column != size) {
      row_of[column] = row_of[before[column]];
      column = before[column];
    }
  }
  std::vector<std::int32_t> column_of(size);
  for (std::size_t j = 0; j < size; ++j) column_of[row_of[j]] = static_cast<std::int32_t>(j);
  return column_of;
}

Placement relabel(const Placement& wanted, const Placement& home, std::int32_t ranks_per_node) {
  if (wanted.layers() != home.layers() || wanted.experts() != home.experts() || wanted.ranks() != home.ranks()) {
    throw InvalidInput(fmt::format("placement: found {} layers of {} experts on {} ranks, wanted {} of {} on {}",
                                   wanted.layers(), wanted.experts(), wanted.ranks(), home.layers(), home.experts(),
                                   home.ranks()));
  }
  if (ranks_per_node < 0) {
    throw InvalidInput(fmt::format("ranks_per_node: found {}, wanted at least 0", ranks_per_node));
  }
  const auto ranks = static_cast<std::size_t>(home.ranks());
  const std::int32_t node = ranks_per_node == 0 ? home.ranks() : ranks_per_node;
  // One expert more at home outweighs all that could stay inside their node.
  const std::int64_t at_home = std::int64_t{home.experts()} + 1;
  std::vector<std::int32_t> rank_of;
  for (const LayerId l : IdRange<LayerId>(home.layers())) {
    std::vector<std::int64_t> values(ranks * ranks, 0);
    for (const ExpertId e : IdRange<ExpertId>(home.experts())) {
      const std::int32_t here = home.rank_of(l, e).value();
      std::int64_t* group = &values[wanted.rank_of(l, e) * ranks];
      for (std::int32_t p = 0; p < home.ranks(); ++p) {
        if (p / node == here / node) group[p] += p == here ? at_home : 1;
      }
    }
    const auto name = best_assignment(values, home.ranks());
    for (const std::int32_t group : wanted.ranks_of_layer(l)) rank_of.push_back(name[static_cast<std::size_t>(group)]);
  }
  return fill_slots(home, rank_of);
}

}  // namespace routepack
