// SPDX-License-Identifier: Apache-2.0
// Every option of a plan, its default and its help, in one place. The command line, parameter files, the plan file's
// "constraints" and "params" and the documentation are all made from the describe() lists below.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
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
                    Choice<PlacementMode>{"sticky", Sticky}, Choice<PlacementMode>{"joint", Joint}};
}
constexpr auto choices(Oversized) {
  return std::array{Choice<Oversized>{"error", Oversized::Error}, Choice<Oversized>{"own-cell", Oversized::OwnCell}};
}
constexpr auto choices(RowOrder) {
  return std::array{Choice<RowOrder>{"pipeline", RowOrder::Pipeline}, Choice<RowOrder>{"keep", RowOrder::Keep}};
}
constexpr auto choices(Effort) {
  using enum Effort;
  return std::array{Choice<Effort>{"paper", Paper}, Choice<Effort>{"fast", Fast}, Choice<Effort>{"default", Default},
                    Choice<Effort>{"quality", Quality}};
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

/// The search for a layout (docs/algorithm.md). Budgets are counted, never timed; every effort has its own values.
struct SearchParams {
  std::int64_t seeds = 4;
  std::int64_t choice_width = 4;
  double diversity = 4.0;
  std::int64_t population = 1;
  std::int64_t block_rows = 3;
  std::int64_t rounds = 6;
  std::int64_t levels = 24;
  std::int64_t proposals_per_sample = 768;
  std::int64_t most_proposals = std::int64_t{1} << 31;
  bool adaptive_temperatures = true;
  double hot = 0.1;
  double cold = 0.003;
  bool paper_energy = false;
  double mean_share = 0.5;
  double guided_share = 0.0;
  double relocation_share = 0.05;
  double near_share = 0.97;
  double near_width = 0.03;
  double tolerance = 1e-4;
  std::int64_t refinements = 2;
  double repack_share = 0.25;
  double repack_hot = 0.25;
  std::int64_t refine_steps = std::int64_t{1} << 22;
  std::int64_t kicks = 10;
  friend bool operator==(const SearchParams&, const SearchParams&) = default;
};

/// What an effort stands for.
constexpr SearchParams search_of(Effort effort) {
  SearchParams search;
  switch (effort) {
    case Effort::Paper:
      search.seeds = 16;
      search.population = 8;
      search.block_rows = 0;
      search.rounds = 1;
      search.levels = 16;
      search.proposals_per_sample = 1024;
      search.adaptive_temperatures = false;
      search.hot = 2e-4;
      search.cold = 2e-6;
      search.paper_energy = true;
      search.refinements = 1;
      search.repack_share = 0.0;
      search.kicks = 0;
      search.guided_share = 0.8;
      search.relocation_share = 0.1;
      search.near_share = 0.0;
      break;
    case Effort::Fast:
      search.levels = 12;
      search.proposals_per_sample = 96;
      search.refinements = 1;
      search.repack_share = 0.0;
      search.kicks = 0;
      break;
    case Effort::Default:
      break;
    case Effort::Quality:
      search.seeds = 16;
      search.levels = 48;
      search.proposals_per_sample = 24576;
      search.refinements = 4;
      search.refine_steps = std::int64_t{1} << 28;
      search.kicks = 50;
      break;
  }
  return search;
}

/// How to plan, as opposed to what is allowed.
struct PlanParams {
  PlacementMode placement = PlacementMode::Joint;
  double sticky_eps = 0.01;
  std::string moves = {};  ///< values of --moves with spaces between; empty: frugal (docs/placement.md)
  bool two_batches = false;
  std::int64_t ranks_per_node = 0;
  std::int64_t expert_bytes = 0;
  std::string model = {};  ///< a preset: its widths give expert_bytes
  std::int64_t weight_bytes = 2;
  std::int64_t optimizer_bytes = 12;
  std::int64_t optimizer_shards = 1;
  double link_gbytes = 0.0;
  double tflops = 0.0;
  RowOrder row_order = RowOrder::Pipeline;
  Effort effort = Effort::Default;
  std::optional<SearchParams> search = {};  ///< instead of what the effort stands for
  std::int64_t deadline_ms = 0;
  std::int64_t threads = 0;
  std::int64_t seed = 0;
  friend bool operator==(const PlanParams&, const PlanParams&) = default;

  [[nodiscard]] SearchParams effective_search() const { return search.value_or(search_of(effort)); }
};

/// Visits every field with its name (snake_case; the command line writes dashes), its bounds and its help.
/// A visitor has `integer(name, field, min, max, help)`, `number(…)` likewise, `flag(name, field, help)`,
/// `choice(name, field, help)`, `text(name, field, help)`, `texts(name, field, help)` for values with spaces between,
/// and `bytes(name, field, max, help)` for sizes that people also write as «66MB». PlanParams::search is not visited
/// with the rest.
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
  v.number("sticky_eps", p.sticky_eps, 0.0, 1.0, "sticky, joint: stop moving once max/mean is within 1 + this");
  v.texts("moves", p.moves,
          "free, a share of all experts (0.05), bytes per rank (200MB), price:X[,Y] per moved expert; all hold");
  v.flag("two_batches", p.two_batches, "joint: list the sticky moves and the row-aware ones apart");
  v.integer("ranks_per_node", p.ranks_per_node, 0, 1 << 20, "EP ranks of a node, for price:X,Y (0 = one node)");
  v.bytes("expert_bytes", p.expert_bytes, std::int64_t{1} << 50,
          "state that moves with one expert, in bytes or like 66MB (0 = as the model says)");
  v.text("model", p.model,
         "preset whose widths give the bytes of an expert (see generate --list-models; empty = as the window says)");
  v.integer("weight_bytes", p.weight_bytes, 0, 64, "with --model: bytes of a weight");
  v.integer("optimizer_bytes", p.optimizer_bytes, 0, 64, "with --model: master weight and moments, bytes per weight");
  v.integer("optimizer_shards", p.optimizer_shards, 1, 1 << 20,
            "with --model: replicas that share the optimizer state");
  v.number("link_gbytes", p.link_gbytes, 0.0, 1e9,
           "with --model and --tflops: GB/s that a rank sends, gives the price of a moved expert (0 = not known)");
  v.number("tflops", p.tflops, 0.0, 1e9,
           "with --model and --link-gbytes: TFLOP/s reached in the experts (0 = not known)");
  v.choice("row_order", p.row_order, "light rows at both ends, or rows as they were built");
  v.choice("effort", p.effort, "budget of the search");
  v.integer("deadline_ms", p.deadline_ms, 0, std::int64_t{1} << 40, "end with the best plan so far (0 = no deadline)");
  v.integer("threads", p.threads, 0, 4096, "worker threads (0 = one per core)");
  v.integer("seed", p.seed, 0, std::numeric_limits<std::int64_t>::max(), "names the random streams");
}

