// SPDX-License-Identifier: Apache-2.0
// routepack plan: windows in, plans out, and what was won.
#include "routepack/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <list>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <sstream>
#include <stop_token>
#include <thread>
#include <utility>

#include "cli/add_options.h"
#include "cli/command.h"
#include "cli/derived_cost.h"
#include "cli/options.h"
#include "cli/paths.h"
#include "cli/plan.h"
#include "cli/plan_report.h"
#include "cli/process.h"
#include "cli/program.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "comm/team_link.h"
#include "core/file.h"
#include "routepack/error.h"
#include "routepack/moves.h"
#include "routepack/plan_file.h"
#include "routepack/window_parts.h"

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
  Transport* transport = nullptr;  ///< of the ranks of an MPI job, which plan together
  std::int64_t patience_s = 60;    ///< with a silent rank
  std::unique_ptr<TeamLink> team;  ///< the ranks, when there are some

  /// One of the team says and writes for all.
  [[nodiscard]] bool speaks() const { return transport == nullptr || transport->rank() == 0; }
};

/// What a phase took, and what the team's link sent in it.
struct PhaseCosts {
  std::string name;
  double ms = 0.0;
  std::int64_t sent_bytes = 0;
};

/// Measures phases, shows them on a terminal, and passes Ctrl-C on.
class Stopwatch : public Observer {
 public:
  explicit Stopwatch(const TeamLink* team) : team_(team), watch_([this](const std::stop_token& over) { watch(over); }) {
    begin("load");
  }

  void phase_begins(Phase phase) override { begin(std::string(kPhaseNames[static_cast<std::size_t>(phase)])); }
  void level_ends(const SearchProgress& at) override {
    if (!line_.shown()) return;
    line_.say(fmt::format("planning: level {} of {}, best {:.2f}, gap {:.2f} %, T {:.1e}, accepted {:.1f} %, {} tried",
                          at.level, at.levels, at.best, 100.0 * at.gap, at.temperature, 100.0 * at.acceptance,
                          with_commas(at.proposals)));
  }
  [[nodiscard]] std::stop_token token() const { return stop_.get_token(); }
  void say_warning(const std::string& message) const {
    line_.clear();
    warn(message);
  }

