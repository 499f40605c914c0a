// SPDX-License-Identifier: Apache-2.0
// Every option of a plan, its default and its help, in one place. The command line, parameter files, the plan file's
// "constraints" and "params" and the documentation are all made from the describe() lists below.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

namespace routepack {

/// Tokens of one cell are at most this many, so that C² and Σ t² stay exact in a double.
inline constexpr std::int64_t kMaxCapacity = 94'906'265;

/// When the shards wait for each other: once per optimizer step, or in every row.
enum class Sync { Step, Row };
/// Where experts go: stay, fresh LPT, few swaps from the current map, or swaps that know the rows.
enum class PlacementMode { Keep, Lpt, Sticky, Joint };
/// What happens to a sample longer than the cap.
enum class Oversized { Error, OwnCell };
/// Whether rows are put in an order that suits pipelines (light rows at both ends).
enum class RowOrder { Pipeline, Keep };
/// How many proposals the search may evaluate; never a time.
enum class Effort { Paper, Fast, Default, Quality };

/// One value of an enumeration as users spell it. What is not built yet is refused with exit status 2.
template <class Enum>
struct Choice {
  std::string_view name;
  Enum value;
  bool built = true;
};

constexpr auto choices(Sync) {
  return std::array{Choice<Sync>{"step", Sync::Step}, Choice<Sync>{"row", Sync::Row}};
}
constexpr auto choices(PlacementMode) {
  using enum PlacementMode;
  return std::array{Choice<PlacementMode>{"keep", Keep}, Choice<PlacementMode>{"lpt", Lpt},
                    Choice<PlacementMode>{"sticky", Sticky, false}, Choice<PlacementMode>{"joint", Joint, false}};
}
constexpr auto choices(Oversized) {
  return std::array{Choice<Oversized>{"error", Oversized::Error}, Choice<Oversized>{"own-cell", Oversized::OwnCell}};
}
constexpr auto choices(RowOrder) {
  return std::array{Choice<RowOrder>{"pipeline", RowOrder::Pipeline}, Choice<RowOrder>{"keep", RowOrder::Keep}};
}
constexpr auto choices(Effort) {
  using enum Effort;
  return std::array{Choice<Effort>{"paper", Paper, false}, Choice<Effort>{"fast", Fast, false},
                    Choice<Effort>{"default", Default}, Choice<Effort>{"quality", Quality, false}};
}

/// The spelling of an enumeration value.
template <class Enum>
constexpr std::string_view name_of(Enum value) {
  for (const auto& choice : choices(Enum{})) {
    if (choice.value == value) return choice.name;
  }
  return "?";
}

/// What a layout must respect beyond the token cap (docs/constraints.md).
struct Constraints {
  std::int64_t sample_multiple = 1;
  std::int64_t cell_multiple = 1;
  std::int64_t min_rows = 1;
  std::int64_t row_multiple = 1;
  bool equal_count = false;
  bool add_dummies = false;
  std::int64_t max_samples_per_cell = 0;
  std::int64_t max_rank_tokens = 0;
  Oversized oversized = Oversized::Error;
  friend bool operator==(const Constraints&, const Constraints&) = default;
};

/// How to plan, as opposed to what is allowed.
struct PlanParams {
  PlacementMode placement = PlacementMode::Lpt;
  std::int64_t expert_bytes = 0;
  RowOrder row_order = RowOrder::Pipeline;
  Effort effort = Effort::Default;
  std::int64_t deadline_ms = 0;
  std::int64_t threads = 0;
  std::int64_t seed = 0;
  friend bool operator==(const PlanParams&, const PlanParams&) = default;
};

/// Visits every field with its name (snake_case; the command line writes dashes), its bounds and its help.
/// A visitor has `integer(name, field, min, max, help)`, `flag(name, field, help)`, `choice(name, field, help)`.
template <class C, class Visitor>
  requires std::same_as<std::remove_const_t<C>, Constraints>
void describe(C& c, Visitor&& v) {
  constexpr std::int64_t kMany = std::numeric_limits<std::int32_t>::max();
  v.integer("sample_multiple", c.sample_multiple, 1, kMaxCapacity,
            "round each sample up to this many tokens for the cap");
  v.integer("cell_multiple", c.cell_multiple, 1, kMaxCapacity, "round each cell up to this many tokens for the cap");
  v.integer("min_rows", c.min_rows, 1, kMany, "use at least this many rows");
  v.integer("row_multiple", c.row_multiple, 1, kMany, "use a multiple of this many rows");
  v.flag("equal_count", c.equal_count, "give every slot the same number of samples");
  v.flag("add_dummies", c.add_dummies, "with equal-count: fill up with one-token samples without routes");
  v.integer("max_samples_per_cell", c.max_samples_per_cell, 0, kMany, "samples in a cell at most (0 = no limit)");
  v.integer("max_rank_tokens", c.max_rank_tokens, 0, std::int64_t{1} << 52,
            "routed tokens of a rank in one row and layer at most, the out-of-memory guard (0 = no limit)");
  v.choice("oversized", c.oversized, "a sample over the cap is an error, or gets its own cell");
}

template <class P, class Visitor>
  requires std::same_as<std::remove_const_t<P>, PlanParams>
void describe(P& p, Visitor&& v) {
  v.choice("placement", p.placement, "where experts go");
  v.integer("expert_bytes", p.expert_bytes, 0, std::int64_t{1} << 50,
            "bytes of state that move with one expert (0 = not known)");
  v.choice("row_order", p.row_order, "light rows at both ends, or rows as they were built");
  v.choice("effort", p.effort, "budget of the search");
  v.integer("deadline_ms", p.deadline_ms, 0, std::int64_t{1} << 40, "end with the best plan so far (0 = no deadline)");
  v.integer("threads", p.threads, 0, 4096, "worker threads (0 = one per core)");
  v.integer("seed", p.seed, 0, std::numeric_limits<std::int64_t>::max(), "names the random streams");
}

}  // namespace routepack
