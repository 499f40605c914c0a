// SPDX-License-Identifier: Apache-2.0
// What a plan is made of: shards, maps, cells, samples, numbers of the cost model.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "routepack/error.h"
#include "verify/rules.h"

namespace routepack::judge {
namespace {

std::int64_t size_of(const auto& container) {
  return static_cast<std::int64_t>(container.size());
}

void refuse_other_size(const PlanRecord& plan, const char* key, std::int64_t found, std::int64_t wanted) {
  if (found == wanted) return;
  throw InvalidInput(
      fmt::format("{}: {}: found {}, wanted {}: the plan is for another window", plan.source, key, found, wanted));
}

bool check_capacity(Judge& judge, const PlanRecord& plan) {
  Rule& rule = judge.rule("capacity");
  if (plan.capacity < 1 || plan.capacity > kMaxCapacity) {
    rule.broken([&] { return fmt::format("capacity: found {}, wanted 1 to {}", plan.capacity, kMaxCapacity); });
  }
  return rule.holds();
}

bool check_shards(Judge& judge, const PlanRecord& plan) {
  Rule& rule = judge.rule("shards-partition");
  std::int64_t slots = 0;
  for (const auto& shard : plan.shards) slots += size_of(shard);
  if (slots == 0) rule.broken([] { return std::string("topology.shards: found no slots, wanted at least one"); });
  std::vector<std::int64_t> owner(static_cast<std::size_t>(slots), -1);
  for (std::size_t g = 0; g < plan.shards.size(); ++g) {
    if (plan.shards[g].empty())
      rule.broken([&] { return fmt::format("shard {}: found no slots, wanted one or more", g); });
    for (const std::int32_t d : plan.shards[g]) {
      if (d < 0 || d >= slots) {
        rule.broken([&] {
          return fmt::format("shard {}: found slot {}, wanted 0 to {}, as many as the shards list", g, d, slots - 1);
        });
        continue;
      }
      std::int64_t& first = owner[static_cast<std::size_t>(d)];
      if (first >= 0) {
        rule.broken([&] { return fmt::format("shard {}: slot {} is in shard {} already, wanted once", g, d, first); });
      }
      first = static_cast<std::int64_t>(g);
    }
  }
  return rule.holds();
}

bool check_placement(Judge& judge, const Window& window, const PlanRecord& plan) {
  const std::int64_t experts = window.experts();
  Rule& divides = judge.rule("experts-divide");
  if (plan.ep < 1 || experts % plan.ep != 0) {
    divides.broken(
        [&] { return fmt::format("topology.ep: found {}, wanted a divisor of {} experts", plan.ep, experts); });
  }
  Rule& permutation = judge.rule("permutation");
  std::vector<bool> seen;
  for (std::size_t l = 0; l < plan.physical_to_logical.size(); ++l) {
    const auto& map = plan.physical_to_logical[l];
    if (size_of(map) != experts) {
      permutation.broken(
          [&] { return fmt::format("physical_to_logical[{}]: found {} entries, wanted {}", l, map.size(), experts); });
    }
    seen.assign(static_cast<std::size_t>(experts), false);
    for (std::size_t v = 0; v < map.size(); ++v) {
      if (map[v] < 0 || map[v] >= experts) {
        permutation.broken([&] {
          return fmt::format("physical_to_logical[{}][{}]: found expert {}, wanted 0 to {}", l, v, map[v], experts - 1);
        });
      } else if (seen[static_cast<std::size_t>(map[v])]) {
        permutation.broken([&] {
          return fmt::format("physical_to_logical[{}][{}]: found expert {} again, wanted each once", l, v, map[v]);
        });
      } else {
        seen[static_cast<std::size_t>(map[v])] = true;
      }
    }
  }
  return divides.holds() && permutation.holds();
}

bool check_shape(Judge& judge, const PlanRecord& plan, bool shards) {
  Rule& rows = judge.rule("rows-match-layout");
  if (plan.rows != size_of(plan.layout)) {
    rows.broken(
        [&] { return fmt::format("rows: found {}, wanted {} as in the layout", plan.rows, plan.layout.size()); });
  }
  // Without a partition nobody knows D; the rows must still agree with each other.
  std::int64_t slots = plan.layout.empty() ? 0 : size_of(plan.layout.front());
  if (shards) {
    slots = 0;
    for (const auto& shard : plan.shards) slots += size_of(shard);
  }
  Rule& rectangular = judge.rule("rectangular");
  for (std::size_t r = 0; r < plan.layout.size(); ++r) {
    if (size_of(plan.layout[r]) == slots) continue;
    rectangular.broken(
        [&] { return fmt::format("row {}: found {} cells, wanted {}", r, plan.layout[r].size(), slots); });
  }
  Rule& empty = judge.rule("no-empty-cell");
  for (std::size_t r = 0; r < plan.layout.size(); ++r) {
    for (std::size_t d = 0; d < plan.layout[r].size(); ++d) {
      if (!plan.layout[r][d].empty()) continue;
      empty.broken([&] { return fmt::format("row {}, slot {}: found no samples, wanted one or more", r, d); });
    }
  }
  return rectangular.holds();
}

bool check_dummies(Judge& judge, const PlanRecord& plan) {
  std::int64_t slots = 0;
  for (const auto& shard : plan.shards) slots += size_of(shard);
  Rule& rule = judge.rule("dummies");
  if (plan.dummies < 0 || (plan.dummies > 0 && plan.dummies >= slots)) {
    rule.broken([&] {
      return fmt::format("dummies: found {}, wanted 0 to {}, fewer than slots", plan.dummies,
                         std::max<std::int64_t>(slots - 1, 0));
    });
  } else if (plan.dummies > 0 && !(plan.constraints.equal_count && plan.constraints.add_dummies)) {
    rule.broken([&] {
      return fmt::format("dummies: found {}, wanted 0 without the constraints equal_count and add_dummies",
                         plan.dummies);
    });
  }
  return rule.holds();
}

bool check_samples(Judge& judge, const Window& window, const PlanRecord& plan, bool dummies) {
  std::int64_t placed = 0;
  for (const auto& row : plan.layout) {
    for (const auto& cell : row) placed += size_of(cell);
  }
  // A number of dummies that is broken already still tells which indices were meant, unless it is absurd.
  const bool meant = dummies || (plan.dummies > 0 && plan.dummies <= placed);
  const std::int64_t samples = window.samples() + (meant ? plan.dummies : 0);
  Rule& rule = judge.rule("every-sample-once");
  std::vector<bool> seen(static_cast<std::size_t>(samples), false);
  for (std::size_t r = 0; r < plan.layout.size(); ++r) {
    for (std::size_t d = 0; d < plan.layout[r].size(); ++d) {
      for (const std::int32_t i : plan.layout[r][d]) {
        if (i < 0 || i >= samples) {
          rule.broken(
              [&] { return fmt::format("row {}, slot {}: found sample {}, wanted 0 to {}", r, d, i, samples - 1); });
        } else if (seen[static_cast<std::size_t>(i)]) {
          rule.broken([&] { return fmt::format("row {}, slot {}: found sample {} again, wanted each once", r, d, i); });
        } else {
          seen[static_cast<std::size_t>(i)] = true;
        }
      }
    }
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (!seen[i]) rule.broken([&] { return fmt::format("sample {}: found in no cell, wanted in one", i); });
  }
  return rule.holds();
}

bool check_cost(Judge& judge, const Window& window, const PlanRecord& plan) {
  Rule& rule = judge.rule("cost-numbers");
  const auto look = [&rule](double value, const auto& where) {
    if (value >= 0.0 && value <= kMaxCost) return;  // NaN compares false
    rule.broken(
        [&] { return fmt::format("{}: found {}, wanted a finite number from 0 to {}", where(), value, kMaxCost); });
  };
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    look(plan.stages[s].alpha, [&] { return fmt::format("cost.stages[{}].alpha", s); });
    look(plan.stages[s].beta, [&] { return fmt::format("cost.stages[{}].beta", s); });
  }
  for (std::size_t l = 0; l < plan.expert.size(); ++l) {
    look(plan.expert[l], [&] { return fmt::format("cost.expert[{}]", l); });
  }
  const bool per_layer = !plan.expert_uniform && size_of(plan.expert) == window.layers();
  if (!per_layer && !(plan.expert_uniform && plan.expert.size() == 1)) {
    rule.broken([&] {
      return fmt::format("cost.expert: found a list of {}, wanted a number or a list of {}, one weight per layer",
                         plan.expert.size(), window.layers());
    });
  }
  return rule.holds();
}

}  // namespace

