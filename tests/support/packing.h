// SPDX-License-Identifier: Apache-2.0
// Everything that packing starts from, for a problem of support/problems.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cost/row_cost.h"
#include "exec/executor.h"
#include "packing/fit.h"
#include "packing/items.h"
#include "packing/row_bound.h"
#include "packing/unit_loads.h"
#include "support/problems.h"

namespace routepack::testing {

/// A problem up to its fitted cells; `refusal` says why there are none.
struct Prepared {
  Prepared(const Problem& problem, const Maps& maps) : scene(problem), placement(to_placement(maps, problem.ranks)) {
    auto made = make_items(scene.instance);
    if (const auto* why = std::get_if<Infeasible>(&made)) {
      refusal = why->reason;
      return;
    }
    items = std::get<Items>(std::move(made));
    SerialExecutor executor;
    loads = std::make_unique<UnitLoads>(scene.instance, placement, items, executor);
    pad_rates = pad_rank_rates(scene.window, placement);
    auto outcome = fewest_rows(scene.instance, items, row_bound(scene.instance, items, {}));
    if (const auto* why = std::get_if<Infeasible>(&outcome)) {
      refusal = why->reason;
    } else {
      fitted = std::get<FittedCells>(std::move(outcome));
    }
  }
  explicit Prepared(const Problem& problem)
      : Prepared(problem, identity_maps(problem.spec.layers, problem.spec.experts)) {}

  Scene scene;
  Placement placement;
  Items items;
  std::unique_ptr<UnitLoads> loads;
  std::vector<std::int64_t> pad_rates;
  FittedCells fitted;
  std::string refusal;
};

inline Cells cells_of(const Layout& layout) {
  Cells cells;
  for (const auto& row : layout.cells()) {
    auto& to = cells.emplace_back();
    for (const auto& cell : row) {
      to.emplace_back();
      for (const SampleId i : cell) to.back().push_back(i.value());
    }
  }
  return cells;
}

/// A window of one expert, one layer, whose samples have the given lengths, all routed.
inline Problem problem_of_lengths(std::vector<std::int32_t> lengths, std::vector<std::vector<std::int32_t>> shards,
                                  std::int64_t capacity) {
  Problem problem;
  problem.spec.samples = static_cast<std::int64_t>(lengths.size());
  problem.spec.layers = 1;
  problem.spec.experts = 1;
  problem.spec.counts.assign(lengths.begin(), lengths.end());
  problem.spec.lengths = std::move(lengths);
  problem.shards = std::move(shards);
  problem.stages = {{"dense", 1.0, 1.0}};
  problem.expert = {1.0};
  problem.capacity = capacity;
  return problem;
}

}  // namespace routepack::testing
