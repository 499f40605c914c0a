// SPDX-License-Identifier: Apache-2.0
// routepack simulate: a plan's step on a device, second by second.
#include "routepack/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cli/add_options.h"
#include "cli/command.h"
#include "cli/report.h"
#include "cli/simulate_report.h"
#include "cli/step_timing.h"
#include "core/file.h"
#include "routepack/moves.h"
#include "routepack/plan_file.h"
#include "simulate/chrome_trace.h"

namespace routepack::cli {
namespace {

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

StepTiming timing_of(const SimulateArguments& args, const CheckedPlan& plan, const Window& window,
                     const std::optional<Device>& device) {
  if (!device) return StepTiming::load(args.timing);
  const Topology& topology = plan.instance.topology;
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
      times = simulate(&trace);
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
  add.number("aux_ms", args->aux_ms, 0.0, 1e9, "what the trainer does anyway before state can move (T_aux)");
  add.number("actor_ms", args->actor_ms, -1.0, 1e9,
             "moving and applying state (T_actor; -1 = from the moves and the device's links)");
  add.number("admit_ms", args->admit_ms, 0.0, 1e9, "after both (T_admit)");
  add.group("Output");
  add.text("trace", args->trace, "write the timeline for chrome://tracing or Perfetto", "FILE");
  add.integer("trace_rows", args->trace_rows, 0, kMany, "only the first rows (0 = all)");
  add.flag("json", args->json, "machine-readable result on standard output");
  command->footer(R"(Example:
  routepack simulate examples/windows/gptoss20b-mmlu-354.safetensors plan.json \
      --device examples/devices/h20.toml --model gpt-oss-20b --trace step.trace.json)");
  command->callback([args, &action] { action = [args] { return run_simulate(*args); }; });
}

}  // namespace routepack::cli