void refuse_foreign(const Window& window, const PlanRecord& plan) {
  if (window.kind() == WindowKind::Aggregate) {
    throw InvalidInput(fmt::format(
        "{}: window kind: found aggregate, wanted samples: summed demand has no samples to lay out", plan.source));
  }
  if (plan.window) {
    refuse_other_size(plan, "window.samples", plan.window->samples, window.samples());
    refuse_other_size(plan, "window.layers", plan.window->layers, window.layers());
    refuse_other_size(plan, "window.experts", plan.window->experts, window.experts());
  }
  refuse_other_size(plan, "number of lists in physical_to_logical", size_of(plan.physical_to_logical), window.layers());
  // Maps that are all too wide or too narrow belong to another model; a single odd one is a broken permutation.
  const auto fits = [&](const auto& map) { return size_of(map) == window.experts(); };
  if (std::none_of(plan.physical_to_logical.begin(), plan.physical_to_logical.end(), fits)) {
    refuse_other_size(plan, "width of physical_to_logical[0]", size_of(plan.physical_to_logical.front()),
                      window.experts());
  }
  if (plan.window) {
    if (const std::string wanted = window.fingerprint(); plan.window->fingerprint != wanted) {
      throw InvalidInput(fmt::format("{}: window.fingerprint: found {}, wanted {}: the plan is for another window",
                                     plan.source, plan.window->fingerprint, wanted));
    }
  }
}

Structure check_structure(Judge& judge, const Window& window, const PlanRecord& plan) {
  Structure structure;
  structure.capacity = check_capacity(judge, plan);
  structure.shards = check_shards(judge, plan);
  structure.placement = check_placement(judge, window, plan);
  structure.rectangular = check_shape(judge, plan, structure.shards);
  const bool dummies = check_dummies(judge, plan);
  structure.complete = check_samples(judge, window, plan, dummies);
  structure.cost = check_cost(judge, window, plan);
  const auto within = [](std::int64_t multiple) { return multiple >= 1 && multiple <= kMaxCapacity; };
  structure.multiples = within(plan.constraints.sample_multiple) && within(plan.constraints.cell_multiple);
  return structure;
}

}  // namespace routepack::judge
