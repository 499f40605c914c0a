// SPDX-License-Identifier: Apache-2.0
// routepack simulate: a plan's step on a device, second by second.
#include "routepack/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/add_options.h"
#include "cli/command.h"
#include "cli/paths.h"
#include "cli/process.h"
#include "cli/report.h"
#include "cli/simulate_report.h"
#include "cli/step_timing.h"
#include "core/file.h"
#include "routepack/moves.h"
#include "routepack/plan.h"
#include "routepack/plan_file.h"
#include "simulate/chrome_trace.h"

namespace routepack::cli {
namespace {

constexpr double kMostMs = 1e9;

struct SimulateArguments {
  std::string window, plan;
  std::string device, timing, model, model_config;
  std::int64_t tp = 0, cp = 1, etp = 1, ranks_per_node = 0, tile = 128, chunks = 1;
  bool recompute = false;
  std::string current;
  std::int64_t expert_bytes = 0;
  double aux_ms = 0.0, actor_ms = -1.0, admit_ms = 0.0;
  std::string trace;
  std::int64_t trace_rows = 0;
  bool json = false;
};

/// Passes Ctrl-C on into the middle of a long timeline.
class Interruptible final : public TimelineSink {
 public:
  explicit Interruptible(TimelineSink& to) : to_(to) {}
  void interval(const Interval& interval) override {
    if (interrupted()) throw Cancelled("interrupted before the trace was complete");
    to_.interval(interval);
  }

