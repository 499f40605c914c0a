// SPDX-License-Identifier: Apache-2.0
#include "cli/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <tuple>
#include <variant>

#include "cli/command.h"
#include "cli/derived_cost.h"
#include "cli/process.h"
#include "cli/progress.h"
#include "packing/peers/peers.h"
#include "plan/placing.h"
#include "routepack/bounds.h"
#include "routepack/plan.h"
#include "routepack/plan_file.h"
#include "routepack/verify.h"

namespace routepack::cli {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Says on a terminal what is being measured.
class Progress {
 public:
  void say(const std::string& what) const {
    if (interrupted()) throw Cancelled("interrupted before the comparison was complete");
    line_.say(fmt::format("comparing: {} …", what));
  }

 private:
  ProgressLine line_;
};

/// Planning time up to the check of the result.
class PlanningTime : public Observer {
 public:
  void phase_begins(Phase phase) override {
    if (interrupted()) stop_.request_stop();
    if (phase == Phase::Check) ms_ = ms_since(start_);
  }
  void level_ends(const SearchProgress& /*progress*/) override {
    if (interrupted()) stop_.request_stop();
  }
  [[nodiscard]] std::stop_token token() const { return stop_.get_token(); }
  [[nodiscard]] double ms() const { return ms_; }

 private:
  Clock::time_point start_ = Clock::now();
  std::stop_source stop_;
  double ms_ = 0.0;
};

/// Names of the rules that verify finds broken, each once.
std::vector<std::string> broken_rules(const Instance& instance, const Placement& placement, const Layout& layout,
                                      std::int64_t dummies, const std::string& name) {
  PlanRecord record;
  record.source = name;
  record.ep = instance.topology.ranks();
  for (const ShardId g : instance.topology.shard_ids()) {
    auto& shard = record.shards.emplace_back();
    for (const SlotId d : instance.topology.slots_of(g)) shard.push_back(d.value());
  }
  if (instance.topology.pipeline_stages() > 1) record.pipeline_stages = instance.topology.pipeline_stages();
  record.capacity = instance.capacity;
  record.rows = layout.rows();
  for (const auto& map : placement.physical_to_logical()) {
    auto& experts = record.physical_to_logical.emplace_back();
    for (const ExpertId e : map) experts.push_back(e.value());
  }
  for (const auto& row : layout.cells()) {
    auto& cells = record.layout.emplace_back();
    for (const auto& cell : row) {
      auto& samples = cells.emplace_back();
      for (const SampleId i : cell) samples.push_back(i.value());
    }
  }
  record.stages.assign(instance.cost.stages().begin(), instance.cost.stages().end());
  record.expert.assign(instance.cost.expert_weights().begin(), instance.cost.expert_weights().end());
  record.expert_uniform = instance.cost.uniform();
  record.constraints = instance.constraints;
  record.sync = instance.sync;
  record.dummies = dummies;
  std::vector<std::string> names;
  for (const Violation& violation : verify(instance.window, record).violations) {
    if (std::ranges::find(names, violation.rule) == names.end()) names.push_back(violation.rule);
  }
  return names;
}

/// A placement in its place of the comparison: where the experts were before, where they are now, and what that took.
struct Placed {
  Placement before;
  Placement now;
  bool made_afresh = false;                      ///< by LPT from this window's demand
  std::optional<PlacementMode> by_planner = {};  ///< how our planner does the same itself
  double ms = 0.0;
};

/// As asked, but free of the frugality that `plan` has by default: under lpt experts move freely too.
PlanParams sticky_params(PlanParams params) {
  params.placement = PlacementMode::Sticky;
  if (params.moves.empty()) params.moves = "free";
  return params;
}

/// `before` is where the same placement left the experts in the step before; null in the first.
Placed place(const std::string& name, const Placement* before, const Placement& start, const Instance& instance,
             std::span<const std::int64_t> demand, double bound, const PlanParams& params) {
  const auto begin = Clock::now();
  const Placement& from = before != nullptr ? *before : start;
  if (name == "lpt" || (name == "keep" && before == nullptr)) {
    Placement now = place_lpt(demand, from);
    return {.before = from,
            .now = std::move(now),
            .made_afresh = true,
            .by_planner = name == "lpt" ? std::optional(PlacementMode::Lpt) : std::nullopt,
            .ms = ms_since(begin)};
  }
  if (name == "sticky") {
    const PlanParams wanted = sticky_params(params);
    Placing placing(instance, from, demand, bound, wanted);
    SerialExecutor alone;
    placing.place(PlacingStart::AsAsked, alone);
    return {.before = from,
            .now = placing.placement(),
            .made_afresh = true,
            .by_planner = PlacementMode::Sticky,
            .ms = ms_since(begin)};
  }
  if (name == "joint") return {.before = from, .now = from, .by_planner = PlacementMode::Joint};
  if (name == "identity")
    return {.before = from, .now = Placement::identity(from.layers(), from.experts(), from.ranks())};
  return {.before = from, .now = name == "current" ? start : from};
}

/// A packer's layout, which is the same under every placement.
struct PackedByPeer {
  std::variant<peers::PeerLayout, Infeasible> result;
  double ms = 0.0;
  std::optional<std::vector<std::string>> broken;  // unless a rule depends on the placement
};

PackedByPeer pack_by_peer(const std::string& strategy, const Instance& instance) {
  const auto start = Clock::now();
  auto result = peers::pack_with(*peers::find(strategy), instance);
  return {.result = std::move(result), .ms = ms_since(start), .broken = std::nullopt};
}

/// Simulates a layout of an entry, if it is to be.
using Clocked = std::function<std::optional<double>(const Placement&, const Layout&)>;

void fill_from_peer(Entry& entry, PackedByPeer& packed, const Instance& instance, const Placed& placed,
                    const Clocked& clocked) {
  entry.planning_ms = placed.ms + packed.ms;
  if (const auto* why = std::get_if<Infeasible>(&packed.result)) {
    entry.reason = why->reason;
    entry.remedy = why->remedy;
    return;
  }
  const auto& made = std::get<peers::PeerLayout>(packed.result);
  if (!packed.broken || instance.constraints.max_rank_tokens > 0) {
    packed.broken = broken_rules(instance, placed.now, made.layout, made.dummies, entry.what.name());
  }
  entry.evaluation = evaluate(instance, placed.now, made.layout);
  entry.rows = made.layout.rows();
  entry.cells_over_cap = made.cells_over_cap;
  entry.fullest_cell = made.fullest_cell;
  entry.dummies_removed = made.dummies_removed;
  entry.broken_rules = *packed.broken;
  entry.step_seconds = clocked(placed.now, made.layout);
}

/// Our planner: the experts stay, or are placed by LPT as part of planning. Returns the rows it proved necessary.
std::optional<std::int64_t> fill_from_planner(Entry& entry, const Instance& instance, PlanParams params, Placed& placed,
                                              const Clocked& clocked) {
  params.placement = placed.by_planner.value_or(PlacementMode::Keep);
  if (params.placement == PlacementMode::Sticky) params = sticky_params(std::move(params));
  PlanningTime time;
  auto result = make_plan(instance, params, placed.by_planner ? &placed.before : &placed.now, {&time, time.token()});
  if (interrupted()) throw Cancelled("interrupted before the comparison was complete");
  entry.planning_ms = time.ms() + (placed.by_planner ? 0.0 : placed.ms);
  if (const auto* why = std::get_if<Infeasible>(&result)) {
    entry.reason = why->reason;
    entry.remedy = why->remedy;
    return std::nullopt;
  }
  const Plan& plan = std::get<Plan>(result);
  entry.evaluation = plan.evaluation;
  entry.rows = plan.rows.rows;
  for (const auto& row : plan.layout.cells()) {
    for (const auto& cell : row) {
      std::int64_t aligned = 0;
      for (const SampleId i : cell) aligned += instance.aligned_length(i);
      const std::int64_t tokens = instance.aligned_cell(aligned);
      entry.fullest_cell = std::max(entry.fullest_cell, tokens);
      if (tokens > instance.capacity) ++entry.cells_over_cap;
    }
  }
  entry.broken_rules = broken_rules(instance, plan.placement, plan.layout, plan.dummies, entry.what.name());
  entry.step_seconds = clocked(plan.placement, plan.layout);
  placed.now = plan.placement;
  return plan.rows.lower_bound;
}

/// Ranks who keeps all rules with the fewest rows: a plan of more rows has emptier cells, and nothing here prices a
/// row.
void rank(WindowComparison& comparison) {
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
  for (const Entry& entry : comparison.entries) {
    if (entry.keeps_rules()) fewest = std::min(fewest, entry.rows);
  }
  std::vector<Entry*> ranked;
  for (Entry& entry : comparison.entries) {
    if (!entry.evaluation) continue;
    entry.gap = gap_to(entry.evaluation->score.max_shard, comparison.bound);
    entry.more_rows = entry.rows > fewest;
    if (entry.keeps_rules() && !entry.more_rows) ranked.push_back(&entry);
  }
  if (!ranked.empty()) comparison.fewest_rows = fewest;
  for (Entry* entry : ranked) {
    entry->rank = 1 + std::ranges::count_if(ranked, [&](const Entry* other) {
                    return other->evaluation->score < entry->evaluation->score;
                  });
  }
}

}  // namespace

