// SPDX-License-Identifier: Apache-2.0
// routepack plan: windows in, plans out, and what was won.
#include "routepack/plan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stop_token>
#include <thread>
#include <utility>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/process.h"
#include "cli/report.h"
#include "core/file.h"
#include "routepack/error.h"
#include "routepack/plan_file.h"

namespace routepack::cli {
namespace fs = std::filesystem;
namespace {

struct PlanArguments {
  std::vector<std::string> windows;
  std::string output;
  std::string placement_out;
  std::string params_file;
  bool one_placement = false;
  bool dump_params = false;
  bool cost_template = false;
  bool json = false;
  PlanSetup setup;
};

/// Measures phases, shows them on a terminal, and passes Ctrl-C on.
class Stopwatch : public Observer {
 public:
  Stopwatch()
      : shows_progress_(::isatty(STDERR_FILENO) == 1), watch_([this](const std::stop_token& over) { watch(over); }) {
    begin("load");
  }

  void phase_begins(Phase phase) override { begin(std::string(kPhaseNames[static_cast<std::size_t>(phase)])); }
  void level_ends(const SearchProgress& at) override {
    if (!shows_progress_) return;
    fmt::print(stderr,
               "\r\x1b[Kplanning: level {} of {}, T {:.1e}, accepted {:.1f} %, best {:.2f}, gap {:.2f} %, {} proposals",
               at.level, at.levels, at.temperature, 100.0 * at.acceptance, at.best, 100.0 * at.gap,
               with_commas(at.proposals));
    std::fflush(stderr);
  }
  [[nodiscard]] std::stop_token token() const { return stop_.get_token(); }

