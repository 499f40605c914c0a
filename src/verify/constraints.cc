// SPDX-License-Identifier: Apache-2.0
// What a plan must respect (docs/constraints.md), except the cap on expert loads, which needs them computed.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "verify/rules.h"

namespace routepack::judge {
namespace {

/// Holds every integer option against the bounds that params.h gives it.
struct BoundsVisitor {
  Rule& rule;

  void integer(std::string_view name, std::int64_t value, std::int64_t min, std::int64_t max, std::string_view) const {
    if (value >= min && value <= max) return;
    rule.broken([&] { return fmt::format("constraints.{}: found {}, wanted {} to {}", name, value, min, max); });
  }
  void flag(std::string_view, bool, std::string_view) const {}
  template <class Enum>
  void choice(std::string_view name, Enum value, std::string_view) const {
    for (const auto& known : choices(Enum{})) {
      if (known.value == value) return;
    }
    rule.broken([&] { return fmt::format("constraints.{}: found a value that has no name", name); });
  }
};

/// Calls `f(row, slot, cell)` for every cell there is, rectangular or not.
template <class F>
void for_each_cell(const PlanRecord& plan, F&& f) {
  for (std::size_t r = 0; r < plan.layout.size(); ++r) {
    for (std::size_t d = 0; d < plan.layout[r].size(); ++d) f(r, d, plan.layout[r][d]);
  }
}

void check_cap(Judge& judge, const Window& window, const PlanRecord& plan) {
  Rule& cap = judge.rule("token-cap");
  Rule& oversized = judge.rule("oversized");
  const Constraints& c = plan.constraints;
  for_each_cell(plan, [&](std::size_t r, std::size_t d, const std::vector<std::int32_t>& cell) {
    std::int64_t aligned = 0;
    bool holds_oversized = false;
    for (const std::int32_t i : cell) {
      if (i < 0) continue;
      const std::int64_t sample = round_up(window.length(SampleId(i)), c.sample_multiple);
      const std::int64_t alone = round_up(sample, c.cell_multiple);
      aligned = add(aligned, sample);
      if (alone <= plan.capacity) continue;
      holds_oversized = true;
      if (c.oversized != Oversized::OwnCell) {
        oversized.broken([&] {
          return fmt::format("row {}, slot {}: sample {}: found {} aligned tokens, wanted at most {}", r, d, i, alone,
                             plan.capacity);
        });
      } else if (cell.size() != 1) {
        oversized.broken([&] {
          return fmt::format(
              "row {}, slot {}: sample {} of {} aligned tokens is over the cap of {}: found {} samples "
              "in its cell, wanted it alone",
              r, d, i, alone, plan.capacity, cell.size());
        });
      }
    }
    const std::int64_t tokens = round_up(aligned, c.cell_multiple);
    if (tokens > plan.capacity && !holds_oversized) {
      cap.broken([&] {
        return fmt::format("row {}, slot {}: found {} aligned tokens, wanted at most {}", r, d, tokens, plan.capacity);
      });
    }
  });
}

void check_row_count(Judge& judge, const PlanRecord& plan) {
  const auto rows = static_cast<std::int64_t>(plan.layout.size());
  Rule& minimum = judge.rule("min-rows");
  if (rows < plan.constraints.min_rows) {
    minimum.broken(
        [&] { return fmt::format("layout: found {} rows, wanted at least {}", rows, plan.constraints.min_rows); });
  }
  Rule& multiple = judge.rule("row-multiple");
  if (plan.constraints.row_multiple >= 1 && rows % plan.constraints.row_multiple != 0) {
    multiple.broken([&] {
      return fmt::format("layout: found {} rows, wanted a multiple of {}", rows, plan.constraints.row_multiple);
    });
  }
  if (!plan.pipeline_stages) return;
  Rule& pipeline = judge.rule("pipeline-stages");
  if (*plan.pipeline_stages < 1) {
    pipeline.broken([&] { return fmt::format("topology.pp: found {}, wanted at least 1", *plan.pipeline_stages); });
  } else if (rows < *plan.pipeline_stages) {
    pipeline.broken([&] {
      return fmt::format("layout: found {} rows, wanted at least {}, the pipeline stages", rows, *plan.pipeline_stages);
    });
  }
}

void check_sample_counts(Judge& judge, const PlanRecord& plan, bool rectangular) {
  const Constraints& c = plan.constraints;
  if (c.max_samples_per_cell > 0) {
    Rule& rule = judge.rule("max-samples-per-cell");
    for_each_cell(plan, [&](std::size_t r, std::size_t d, const std::vector<std::int32_t>& cell) {
      if (static_cast<std::int64_t>(cell.size()) <= c.max_samples_per_cell) return;
      rule.broken([&] {
        return fmt::format("row {}, slot {}: found {} samples, wanted at most {}", r, d, cell.size(),
                           c.max_samples_per_cell);
      });
    });
  }
  if (!c.equal_count || !rectangular || plan.layout.empty()) return;
  Rule& rule = judge.rule("equal-count");
  std::vector<std::size_t> samples(plan.layout.front().size(), 0);
  for_each_cell(plan,
                [&](std::size_t, std::size_t d, const std::vector<std::int32_t>& cell) { samples[d] += cell.size(); });
  for (std::size_t d = 1; d < samples.size(); ++d) {
    if (samples[d] == samples[0]) continue;
    rule.broken(
        [&] { return fmt::format("slot {}: found {} samples, wanted {} as on slot 0", d, samples[d], samples[0]); });
  }
}

void check_atomic(Judge& judge, const Window& window, const PlanRecord& plan) {
  if (window.arrays().atomic.empty()) return;
  Rule& rule = judge.rule("atomic-groups");
  struct Home {
    std::size_t row, slot;
    std::int32_t sample;
  };
  std::unordered_map<std::int32_t, Home> homes;
  for_each_cell(plan, [&](std::size_t r, std::size_t d, const std::vector<std::int32_t>& cell) {
    for (const std::int32_t i : cell) {
      if (i < 0 || i >= window.samples()) continue;
      const std::int32_t group = window.atomic_group(SampleId(i));
      if (group < 0) continue;
      const auto [home, fresh] = homes.try_emplace(group, Home{r, d, i});
      if (fresh || (home->second.row == r && home->second.slot == d)) continue;
      rule.broken([&] {
        return fmt::format(
            "atomic group {}: found sample {} in row {}, slot {}, wanted it beside sample {} in row {}, "
            "slot {}",
            group, i, r, d, home->second.sample, home->second.row, home->second.slot);
      });
    }
  });
}

}  // namespace

void check_constraints(Judge& judge, const Window& window, const PlanRecord& plan, const Structure& structure) {
  Rule& values = judge.rule("constraint-values");
  describe(plan.constraints, BoundsVisitor{values});
  if (plan.constraints.add_dummies && !plan.constraints.equal_count) {
    values.broken([] { return std::string("add_dummies: found without equal_count, wanted both or neither"); });
  }
  if (structure.capacity && structure.multiples) check_cap(judge, window, plan);
  check_row_count(judge, plan);
  check_sample_counts(judge, plan, structure.rectangular);
  check_atomic(judge, window, plan);
}

}  // namespace routepack::judge