const Entry& WindowComparison::of(const Combination& what) const {
  return *std::ranges::find(entries, what, &Entry::what);
}

std::optional<double> change_of(const Entry& baseline, const Entry& entry,
                                const std::function<double(const Evaluation&)>& figure) {
  if (!baseline.evaluation || !entry.evaluation) return std::nullopt;
  const double from = figure(*baseline.evaluation);
  if (from == 0.0) return std::nullopt;
  return figure(*entry.evaluation) / from - 1.0;
}

Comparer::Comparer(const PlanSetup& setup, const StepTimingOptions& time, ComparisonPlan plan)
    : setup_(setup), plan_(std::move(plan)) {
  if (!setup.current.empty()) start_ = Placement::load(setup.current);
  if (!setup.device.empty()) device_ = Device::load(setup.device);
  timing_ = step_timing_of(setup, time, setup.topology());
}

std::optional<double> Comparer::step_seconds(const Instance& instance, const Placement& placement,
                                             const Layout& layout) const {
  if (!timing_) return std::nullopt;
  return simulate_step(instance, placement, layout, *timing_, {.stages = instance.topology.pipeline_stages()}).seconds;
}

std::optional<double> Comparer::move_seconds(const Placement& before, const Placement& now) const {
  const std::int64_t bytes = bytes_of_expert(setup_.params);
  if (!device_ || bytes == 0) return std::nullopt;
  return state_move_seconds(before, now, bytes, *device_, ranks_per_node_or_default(setup_.params.ranks_per_node));
}

