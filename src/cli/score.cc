// SPDX-License-Identifier: Apache-2.0
// routepack score: every figure of a plan from scratch.
#include "routepack/score.h"

#include <fmt/core.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/report.h"
#include "core/file.h"
#include "routepack/bounds.h"
#include "routepack/plan_file.h"
#include "routepack/window.h"

namespace routepack::cli {
namespace {

struct ScoreArguments {
  std::string window;
  std::string plan;
  bool json = false;
};

int run_score(const ScoreArguments& args) {
  const Window window = Window::load(args.window);
  const std::string text = read_text(args.plan);
  const PlanRecord record = parse_plan(text, args.plan);
  const CheckedPlan checked = check_record(record, window);
  const auto demand = aggregate_demand(window);
  const Evaluation evaluation = evaluate(checked.instance, checked.placement, checked.layout);
  const Bounds bounds = lower_bounds(checked.instance, checked.placement, demand);
  const double cv = rank_demand_cv(rank_demand(demand, checked.placement), checked.placement.ranks());
  const double gap = gap_to(evaluation.score.max_shard, bounds.any_placement);

  if (args.json) {
    Json metrics = metrics_json(evaluation, cv);
    const Json gap_json = std::isfinite(gap) ? Json(gap) : Json();  // null: infinite
    metrics["gap"] = gap_json;
    print_json({{"hash", plan_hash(text)},
                {"score", score_json(evaluation.score)},
                {"metrics", metrics},
                {"bound",
                 {{"max_shard", bounds.any_placement}, {"gap", gap_json}, {"fixed_placement", bounds.fixed_placement}}},
                {"rows", checked.layout.rows()}});
    return kFine;
  }
  Table table;
  table.row({"", "recomputed", "in the file"});
  const auto line = [&](const char* name, double value, int digits, std::optional<double> stated) {
    table.row({name, fixed(value, digits), !stated ? "" : *stated == value ? "same" : fixed(*stated, digits)});
  };
  const auto stated = [&](std::string_view name) -> std::optional<double> {
    for (const auto& [key, value] : record.metrics) {
      if (key == name) return value;
    }
    return std::nullopt;
  };
  const auto of_score = [&](double Score::* part) {
    return record.score ? std::optional<double>((*record.score).*part) : std::nullopt;
  };
  line("joint objective (max_shard)", evaluation.score.max_shard, 6, of_score(&Score::max_shard));
  line("sum over shards (total)", evaluation.score.total, 6, of_score(&Score::total));
  line("worst row (worst_row)", evaluation.score.worst_row, 6, of_score(&Score::worst_row));
  line("attention", evaluation.attention, 6, stated("attention"));
  line("expert-parallel efficiency", evaluation.ep_efficiency, 6, stated("ep_efficiency"));
  line("expert_peak_sum", static_cast<double>(evaluation.expert_peak_sum), 0, stated("expert_peak_sum"));
  line("tail_peak", static_cast<double>(evaluation.tail_peak), 0, stated("tail_peak"));
  line("cv_global", cv, 6, stated("cv_global"));
  line("bound over any placement", bounds.any_placement, 6, record.bound);
  line("bound with this placement", bounds.fixed_placement, 6, record.bound_fixed_placement);
  line("gap", gap, 6, record.gap);
  fmt::print("{}: {} rows of {} slots, sync {}, {}\n{}", args.plan, checked.layout.rows(), checked.layout.slots(),
             name_of(checked.instance.sync), plan_hash(text), table.text());
  return kFine;
}

}  // namespace

void add_score(CLI::App& app, Action& action) {
  const auto args = std::make_shared<ScoreArguments>();
  CLI::App* command = app.add_subcommand("score", "Recompute every figure of a plan from scratch");
  command->add_option("WINDOW", args->window, "window file")->required();
  command->add_option("PLAN", args->plan, "plan file")->required();
  command->add_flag("--json", args->json, "machine-readable result on standard output");
  command->footer(R"(Example:
  routepack score examples/windows/gptoss20b-mmlu-354.safetensors plan.json --json)");
  command->callback([args, &action] { action = [args] { return run_score(*args); }; });
}

}  // namespace routepack::cli
