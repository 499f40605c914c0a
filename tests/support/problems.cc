// SPDX-License-Identifier: Apache-2.0
#include "support/problems.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "support/property.h"

namespace routepack::testing {
namespace {

std::int64_t ceil_to(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Routes of `tokens` tokens to distinct experts, low experts preferred.
void add_routes(std::mt19937_64& random, std::uint32_t* counts, std::int32_t experts, std::int64_t top_k,
                std::int32_t tokens) {
  for (std::int32_t token = 0; token < tokens; ++token) {
    std::set<std::int32_t> chosen;
    while (static_cast<std::int64_t>(chosen.size()) < top_k) {
      chosen.insert(std::min(below(random, experts), below(random, experts)));
    }
    for (const std::int32_t e : chosen) ++counts[e];
  }
}

WindowSpec draw_window(std::mt19937_64& random, std::int32_t samples, std::int32_t layers, std::int32_t experts,
                       std::int32_t max_length, bool padding) {
  WindowSpec spec;
  spec.samples = samples;
  spec.layers = layers;
  spec.experts = experts;
  spec.top_k = 1 + below(random, std::min(experts, 3));
  // 0: no tensor and all tokens routed, 1: no tensor and some routed, 2: one number a sample, 3: one a layer.
  const std::int32_t recorded_form = below(random, 4);
  spec.counts.resize(static_cast<std::size_t>(samples * layers * experts));
  for (std::int32_t i = 0; i < samples; ++i) {
    const std::int32_t length = 1 + below(random, max_length);
    spec.lengths.push_back(length);
    const std::int32_t of_sample = below(random, 4) == 0 ? 0 : std::max(length - below(random, 2), 0);
    for (std::int32_t l = 0; l < layers; ++l) {
      const std::int32_t routed = recorded_form == 0   ? length
                                  : recorded_form == 2 ? of_sample
                                                       : below(random, length + 1);
      add_routes(random, &spec.counts[static_cast<std::size_t>((i * layers + l) * experts)], experts, spec.top_k,
                 routed);
      if (recorded_form == 3 || (recorded_form == 2 && l == 0)) spec.recorded.push_back(routed);
    }
  }
  if (padding && below(random, 3) == 0) {
    for (std::int32_t n = 0; n < layers * experts; ++n) {
      spec.pad_counts.push_back(static_cast<std::uint32_t>(below(random, 3) * below(random, 65536)));
    }
  }
  return spec;
}

std::vector<std::vector<std::int32_t>> draw_shards(std::mt19937_64& random, std::int32_t slots, std::int32_t shards) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(slots));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::vector<std::int32_t>> result(static_cast<std::size_t>(shards));
  for (std::size_t n = 0; n < order.size(); ++n) {
    const std::size_t g = n < result.size() ? n : static_cast<std::size_t>(below(random, shards));
    result[g].push_back(order[n]);
  }
  for (auto& shard : result) std::sort(shard.begin(), shard.end());
  return result;
}

}  // namespace

std::int32_t below(std::mt19937_64& random, std::int32_t end) {
  return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(end));
}

std::int32_t Problem::slots() const {
  std::size_t slots = 0;
  for (const auto& shard : shards) slots += shard.size();
  return static_cast<std::int32_t>(slots);
}

std::int64_t Problem::length(std::int32_t sample) const {
  return sample < samples() ? spec.lengths[static_cast<std::size_t>(sample)] : 1;
}

std::uint32_t Problem::count(std::int32_t sample, std::int64_t layer, std::int64_t expert_id) const {
  if (sample >= samples()) return 0;
  return spec.counts[static_cast<std::size_t>((sample * spec.layers + layer) * spec.experts + expert_id)];
}

Scene::Scene(const Problem& problem)
    : window(make_window(problem.spec)),
      instance(
          window,
          [&] {
            std::vector<std::vector<SlotId>> shards;
            for (const auto& shard : problem.shards) shards.emplace_back(shard.begin(), shard.end());
            return Topology::from_shards(problem.ranks, std::move(shards), problem.pipeline_stages);
          }(),
          problem.expert.size() == 1 ? CostModel(problem.stages, problem.expert[0])
                                     : CostModel(problem.stages, problem.expert),
          problem.capacity, problem.constraints, problem.sync) {}