  /// Ends the last phase. Milliseconds per phase in order, and «total».
  std::vector<std::pair<std::string, double>> finish() {
    end();
    if (shows_progress_) fmt::print(stderr, "\r\x1b[K");
    double total = 0.0;
    for (const auto& [name, ms] : phases_) total += ms;
    phases_.emplace_back("total", total);
    return std::move(phases_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  void begin(const std::string& name) {
    end();
    if (shows_progress_) fmt::print(stderr, "\r\x1b[Kplanning: {} …", name);
    if (phases_.empty() || phases_.back().first != name) phases_.emplace_back(name, 0.0);
    started_ = Clock::now();
  }
  void end() {
    if (phases_.empty()) return;
    phases_.back().second += std::chrono::duration<double, std::milli>(Clock::now() - started_).count();
  }

  /// Passes Ctrl-C on within a blink, whatever the planner is doing.
  void watch(const std::stop_token& over) {
    while (!over.stop_requested()) {
      if (interrupted()) {
        stop_.request_stop();
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  bool shows_progress_;
  std::stop_source stop_;
  std::vector<std::pair<std::string, double>> phases_;
  Clock::time_point started_;
  std::jthread watch_;  // last: it uses the others
};

/// What happens without RoutePack: experts stay, samples go by length alone.
struct Baseline {
  std::int32_t rows;
  Evaluation evaluation;
};

std::optional<Baseline> baseline(const Instance& instance, const Placement& current) {
  const auto layout = pack_first_fit_decreasing(instance);
  if (std::holds_alternative<Infeasible>(layout)) return std::nullopt;
  return Baseline{std::get<Layout>(layout).rows(), evaluate(instance, current, std::get<Layout>(layout))};
}

/// One planned window with all that is reported about it.
struct Planned {
  const Instance* instance;
  fs::path window_path;
  fs::path plan_path;
  PlanRecord record;
  std::string hash;
  Plan plan;
  std::optional<Baseline> before;
};

Json planned_json(const Planned& planned) {
  const PlanRecord& record = planned.record;
  Json json{{"window", planned.window_path.string()},
            {"plan", planned.plan_path.string()},
            {"hash", planned.hash},
            {"score", score_json(planned.plan.evaluation.score)}};
  Json metrics = Json::object();
  for (const auto& [name, value] : record.metrics) metrics[name] = value;
  metrics["expert_peak_sum"] = planned.plan.evaluation.expert_peak_sum;  // counts, not doubles
  metrics["tail_peak"] = planned.plan.evaluation.tail_peak;
  json["metrics"] = metrics;
  json["bound"] = {{"max_shard", planned.plan.bounds.any_placement},
                   {"gap", record.gap ? Json(*record.gap) : Json()},  // null: infinite
                   {"fixed_placement", planned.plan.bounds.fixed_placement}};
  json["moves"] = {{"experts", planned.plan.moves.experts},
                   {"fraction", planned.plan.moves.fraction},
                   {"local", planned.plan.moves.local}};
  if (record.moves && record.moves->bytes) json["moves"]["bytes"] = *record.moves->bytes;
  json["placing"] = {{"sticky_swaps", planned.plan.placing.sticky_swaps},
                     {"swaps_needed", planned.plan.placing.swaps_needed},
                     {"row_aware_swaps", planned.plan.placing.row_aware_swaps}};
  json["rows"] = planned.plan.rows.rows;
  json["rows_lower_bound"] = planned.plan.rows.lower_bound;
  json["rows_certified"] = planned.plan.rows.certified();
  if (planned.plan.dummies > 0) json["dummies"] = planned.plan.dummies;
  json["complete"] = planned.plan.complete;
  const SearchReport& search = planned.plan.search;
  json["search"] = {{"ending", name_of(search.ending)},    {"seed", search.seed},     {"seeds", search.seeds},
                    {"failed_seeds", search.failed_seeds}, {"levels", search.levels}, {"proposals", search.proposals},
                    {"accepted", search.accepted}};
  json["replication_needed_layers"] = planned.plan.bounds.layers_that_need_replication();
  json["copies_needed"] = planned.plan.bounds.copies_needed();
  json["bound"]["balanced"] = planned.plan.bounds.balanced;
  Json timings = Json::object();
  for (const auto& [name, ms] : record.timings_ms) timings[name] = ms;
  json["timings_ms"] = timings;
  if (planned.before) {
    json["baseline"] = {{"rows", planned.before->rows},
                        {"score", score_json(planned.before->evaluation.score)},
                        {"metrics", metrics_json(planned.before->evaluation, planned.plan.cv_global_before)}};
  }
  return json;
}

std::string comparison_text(const Planned& planned) {
  const Evaluation& after = planned.plan.evaluation;
  Table table;
  const auto line = [&](const char* name, auto pick, int digits) {
    const double now = pick(after);
    if (!planned.before) return table.row({name, "", fixed(now, digits)});
    const double was = pick(planned.before->evaluation);
    table.row({name, fixed(was, digits), fixed(now, digits), change(was, now)});
  };
  table.row({"", "before", "after", "change"});
  line("joint objective", [](const Evaluation& e) { return e.score.max_shard; }, 2);
  line("  attention, sum over rows", [](const Evaluation& e) { return e.attention; }, 2);
  line("expert-parallel efficiency", [](const Evaluation& e) { return e.ep_efficiency; }, 4);
  line(
      "busiest rank, summed over rows and layers",
      [](const Evaluation& e) { return static_cast<double>(e.expert_peak_sum); }, 0);
  line("busiest rank of any row and layer", [](const Evaluation& e) { return static_cast<double>(e.tail_peak); }, 0);
  table.row({"rank load over the step, cv", fixed(planned.plan.cv_global_before, 4), fixed(planned.plan.cv_global, 4)});
  const RowCount& rows = planned.plan.rows;
  table.row(
      {"rows", planned.before ? std::to_string(planned.before->rows) : "", std::to_string(rows.rows),
       rows.certified() ? "certified: no fewer exist" : fmt::format("best known; at least {}", rows.lower_bound)});
  return table.text();
}

std::string search_text(const SearchReport& search, bool complete) {
  std::string why;
  switch (search.ending) {
    case Ending::Budget:
      why = "spent its budget";
      break;
    case Ending::BoundReached:
      why = "ended early: the bound is reached, this window is easy";
      break;
    case Ending::NothingToMove:
      why = "ended early: no move changes the objective, this window is easy";
      break;
    case Ending::Stopped:
      why = "was cut short";
      break;
  }
  return fmt::format("  search: from {:.2f}, {} moves tried, {} made; it {}{}\n", search.seed,
                     with_commas(search.proposals), with_commas(search.accepted), why,
                     complete ? "" : " by the deadline: valid, but another run may differ");
}

/// Why layers ended as they did, and how few swaps could have done.
std::string placing_text(const Plan& plan, bool frugal) {
  const PlacementReport& report = plan.placing;
  std::string text;
  if (!report.layers.empty()) {
    std::map<LayerEnd, std::int64_t> ends;
    for (const LayerEnd end : report.layers) ++ends[end];
    for (const auto& [end, layers] : ends) {
      const bool priced = end == LayerEnd::Budget && frugal;
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", layers, priced ? "not worth more moves" : name_of(end));
    }
    text =
        fmt::format("  placement: layers: {}; {} swaps balance the whole window so far (all of it takes {} at least)\n",
                    text, with_commas(report.sticky_swaps), with_commas(report.swaps_needed));
  }
  if (report.row_aware_swaps > 0) {
    text += fmt::format("  placement: {} swaps on the way to suit the rows\n", with_commas(report.row_aware_swaps));
  }
  return text;
}

std::string notes_text(const Planned& planned) {
  const Plan& plan = planned.plan;
  const Window& window = planned.instance->window;
  std::string text;
  const auto print = [&text]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
  };
  print("  gap to the bound: {:.2f} % (no placement and packing goes below {:.2f}; with this placement {:.2f})\n",
        100.0 * gap_to(plan.evaluation.score.max_shard, plan.bounds.any_placement), plan.bounds.any_placement,
        plan.bounds.fixed_placement);
  const double above = plan.evaluation.score.max_shard - plan.bounds.any_placement;
  if (above > 0.0) {
    const double placed = 100.0 * (plan.bounds.fixed_placement - plan.bounds.any_placement) / above;
    print("  of that gap {:.0f} % is left by the placement (more moves may help) and {:.0f} % by packing\n", placed,
          100.0 - placed);
  }
  print("  rows: no layout has fewer than {} ({})\n", plan.rows.lower_bound, plan.rows.because);
  print("{}", search_text(plan.search, plan.complete));
  print("  moves: {} of {} experts change rank ({:.1f} %)", with_commas(plan.moves.experts),
        with_commas(std::int64_t{window.layers()} * window.experts()), 100.0 * plan.moves.fraction);
  if (planned.record.moves && planned.record.moves->bytes) {
    print(", {} bytes", with_commas(*planned.record.moves->bytes));
  }
  print(", {} change slot inside their rank\n", with_commas(plan.moves.local));
  std::int64_t busiest = 0;
  for (const RankTraffic& rank : plan.placing.moves.ranks) busiest = std::max({busiest, rank.in, rank.out});
  if (busiest > 0) print("  moves: no rank sends or receives more than {} bytes\n", with_commas(busiest));
  print("{}", placing_text(plan, planned.record.params->moves.empty()));
  if (plan.dummies > 0) print("  dummies: {} one-token samples fill up to equal counts\n", plan.dummies);
  if (const auto layers = plan.bounds.layers_that_need_replication(); layers > 0) {
    print(
        "  replication needed: in {} of {} layers one expert is hotter than a rank's fair share; {:.2f} % of the "
        "objective that no placement wins back, and {} copies of experts that would\n",
        layers, window.layers(), 100.0 * (plan.bounds.any_placement - plan.bounds.balanced) / plan.bounds.any_placement,
        with_commas(plan.bounds.copies_needed()));
  }
  std::string times;
  for (const auto& [name, ms] : planned.record.timings_ms)
    times += fmt::format("{}{} {:.1f}", times.empty() ? "" : ", ", name, ms);
  print("  time in ms: {}\n", times);
  print("  plan: {}  {}\n", planned.plan_path.string(), planned.hash);
  return text;
}

std::string planned_text(const Planned& planned) {
  const Instance& instance = *planned.instance;
  const Window& window = instance.window;
  std::int64_t tokens = 0;
  for (const SampleId i : window.sample_ids()) tokens += window.length(i);
  return fmt::format("{}: {} samples, {} tokens, {} MoE layers of {} experts, top {}\n", planned.window_path.string(),
                     with_commas(window.samples()), with_commas(tokens), window.layers(), window.experts(),
                     window.top_k()) +
         fmt::format("{} slots in {} shard{}, {} EP ranks, cap {}, sync {}\n\n", instance.topology.slots(),
                     instance.topology.shards(), instance.topology.shards() == 1 ? "" : "s", instance.topology.ranks(),
                     with_commas(instance.capacity), name_of(instance.sync)) +
         comparison_text(planned) + "  before = experts where they are now, samples by length alone (first fit)\n\n" +
         notes_text(planned);
}

fs::path plan_path_for(const PlanArguments& args, const fs::path& window) {
  if (args.windows.size() == 1) return args.output;
  return fs::path(args.output) / (window.stem().string() + ".plan.json");
}

/// An output that is also an input, or that another output would replace, is a slip of the keyboard. Only the current
/// plan may be replaced by the new one.
void refuse_clashes(const PlanArguments& args) {
  std::vector<fs::path> taken(args.windows.begin(), args.windows.end());
  for (const std::string& input : {args.setup.cost, args.params_file}) {
    if (!input.empty()) taken.emplace_back(input);
  }
  std::vector<fs::path> outputs;
  for (const auto& window : args.windows) outputs.push_back(plan_path_for(args, window));
  if (!args.placement_out.empty()) outputs.emplace_back(args.placement_out);
  const auto same = [](const fs::path& a, const fs::path& b) {
    std::error_code ignored;
    return fs::equivalent(a, b, ignored) || fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
  };
  const std::size_t inputs = taken.size();
  for (const fs::path& output : outputs) {
    // A device may be written twice; a file may not.
    std::error_code ignored;
    if (fs::exists(output, ignored) && fs::is_other(output, ignored)) continue;
    for (std::size_t k = 0; k < taken.size(); ++k) {
      if (!same(output, taken[k])) continue;
      throw UsageError(fmt::format("{}: found as an output and as {} {}, wanted a file of its own", output.string(),
                                   k < inputs ? "the input" : "another output,", taken[k].string()));
    }
    taken.push_back(output);
  }
}

/// Several windows go into a folder.
void prepare_folder(const PlanArguments& args) {
  if (args.windows.size() == 1) return;
  std::error_code error;
  fs::create_directory(args.output, error);
  if (error || !fs::is_directory(args.output)) {
    throw IoError(fmt::format("{}: wanted a folder for {} plans: {}", args.output, args.windows.size(),
                              error ? error.message() : "found a file"));
  }
}

/// What will be printed once every file is written.
struct Report {
  Json plans = Json::array();
  std::string text;
};

Planned describe_plan(const PlanArguments& args, const fs::path& path, const Instance& instance,
                      const Placement& before, Plan plan, std::vector<std::pair<std::string, double>> timings) {
  Planned planned{.instance = &instance,
                  .window_path = path,
                  .plan_path = plan_path_for(args, path),
                  .record = make_record(instance, args.setup.params, plan),
                  .hash = {},
                  .plan = std::move(plan),
                  .before = baseline(instance, before)};
  planned.record.timings_ms = std::move(timings);
  return planned;
}

/// Writes plan files, all or none, and with the last one the placement.
void write_plans(const PlanArguments& args, std::vector<Planned>& plans, Report& report) {
  std::list<StagedFile> files;
  for (Planned& planned : plans) {
    const std::string text = to_json(planned.record);
    planned.hash = plan_hash(text);
    files.emplace_back(planned.plan_path, text);
  }
  if (!args.placement_out.empty() && plans.back().window_path == fs::path(args.windows.back())) {
    files.emplace_back(args.placement_out, plans.back().plan.placement.to_json());
  }
  if (interrupted()) throw Cancelled("interrupted before the plan was written");
  for (auto file = files.rbegin(); file != files.rend(); ++file) file->commit();
  for (const Planned& planned : plans) {
    if (args.json) {
      report.plans.push_back(planned_json(planned));
    } else {
      report.text += (report.text.empty() ? "" : "\n") + printable(planned_text(planned));
    }
  }
}

/// Plans windows that share a placement; one alone shares it with nobody. Nothing is written unless all plans exist.
void plan_windows(const PlanArguments& args, std::span<const std::string> paths, std::optional<Placement>& current,
                  Report& report) {
  Stopwatch watch;
  std::vector<Window> windows;
  windows.reserve(paths.size());  // instances point into it
  std::vector<Instance> instances;
  instances.reserve(paths.size());
  std::vector<const Instance*> asked;
  for (const std::string& path : paths) {
    windows.push_back(Window::load(path));
    instances.push_back(instance_of(args.setup, windows.back(), path));
    asked.push_back(&instances.back());
    if (current) {
      require_fits(*current, instances.back(), args.setup.current.empty() ? "the window before" : args.setup.current);
    }
  }
  auto result = make_plans(asked, args.setup.params, current ? &*current : nullptr, {&watch, watch.token()});
  const auto timings = watch.finish();
  if (const auto* why = std::get_if<Infeasible>(&result)) {
    throw InfeasibleError(fmt::format("{}: no layout: {}; what would help: {}",
                                      paths.size() == 1 ? paths[0] : "windows", why->reason, why->remedy));
  }
  auto& plans = std::get<std::vector<Plan>>(result);
  const Placement before =
      current ? *current
              : Placement::identity(windows[0].layers(), windows[0].experts(), instances[0].topology.ranks());
  std::vector<Planned> planned;
  for (std::size_t k = 0; k < plans.size(); ++k) {
    planned.push_back(describe_plan(args, paths[k], instances[k], before, std::move(plans[k]), timings));
  }
  current = planned.back().plan.placement;
  write_plans(args, planned, report);
}

/// These placements know no budget: silence would look like obedience.
void refuse_moves_without_budget(const PlanParams& params) {
  if (params.placement == PlacementMode::Sticky || params.placement == PlacementMode::Joint) return;
  std::istringstream values(params.moves);
  for (std::string value; values >> value;) {
    if (value == "free") continue;
    throw UsageError(fmt::format("--moves {} and --placement {} exclude each other: {}", value,
                                 name_of(params.placement),
                                 params.placement == PlacementMode::Lpt ? "lpt knows no budget" : "nothing moves"));
  }
}

/// A second value of --moves that was given without a second --moves.
void refuse_stray_moves(const std::string& window) {
  std::error_code ignored;
  if (fs::exists(window, ignored)) return;
  try {
    MoveBudget().add(window);
  } catch (const InvalidInput&) {
    return;
  }
  throw UsageError(
      fmt::format("{}: found a value of --moves where a window stands, wanted --moves before each value", window));
}

int run_plan(PlanArguments& args, PlanOptions& options) {
  if (args.cost_template) {
    fmt::print("{}", CostModel::file_template());
    return kFine;
  }
  if (!args.params_file.empty()) options.apply_file(args.params_file);
  options.apply_command_line();
  if (args.dump_params) {
    fmt::print("{}", options.to_toml());
    return kFine;
  }
  if (args.windows.empty()) throw UsageError("WINDOW is missing: the file to plan");
  refuse_moves_without_budget(args.setup.params);
  for (const auto& window : args.windows) refuse_stray_moves(window);
  if (args.output.empty()) throw UsageError("--output is missing: -o PLAN, or -o DIR for several windows");
  if (args.setup.cap == 0) throw UsageError("--cap is missing: the token cap of one cell");
  refuse_clashes(args);
  std::optional<Placement> current;
  if (!args.setup.current.empty()) current = Placement::load(args.setup.current);
  (void)args.setup.topology();
  (void)args.setup.cost_model();
  prepare_folder(args);
  catch_interrupts();
  Report report;
  const std::size_t together = args.one_placement ? args.windows.size() : 1;
  for (std::size_t first = 0; first < args.windows.size(); first += together) {
    plan_windows(args, std::span(args.windows).subspan(first, together), current, report);
  }
  if (args.json) {
    print_json(args.windows.size() == 1 ? report.plans[0] : Json{{"plans", report.plans}});
  } else {
    fmt::print("{}", report.text);
  }
  return kFine;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  const auto args = std::make_shared<PlanArguments>();
  CLI::App* command = app.add_subcommand("plan", "Plan a window: move experts, pack samples");
  command->add_option("WINDOW", args->windows,
                      "window files (safetensors); several: one plan each, placement carried along");
  command->add_option("-o,--output", args->output, "plan file to write, or a folder for several windows");
  command->add_option("--placement-out", args->placement_out, "also write the last placement alone");
  command->add_option("--params", args->params_file, "read options from a TOML file; the command line wins");
  command->add_flag("--one-placement", args->one_placement,
                    "several windows are steps of one rollout batch: one placement for all, a layout for each");
  command->add_flag("--dump-params", args->dump_params, "print the effective options as TOML and stop");
  command->add_flag("--cost-template", args->cost_template, "print a cost file to start from and stop");
  command->add_flag("--json", args->json, "machine-readable result on standard output");
  const auto options = std::make_shared<PlanOptions>(*command, args->setup);
  command->footer(R"(Examples:
  routepack plan examples/windows/gptoss20b-mmlu-354.safetensors -o plan.json \
      --dp 8 --ep 8 --cap 2048 --cost examples/gptoss20b.toml
  routepack plan step1.safetensors step2.safetensors -o plans/ --dp 16 --ep 8 --cap 8192 \
      --cost cost.toml --current plan-of-step0.json
  routepack plan window.safetensors -o plan.json --shards '[[0,2],[1,3]]' --ep 4 --cap 8192 \
      --cost cost.toml --sync row --max-rank-tokens 60000)");
  command->callback([args, options, &action] { action = [args, options] { return run_plan(*args, *options); }; });
}

}  // namespace routepack::cli