template <class S, class Visitor>
  requires std::same_as<std::remove_const_t<S>, SearchParams>
void describe(S& s, Visitor&& v) {
  v.integer("seeds", s.seeds, 1, 4096, "M: layouts that the seeding tries; the first two need no chance");
  v.integer("choice_width", s.choice_width, 1, 4096, "w: randomised choices are made among so many");
  v.number("diversity", s.diversity, 0.0, 1e6, "eta: what a unit of score gap weighs against a unit of distance");
  v.integer("population", s.population, 1, 4096, "P_pop: layouts annealed side by side, without blocks");
  v.integer("block_rows", s.block_rows, 0, 1 << 20,
            "row-shards that one thread anneals alone between two shuffles; 0: a population of whole layouts");
  v.integer("rounds", s.rounds, 1, 4096, "shuffles per temperature, with blocks");
  v.integer("levels", s.levels, 1, 1 << 20, "N_T: temperatures");
  v.integer("proposals_per_sample", s.proposals_per_sample, 1, std::int64_t{1} << 40,
            "proposals of the whole search, times the samples that may move");
  v.integer("most_proposals", s.most_proposals, 1, std::int64_t{1} << 40, "proposals of one search at most");
  v.flag("adaptive_temperatures", s.adaptive_temperatures,
         "temperatures in units of what a random move costs; otherwise relative to the energy");
  v.number("hot", s.hot, 1e-300, 1e300, "T_0: first temperature");
  v.number("cold", s.cold, 1e-300, 1e300, "T_N-1: last temperature");
  v.flag("paper_energy", s.paper_energy, "minimise s0 + 1e-6 s1 + 1e-9 s2, as the paper does");
  v.number("mean_share", s.mean_share, 0.0, 1.0, "weight of the mean shard beside the slowest one in the energy");
  v.number("guided_share", s.guided_share, 0.0, 1.0, "p_guide: proposals from costly to cheap row-shards");
  v.number("relocation_share", s.relocation_share, 0.0, 1.0, "rho: proposals that move one sample alone");
  v.number("near_share", s.near_share, 0.0, 1.0, "of the other swaps: between samples of similar length");
  v.number("near_width", s.near_width, 0.0, 1.0, "how far similar reaches, as a share of the samples");
  v.number("tolerance", s.tolerance, 0.0, 1.0, "gap to the bound at which the search ends early");
  v.integer("refinements", s.refinements, 1, 4096, "joint: times that experts move to suit the rows, while it pays");
  v.number("repack_share", s.repack_share, 0.0, 1e6, "joint: proposals of a search after such moves, of those before");
  v.number("repack_hot", s.repack_hot, 1e-300, 1e300, "joint: first temperature of such a search, of the one before");
  v.integer("refine_steps", s.refine_steps, 1, std::int64_t{1} << 50,
            "joint: load vectors that one refinement looks at");
  v.integer("kicks", s.kicks, 0, 1 << 20, "joint with free moves: tries per layer to leave a local optimum");
}

}  // namespace routepack