Problem draw_problem(const Shape& shape) {
  const std::int32_t samples = draw(shape.min_samples, shape.max_samples);
  const std::int32_t layers = draw(1, shape.max_layers);
  const std::int32_t slots = draw(1, std::min(shape.max_slots, samples));
  const std::int32_t shards = draw(1, slots);
  const std::int32_t ranks = draw(1, shape.max_ranks);
  const std::int32_t experts = ranks * draw(1, shape.max_slots_per_rank);
  std::mt19937_64 random(draw_seed());

  Problem problem;
  problem.ranks = ranks;
  problem.spec = draw_window(random, samples, layers, experts, shape.max_length, shape.padding);
  problem.shards = draw_shards(random, slots, shards);
  const std::int32_t stages = below(random, 3);
  for (std::int32_t s = 0; s < stages; ++s) {
    problem.stages.push_back(
        {"stage" + std::to_string(s), below(random, 50) / 7.0, below(random, 3) == 0 ? 0.0 : below(random, 90) / 11.0});
  }
  const std::size_t weights = below(random, 2) == 0 ? 1 : static_cast<std::size_t>(layers);
  for (std::size_t n = 0; n < weights; ++n) problem.expert.push_back(below(random, 20) / 9.0);
  if (shape.padding) {
    problem.constraints.sample_multiple = 1 + below(random, 4);
    problem.constraints.cell_multiple = below(random, 2) == 0 ? 1 : 1 + below(random, 6);
  }
  problem.capacity = 1;
  for (std::int32_t i = 0; i < samples; ++i)
    problem.capacity = std::max(problem.capacity, aligned_tokens(problem, {i}));
  problem.capacity += below(random, 2 * shape.max_length);
  problem.sync = below(random, 2) == 0 ? Sync::Step : Sync::Row;
  return problem;
}

Layout to_layout(const Cells& cells, const Problem& problem) {
  std::vector<std::vector<std::vector<SampleId>>> typed;
  std::int32_t samples = 0;
  for (const auto& row : cells) {
    typed.emplace_back();
    for (const auto& cell : row) {
      typed.back().emplace_back(cell.begin(), cell.end());
      samples += static_cast<std::int32_t>(cell.size());
    }
  }
  return Layout(std::move(typed), problem.slots(), samples);
}

Placement to_placement(const Maps& maps, std::int32_t ranks) {
  std::vector<std::vector<ExpertId>> typed;
  for (const auto& map : maps) typed.emplace_back(map.begin(), map.end());
  return Placement::from_maps(ranks, std::move(typed));
}

Maps identity_maps(std::int64_t layers, std::int64_t experts) {
  std::vector<std::int32_t> map(static_cast<std::size_t>(experts));
  std::iota(map.begin(), map.end(), 0);
  return Maps(static_cast<std::size_t>(layers), map);
}

Maps random_maps(std::mt19937_64& random, std::int64_t layers, std::int64_t experts) {
  Maps maps = identity_maps(layers, experts);
  for (auto& map : maps) std::shuffle(map.begin(), map.end(), random);
  return maps;
}

Maps maps_of(const Placement& placement) {
  Maps maps;
  for (const auto& map : placement.physical_to_logical()) {
    maps.emplace_back();
    for (const ExpertId e : map) maps.back().push_back(e.value());
  }
  return maps;
}

Cells random_cells(std::mt19937_64& random, std::int32_t samples, std::int32_t rows, std::int32_t slots) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(samples));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  Cells cells(static_cast<std::size_t>(rows), std::vector<std::vector<std::int32_t>>(static_cast<std::size_t>(slots)));
  for (std::int32_t n = 0; n < samples; ++n) {
    const std::int32_t cell = n < rows * slots ? n : below(random, rows * slots);
    cells[static_cast<std::size_t>(cell / slots)][static_cast<std::size_t>(cell % slots)].push_back(
        order[static_cast<std::size_t>(n)]);
  }
  return cells;
}

std::int64_t aligned_tokens(const Problem& problem, const std::vector<std::int32_t>& cell) {
  std::int64_t sum = 0;
  for (const std::int32_t i : cell) sum += ceil_to(problem.length(i), problem.constraints.sample_multiple);
  return ceil_to(sum, problem.constraints.cell_multiple);
}