 private:
  TimelineSink& to_;
};

/// The model that --device needs: as asked, or as the window says.
ModelShape shape_of(const SimulateArguments& args, const Window& window) {
  ModelShape shape = [&] {
    if (!args.model_config.empty()) return load_model_shape(args.model_config);
    if (!args.model.empty()) return model_shape(args.model);
    const std::string preset = preset_of(window.arrays().model);
    if (preset.empty()) {
      throw UsageError("--device needs the model: --model-config config.json or --model NAME (the window names none)");
    }
    return model_shape(preset);
  }();
  require_fits(shape, window.layers(), window.experts(), window.top_k(), args.window);
  return shape;
}

/// Ranks of a cell, from the shards of the plan: Megatron's |D_g| = ETP·EP / (TP·CP).
std::int32_t tensor_parallel_of(const SimulateArguments& args, const Topology& topology) {
  if (args.tp > 0) return static_cast<std::int32_t>(args.tp);
  const auto slots = static_cast<std::int64_t>(topology.slots_of(ShardId(0)).size());
  return static_cast<std::int32_t>(std::max<std::int64_t>(1, args.etp * topology.ranks() / (slots * args.cp)));
}

/// Sizes that were given must give the shards of the plan.
void refuse_contradicting_sizes(const SimulateArguments& args, const Topology& topology) {
  if (args.tp == 0 && args.cp == 1 && args.etp == 1) return;
  const std::int64_t tp = tensor_parallel_of(args, topology);
  for (const ShardId g : topology.shard_ids()) {
    const auto slots = static_cast<std::int64_t>(topology.slots_of(g).size());
    const std::int64_t devices = args.etp * topology.ranks();
    if (devices % slots == 0 && devices / slots % tp == 0 && devices / slots / tp == args.cp) continue;
    throw UsageError(fmt::format(
        "--tp {} --cp {} --etp {}: {} slots share {} EP ranks in the plan, wanted slots x tp x cp = ranks x etp", tp,
        args.cp, args.etp, slots, topology.ranks()));
  }
}

StepTiming timing_of(const SimulateArguments& args, const CheckedPlan& plan, const Window& window,
                     const std::optional<Device>& device) {
  if (!device) return StepTiming::load(args.timing);
  const Topology& topology = plan.instance.topology;
  refuse_contradicting_sizes(args, topology);
  return time_model(shape_of(args, window), *device,
                    {.capacity = plan.instance.capacity,
                     .dp = topology.slots(),
                     .ep = topology.ranks(),
                     .tp = tensor_parallel_of(args, topology),
                     .cp = static_cast<std::int32_t>(args.cp),
                     .etp = static_cast<std::int32_t>(args.etp),
                     .pp = topology.pipeline_stages(),
                     .ranks_per_node = ranks_per_node_or_default(args.ranks_per_node),
                     .tile = args.tile,
                     .recompute = args.recompute});
}

/// Equations 19 and 20 with the planner's own times; nothing when the plan file has none, or nobody says what moving
/// state takes.
std::optional<Admission> admission_of(const SimulateArguments& args, const PlanRecord& record, const CheckedPlan& plan,
                                      const Window& window, const std::optional<Device>& device) {
  if (record.timings_ms.empty() || (!device && args.actor_ms < 0.0)) return std::nullopt;
  Admission admission{.other = args.aux_ms / 1e3, .admit = args.admit_ms / 1e3};
  for (const auto& [phase, ms] : record.timings_ms) {
    const bool placing = phase == "demand" || phase == "place";
    if (!(ms >= 0.0 && ms <= kMostMs)) {
      throw InvalidInput(fmt::format("{}: timings_ms.{}: found {}, wanted 0 to {}", args.plan, phase, ms, kMostMs));
    }
    const bool planning = phase != "total" && phase != "load";  // the window was there before
    if (planning) (placing ? admission.place : admission.pack) += ms / 1e3;
  }
  if (args.actor_ms >= 0.0) {
    admission.state = args.actor_ms / 1e3;
  } else if (device) {
    const Placement before = args.current.empty()
                                 ? Placement::identity(window.layers(), window.experts(), plan.placement.ranks())
                                 : Placement::load(args.current);
    std::int64_t bytes = args.expert_bytes;
    if (bytes == 0) {
      const ModelShape shape = shape_of(args, window);
      bytes = expert_state_bytes(gated_ffn_parameters(shape.hidden, shape.moe_width));
    }
    admission.state =
        state_move_seconds(before, plan.placement, bytes, *device, ranks_per_node_or_default(args.ranks_per_node));
  }
  return admission;
}

int run_simulate(const SimulateArguments& args) {
  if (args.device.empty() == args.timing.empty()) {
    throw UsageError("wanted either --device FILE, with the model, or --timing FILE");
  }
  if (!args.model.empty() && !args.model_config.empty()) {
    throw UsageError("--model and --model-config exclude each other");
  }
  std::vector<std::filesystem::path> inputs = files_of_window(args.window);
  for (const std::string& input : {args.plan, args.device, args.timing, args.model_config, args.current}) {
    inputs.emplace_back(input);
  }
  refuse_clashes(inputs, args.trace.empty() ? std::vector<std::filesystem::path>{}
                                            : std::vector<std::filesystem::path>{args.trace});
  catch_interrupts();
  if (args.trace_rows > 0 && args.trace.empty()) throw UsageError("--trace-rows: wanted with --trace FILE");
  const Window window = Window::load(args.window);
  const PlanRecord record = load_plan(args.plan);
  const CheckedPlan plan = check_record(record, window);
  std::optional<Device> device;
  if (!args.device.empty()) device = Device::load(args.device);
  const StepTiming timing = timing_of(args, plan, window, device);
  const PipelineShape pipeline{.stages = plan.instance.topology.pipeline_stages(),
                               .chunks = static_cast<std::int32_t>(args.chunks)};
  const auto simulate = [&](TimelineSink* sink) {
    return simulate_step(plan.instance, plan.placement, plan.layout, timing, pipeline, sink);
  };
  const auto admission = admission_of(args, record, plan, window, device);  // what it refuses leaves no trace behind
  StepTimes times;
  if (args.trace.empty()) {
    times = simulate(nullptr);
  } else {
    write_atomically(args.trace, [&](const WriteSink& write) {
      ChromeTrace trace(
          timing, write,
          args.trace_rows > 0 ? static_cast<std::int32_t>(args.trace_rows) : std::numeric_limits<std::int32_t>::max());
      Interruptible sink(trace);
      times = simulate(&sink);
      trace.finish(times);
    });
  }
  const SimulateReport report{.times = times,
                              .timing = timing,
                              .on = device ? device->name : args.timing,
                              .instance = plan.instance,
                              .rows = plan.layout.rows(),
                              .pipeline = pipeline,
                              .admission = admission};
  if (args.json) {
    print_json(report.json());
  } else {
    fmt::print("{}", report.text());
  }
  return kFine;
}

}  // namespace

void add_simulate(CLI::App& app, Action& action) {
  const auto args = std::make_shared<SimulateArguments>();
  CLI::App* command = app.add_subcommand("simulate", "How long a plan's step takes, who waits for whom");
  command->add_option("WINDOW", args->window, "window file")->required();
  command->add_option("PLAN", args->plan, "plan file")->required();
  AddOptions add{.command = *command, .group_name = "Time"};
  add.text("device", args->device, "device file (TOML): what the accelerator and its links reach", "FILE");
  add.text("model", args->model, "with --device: a preset (default: as the window says)");
  add.text("model_config", args->model_config, "with --device: the model's config.json", "FILE");
  add.text("timing", args->timing, "instead: a timing file, as calibrate writes it", "FILE");
  constexpr std::int64_t kMany = 1 << 20;
  add.integer("tp", args->tp, 1, kMany, "tensor parallel size (default: as the shards of the plan say)");
  add.integer("cp", args->cp, 1, kMany, "context parallel size");
  add.integer("etp", args->etp, 1, kMany, "expert tensor parallel size");
  add.integer("ranks_per_node", args->ranks_per_node, 0, kMany, "devices of a node (0 = 8)");
  add.integer("tile", args->tile, 1, kMany, "with --device: an expert's tokens count as the next multiple");
  add.integer("chunks", args->chunks, 1, kMany, "model chunks on a pipeline stage: more than 1 interleaves");
  add.flag("recompute", args->recompute, "with --device: every layer's forward pass again before its backward pass");
  add.group("Admission (equations 19, 20)");
  add.text("current", args->current, "plan or placement file: where experts were before (default: identity)", "FILE");
  add.integer("expert_bytes", args->expert_bytes, 0, std::int64_t{1} << 50,
              "state of one expert (0 = 14 bytes per parameter)");
  add.number("aux_ms", args->aux_ms, 0.0, kMostMs, "what the trainer does anyway before state can move (T_aux)");
  add.number("actor_ms", args->actor_ms, 0.0, kMostMs,
             "moving and applying state (T_actor; -1 = from the moves and the device's links)");
  add.number("admit_ms", args->admit_ms, 0.0, kMostMs, "after both (T_admit)");
  add.group("Output");
  add.text("trace", args->trace, "write the timeline for chrome://tracing or Perfetto", "FILE");
  add.integer("trace_rows", args->trace_rows, 0, kMany, "only the first rows (0 = all)");
  add.flag("json", args->json, "machine-readable result on standard output");
  command->footer(R"(Example:
  routepack simulate examples/windows/gptoss20b-mmlu-354.safetensors plan.json \
      --device examples/devices/h20.toml --model gpt-oss-20b --trace step.trace.json)");
  command->callback([command, args, &action] {
    if (command->count("--trace") > 0 && args->trace.empty()) throw UsageError("--trace: found no name, wanted a file");
    for (const char* option :
         {"--model", "--model-config", "--tp", "--cp", "--etp", "--ranks-per-node", "--tile", "--recompute"}) {
      if (!args->timing.empty() && command->count(option) > 0) {
        throw UsageError(fmt::format("{} and --timing exclude each other: the file has measured times", option));
      }
    }
    action = [args] { return run_simulate(*args); };
  });
}

}  // namespace routepack::cli