  /// Ends the last phase: the phases in order, and «total».
  std::vector<PhaseCosts> finish() {
    end();
    line_.clear();
    PhaseCosts total{.name = "total"};
    for (const PhaseCosts& phase : phases_) {
      total.ms += phase.ms;
      total.sent_bytes += phase.sent_bytes;
    }
    phases_.push_back(total);
    return std::move(phases_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  void begin(const std::string& name) {
    end();
    if (line_.shown()) line_.say(fmt::format("planning: {} …", name));
    const auto known = std::ranges::find(phases_, name, &PhaseCosts::name);  // a second try goes through them again
    now_ = static_cast<std::size_t>(known - phases_.begin());
    if (known == phases_.end()) phases_.push_back({.name = name});
    started_ = Clock::now();
    sent_before_ = team_ == nullptr ? 0 : team_->sent_bytes();
  }
  void end() {
    if (phases_.empty()) return;
    phases_[now_].ms += std::chrono::duration<double, std::milli>(Clock::now() - started_).count();
    if (team_ != nullptr) phases_[now_].sent_bytes += team_->sent_bytes() - sent_before_;
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

  const TeamLink* team_;
  ProgressLine line_;
  std::stop_source stop_;
  std::vector<PhaseCosts> phases_;
  std::size_t now_ = 0;
  Clock::time_point started_;
  std::int64_t sent_before_ = 0;
  std::jthread watch_;  // last: it uses the others
};

fs::path plan_path_for(const PlanArguments& args, const fs::path& window) {
  if (args.windows.size() == 1) return args.output;
  return fs::path(args.output) / (window.stem().string() + ".plan.json");
}

/// Only the current plan may be replaced by the new one.
void refuse_clashing_files(const PlanArguments& args) {
  std::vector<fs::path> taken;
  for (const std::string& window : args.windows) {
    for (fs::path& file : files_of_window(window)) taken.push_back(std::move(file));
  }
  for (const std::string& input : {args.setup.cost, args.setup.model_config, args.setup.device, args.params_file}) {
    if (!input.empty()) taken.emplace_back(input);
  }
  std::vector<fs::path> outputs;
  for (const auto& window : args.windows) outputs.push_back(plan_path_for(args, window));
  if (!args.placement_out.empty()) outputs.emplace_back(args.placement_out);
  refuse_clashes(taken, outputs);
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
                      const Placement& before, Plan plan, const std::vector<PhaseCosts>& costs) {
  Planned planned{.instance = &instance,
                  .window_path = path,
                  .plan_path = plan_path_for(args, path),
                  .record = make_record(instance, args.setup.params, plan),
                  .hash = {},
                  .plan = std::move(plan),
                  .before = baseline(instance, before, args.team.get()),
                  .sent_bytes = {}};
  for (const PhaseCosts& phase : costs) {
    planned.record.timings_ms.emplace_back(phase.name, phase.ms);
    if (args.team && phase.name != "total") planned.sent_bytes.emplace_back(phase.name, phase.sent_bytes);
  }
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
  for (StagedFile& file : std::views::reverse(files)) file.commit();
  for (const Planned& planned : plans) {
    if (args.json) {
      report.plans.push_back(planned_json(planned));
    } else {
      report.text += (report.text.empty() ? "" : "\n") + printable(planned_text(planned));
    }
  }
}

/// Options that the chosen placement does not look at: who gave them should know.
void warn_of_ignored_options(const PlanParams& params) {
  const PlanParams defaults;
  const std::string placement = fmt::format("--placement {}", name_of(params.placement));
  const auto ignored = [](std::string_view option, const std::string& why) {
    warn(fmt::format("{} has no effect {}", option, why));
  };
  const bool moves = params.placement == PlacementMode::Sticky || params.placement == PlacementMode::Joint;
  if (!moves && params.sticky_eps != defaults.sticky_eps) ignored("--sticky-eps", "with " + placement);
  if (!moves && params.link_gbytes > 0.0) ignored("the price of --link-gbytes and --tflops", "with " + placement);
  if (params.placement != PlacementMode::Joint && params.two_batches) {
    ignored("--two-batches", fmt::format("with {}: there is no second batch", placement));
  }
}

/// What --model says beside what the window says, and options that need a model where there is none.
void warn_of_models(const Stopwatch& watch, const PlanParams& params, const Window& window, const std::string& path) {
  const std::string& named = window.arrays().model;
  const std::string known = preset_of(named);
  if (!params.model.empty() && !known.empty() && params.model != known) {
    watch.say_warning(fmt::format("--model {}: {} says it is of {}", params.model, path, named));
  }
  const PlanParams defaults;
  const bool layout_given = params.weight_bytes != defaults.weight_bytes ||
                            params.optimizer_bytes != defaults.optimizer_bytes ||
                            params.optimizer_shards != defaults.optimizer_shards;
  if (layout_given && with_model_of(params, window).model.empty()) {
    watch.say_warning(fmt::format(
        "--weight-bytes, --optimizer-bytes and --optimizer-shards have no effect {}",
        params.expert_bytes > 0 ? "with --expert-bytes" : "without --model: " + path + " names no known model"));
  }
}

/// All ranks of a team throw what one of them met: said once.
Window load(const PlanArguments& args, const std::string& path) {
  if (!args.team) return Window::load(path);
  try {
    return load_window(path, *args.team);
  } catch (const PeerLost&) {
    throw;
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

/// Nobody writes a plan when somebody was told to stop.
void leave_if_interrupted(const PlanArguments& args) {
  bool stop = interrupted();
  if (args.team) {
    const std::byte mine{static_cast<unsigned char>(stop ? 1 : 0)};
    for (const auto& theirs : args.team->all_gather(std::span(&mine, 1))) stop = stop || theirs.at(0) != std::byte{0};
  }
  if (stop) throw Cancelled("interrupted before the plan was written");
}

/// Plans windows that share a placement; one alone shares it with nobody. Nothing is written unless all plans exist.
void plan_windows(const PlanArguments& args, std::span<const std::string> paths, std::optional<Placement>& current,
                  Report& report) {
  Stopwatch watch(args.team.get());
  std::vector<Window> windows;
  windows.reserve(paths.size());  // instances point into it
  std::vector<Instance> instances;
  instances.reserve(paths.size());
  std::vector<const Instance*> asked;
  for (const std::string& path : paths) {
    windows.push_back(load(args, path));
    instances.push_back(instance_of(args.setup, windows.back(), path));
    asked.push_back(&instances.back());
    if (args.speaks()) warn_of_models(watch, args.setup.params, windows.back(), path);
    if (current) {
      require_fits(*current, instances.back(), args.setup.current.empty() ? "the window before" : args.setup.current);
    }
  }
  auto result = make_plans(asked, args.setup.params, current ? &*current : nullptr,
                           {.observer = &watch, .stop = watch.token(), .team = args.team.get()});
  const auto costs = watch.finish();
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
    planned.push_back(describe_plan(args, paths[k], instances[k], before, std::move(plans[k]), costs));
  }
  leave_if_interrupted(args);
  current = planned.back().plan.placement;
  if (args.speaks()) write_plans(args, planned, report);
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

/// A rank with more windows would wait for the others when they are done.
void require_same_windows(const PlanArguments& args) {
  if (!args.team) return;
  const std::string mine =
      fmt::format("{} windows{}", args.windows.size(), args.one_placement ? ", one placement" : "");
  const auto all = args.team->all_gather(std::as_bytes(std::span(mine)));
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (std::ranges::equal(all[r], all.front())) continue;
    throw UsageError(fmt::format("rank {}: found other windows than those of rank 0, wanted the same command line", r));
  }
}

int run_plan(PlanArguments& args, PlanOptions& options) {
  if (args.cost_template) {
    if (args.speaks()) fmt::print("{}", CostModel::file_template());
    return kFine;
  }
  if (!args.params_file.empty()) options.apply_file(args.params_file);
  options.apply_command_line();
  if (args.dump_params) {
    if (args.speaks()) fmt::print("{}", options.to_toml());
    return kFine;
  }
  if (args.windows.empty()) throw UsageError("WINDOW is missing: the file to plan");
  refuse_moves_without_budget(args.setup.params);
  for (const auto& window : args.windows) refuse_stray_moves(window);
  if (args.output.empty()) throw UsageError("--output is missing: -o PLAN, or -o DIR for several windows");
  if (args.setup.cap == 0) throw UsageError("--cap is missing: the token cap of one cell");
  refuse_clashing_files(args);
  if (args.transport != nullptr) {
    args.team = std::make_unique<TeamLink>(*args.transport, std::chrono::seconds(args.patience_s));
  }
  require_same_windows(args);
  std::optional<Placement> current;
  if (!args.setup.current.empty()) current = Placement::load(args.setup.current);
  if (args.speaks()) warn_of_ignored_options(args.setup.params);
  (void)args.setup.topology();
  (void)args.setup.cost_model();
  if (const std::string derived = describe_derived_cost(args.setup); !derived.empty() && args.speaks()) note(derived);
  if (args.speaks()) prepare_folder(args);
  catch_interrupts();
  Report report;
  const std::size_t together = args.one_placement ? args.windows.size() : 1;
  for (std::size_t first = 0; first < args.windows.size(); first += together) {
    plan_windows(args, std::span(args.windows).subspan(first, together), current, report);
  }
  if (!args.speaks()) return kFine;
  if (args.json) {
    print_json(args.windows.size() == 1 ? report.plans[0] : Json{{"plans", report.plans}});
  } else {
    fmt::print("{}", report.text);
  }
  return kFine;
}

void add_plan_command(CLI::App& app, Action& action, Transport* transport) {
  const auto args = std::make_shared<PlanArguments>();
  args->transport = transport;
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
  if (transport != nullptr) {
    AddOptions{.command = *command}.integer("patience_s", args->patience_s, 1, 86'400,
                                            "seconds to wait for a silent rank before giving up");
  }
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

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  add_plan_command(app, action, nullptr);
}

int run_plan_rank(int argc, char** argv, Transport& transport, std::string_view name) {
  return run_rank_of_job(argc, argv, transport.rank(), "routepack plan by all ranks of an MPI job together.", name,
                         [&](CLI::App& app, Action& action) { add_plan_command(app, action, &transport); });
}

}  // namespace routepack::cli