std::int64_t rank_load(const Problem& problem, const Maps& maps, const Cells& cells, std::size_t row, std::size_t shard,
                       std::int64_t layer, std::int32_t rank) {
  const std::int64_t slots_per_rank = problem.spec.experts / problem.ranks;
  std::int64_t load = 0;
  std::int64_t pads = 0;
  std::int64_t pad_rate = 0;
  for (const std::int32_t d : problem.shards[shard]) {
    const auto& cell = cells[row][static_cast<std::size_t>(d)];
    pads += aligned_tokens(problem, cell);
    for (const std::int32_t i : cell) pads -= problem.length(i);
  }
  for (std::int64_t v = rank * slots_per_rank; v < (rank + 1) * slots_per_rank; ++v) {
    const std::int32_t e = maps[static_cast<std::size_t>(layer)][static_cast<std::size_t>(v)];
    for (const std::int32_t d : problem.shards[shard]) {
      for (const std::int32_t i : cells[row][static_cast<std::size_t>(d)]) load += problem.count(i, layer, e);
    }
    if (!problem.spec.pad_counts.empty()) {
      pad_rate += problem.spec.pad_counts[static_cast<std::size_t>(layer * problem.spec.experts + e)];
    }
  }
  return load + ((pads * pad_rate + 32768) >> 16);
}

bool cell_may_hold(const Problem& problem, const std::vector<std::int32_t>& cell) {
  const Constraints& limits = problem.constraints;
  if (limits.max_samples_per_cell > 0 && static_cast<std::int64_t>(cell.size()) > limits.max_samples_per_cell) {
    return false;
  }
  if (aligned_tokens(problem, cell) <= problem.capacity) return true;
  return limits.oversized == Oversized::OwnCell && cell.size() == 1;
}

bool feasible_without_routes(const Problem& problem, const Cells& cells, std::int32_t dummies) {
  const auto rows = static_cast<std::int64_t>(cells.size());
  const Constraints& limits = problem.constraints;
  if (rows < limits.min_rows || rows < problem.pipeline_stages || rows % limits.row_multiple != 0) return false;
  const auto total = static_cast<std::size_t>(problem.samples() + dummies);
  std::vector<std::int32_t> seen(total, 0);
  std::vector<std::size_t> samples_on_slot(static_cast<std::size_t>(problem.slots()), 0);
  std::vector<std::pair<std::int32_t, std::size_t>> group_cell;
  std::size_t cell_number = 0;
  for (const auto& row : cells) {
    if (row.size() != samples_on_slot.size()) return false;
    for (std::size_t d = 0; d < row.size(); ++d, ++cell_number) {
      if (row[d].empty() || !cell_may_hold(problem, row[d])) return false;
      samples_on_slot[d] += row[d].size();
      for (const std::int32_t i : row[d]) {
        if (i < 0 || static_cast<std::size_t>(i) >= total) return false;
        ++seen[static_cast<std::size_t>(i)];
        if (i >= problem.samples() || problem.spec.atomic.empty()) continue;
        const std::int32_t group = problem.spec.atomic[static_cast<std::size_t>(i)];
        if (group < 0) continue;
        for (const auto& [other, cell] : group_cell) {
          if (other == group && cell != cell_number) return false;
        }
        group_cell.emplace_back(group, cell_number);
      }
    }
  }
  if (std::any_of(seen.begin(), seen.end(), [](std::int32_t n) { return n != 1; })) return false;
  return !limits.equal_count || std::all_of(samples_on_slot.begin(), samples_on_slot.end(),
                                            [&](std::size_t n) { return n == samples_on_slot[0]; });
}

bool for_each_layout(const Problem& problem, std::int32_t rows, std::int32_t dummies,
                     const std::function<bool(const Cells&)>& visit) {
  const std::int32_t slots = problem.slots();
  const std::int32_t total = problem.samples() + dummies;
  Cells cells(static_cast<std::size_t>(rows), std::vector<std::vector<std::int32_t>>(static_cast<std::size_t>(slots)));
  std::int32_t empty = rows * slots;
  const std::function<bool(std::int32_t)> put = [&](std::int32_t i) {
    if (empty > total - i) return true;
    if (i == total) return !feasible_without_routes(problem, cells, dummies) || visit(cells);
    for (auto& row : cells) {
      for (auto& cell : row) {
        cell.push_back(i);
        empty -= cell.size() == 1 ? 1 : 0;
        const bool go_on = !cell_may_hold(problem, cell) || put(i + 1);
        empty += cell.size() == 1 ? 1 : 0;
        cell.pop_back();
        if (!go_on) return false;
      }
    }
    return true;
  };
  return put(0);
}

std::int32_t dummies_wanted(const Problem& problem) {
  if (!problem.constraints.equal_count || !problem.constraints.add_dummies) return 0;
  return (problem.slots() - problem.samples() % problem.slots()) % problem.slots();
}

}  // namespace routepack::testing