WindowComparison Comparer::measure(const std::filesystem::path& path) {
  const Progress progress;
  progress.say(path.filename().string());
  const Window window = Window::load(path);
  Topology topology = setup_.topology();
  require_fits_model(setup_, window, path.string());
  const Instance instance(window, std::move(topology), setup_.cost_model(), setup_.cap, setup_.constraints,
                          setup_.sync);
  const Placement identity = Placement::identity(window.layers(), window.experts(), instance.topology.ranks());
  if (start_) require_fits(*start_, instance, setup_.current);

  WindowComparison comparison;
  comparison.path = path;
  comparison.samples = window.samples();
  for (const SampleId i : window.sample_ids()) comparison.tokens += window.length(i);
  const auto placing = Clock::now();
  const auto demand = aggregate_demand(window);
  const double demand_ms = ms_since(placing);
  comparison.bound = lower_bounds(instance, identity, demand).any_placement;

  const Clocked clocked = [&](const Placement& placement, const Layout& layout) {
    return step_seconds(instance, placement, layout);
  };
  std::map<std::string, PackedByPeer> packed;
  std::optional<Placed> placed;
  for (const Combination& what : plan_.combinations) {
    progress.say(what.name());
    if (!placed || comparison.placements.back().name != what.placement) {
      const auto known = in_effect_.find(what.placement);
      const Placement* before = known == in_effect_.end() ? nullptr : &known->second;
      if (before != nullptr) require_fits(*before, instance, "the window before");
      placed =
          place(what.placement, before, start_ ? *start_ : identity, instance, demand, comparison.bound, setup_.params);
      if (placed->made_afresh) placed->ms += demand_ms;
      comparison.placements.push_back({.name = what.placement,
                                       .moves = count_moves(placed->before, placed->now),
                                       .ms = placed->ms,
                                       .cv = rank_demand_cv(rank_demand(demand, placed->now), placed->now.ranks()),
                                       .move_seconds = move_seconds(placed->before, placed->now)});
      if (plan_.steps) in_effect_.insert_or_assign(what.placement, placed->now);
    }
    Entry& entry = comparison.entries.emplace_back();
    entry.what = what;
    if (what.strategy == kOurs) {
      const auto bound = fill_from_planner(entry, instance, setup_.params, *placed, clocked);
      if (what.placement == "joint") {
        PlacementUse& use = comparison.placements.back();
        use.moves = count_moves(placed->before, placed->now);
        use.ms = entry.planning_ms;
        use.move_seconds = move_seconds(placed->before, placed->now);
        use.cv = rank_demand_cv(rank_demand(demand, placed->now), placed->now.ranks());
        if (plan_.steps) in_effect_.insert_or_assign(what.placement, placed->now);
      }
      if (bound) comparison.rows_lower_bound = std::max(comparison.rows_lower_bound.value_or(0), *bound);
      continue;
    }
    auto by_peer = packed.find(what.strategy);
    if (by_peer == packed.end()) by_peer = packed.emplace(what.strategy, pack_by_peer(what.strategy, instance)).first;
    fill_from_peer(entry, by_peer->second, instance, *placed, clocked);
  }
  rank(comparison);
  if (std::ranges::none_of(comparison.entries, [](const Entry& entry) { return entry.evaluation.has_value(); })) {
    const Entry& last = comparison.entries.back();
    throw InfeasibleError(fmt::format("{}: no strategy found a layout; {}: {}; what would help: {}", path.string(),
                                      last.what.name(), last.reason, last.remedy));
  }
  return comparison;
}

}  // namespace routepack::cli
