// SPDX-License-Identifier: Apache-2.0
// routepack generate: synthetic windows with calibrated routing.
#include "routepack/generate.h"

#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "cli/add_options.h"
#include "cli/command.h"
#include "cli/process.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "routepack/error.h"
#include "routepack/plan.h"

namespace routepack::cli {
namespace {

namespace fs = std::filesystem;

struct GenerateArguments {
  GenerateParams params;
  std::string output;
  std::int64_t steps = 1;
  std::int64_t parts = 1;
  bool list_models = false;
  bool json = false;
};

/// A step's own file when there are several: names sort in the order of the steps.
fs::path path_of_step(const GenerateArguments& args, std::int64_t step) {
  if (args.steps == 1) return args.output;
  return fs::path(args.output) / fmt::format("step-{:04}.safetensors", step);
}

void prepare_folder(const GenerateArguments& args) {
  if (args.steps == 1) return;
  std::error_code error;
  fs::create_directory(args.output, error);
  if (error || !fs::is_directory(args.output)) {
    throw IoError(fmt::format("{}: wanted a folder for {} windows: {}", args.output, args.steps,
                              error ? error.message() : "found a file"));
  }
}

void show_progress(const ProgressLine& line, const std::string& file, std::int64_t done, std::int64_t samples) {
  if (interrupted()) throw Cancelled("interrupted before the window was written");
  if (line.shown()) line.say(fmt::format("{} of {} samples of {}", with_commas(done), with_commas(samples), file));
}

Json generated_json(const fs::path& path, const GeneratedWindow& made) {
  return {
      {"window", path.string()}, {"samples", made.samples}, {"layers", made.layers}, {"experts", made.experts},
      {"top_k", made.top_k},     {"tokens", made.tokens},   {"domain", made.domain}, {"fingerprint", made.fingerprint}};
}

std::string generated_text(const fs::path& path, const GeneratedWindow& made) {
  return fmt::format("{}: {} samples, {} tokens, {} MoE layers of {} experts, top {}\n  domain {}\n  {}\n",
                     path.string(), with_commas(made.samples), with_commas(made.tokens), made.layers, made.experts,
                     made.top_k, made.domain, made.fingerprint);
}

int print_models(bool json) {
  if (json) {
    Json models = Json::array();
    for (const ModelInfo& m : list_models()) {
      Json domains = Json::array();
      for (const DomainInfo& d : m.domains) domains.push_back({{"name", d.name}, {"calibrated", d.calibrated}});
      models.push_back({{"name", m.name},
                        {"layers", m.layers},
                        {"moe_layers", m.moe_layers},
                        {"experts", m.experts},
                        {"top_k", m.top_k},
                        {"shared_experts", m.shared_experts},
                        {"hidden", m.hidden},
                        {"moe_width", m.moe_width},
                        {"widths_inferred", m.inferred},
                        {"calibrated", m.calibrated()},
                        {"domains", domains}});
    }
    print_json({{"models", models}});
    return kFine;
  }
  Table table;
  table.row({"model", "MoE layers", "experts", "top", "hidden x width", "routing"});
  for (const ModelInfo& m : list_models()) {
    table.row({m.name, fmt::format("{}/{}", m.moe_layers, m.layers), std::to_string(m.experts), std::to_string(m.top_k),
               fmt::format("{}{} x {}", m.inferred ? "inferred " : "", m.hidden, m.moe_width),
               m.calibrated() ? "calibrated" : "uncalibrated"});
  }
  fmt::print("{}\ndomains (* uncalibrated: numbers borrowed from a model of similar size):\n", table.text());
  for (const ModelInfo& m : list_models()) {
    std::string names;
    for (const DomainInfo& d : m.domains) {
      names += fmt::format("{}{}{}", names.empty() ? "" : ", ", d.name, d.calibrated ? "" : "*");
    }
    fmt::print("  {}: {}\n", m.name, names);
  }
  return kFine;
}

int run_generate(const GenerateArguments& args) {
  if (args.list_models) return print_models(args.json);
  if (args.params.model.empty()) throw UsageError("--model is missing: a preset, see --list-models");
  if (args.output.empty()) throw UsageError("--output is missing: -o WINDOW, or -o DIR for several steps or parts");
  if (args.parts > 1 && args.steps > 1) {
    throw UsageError("--parts and --steps exclude each other: a folder holds the parts of one window, or windows");
  }
  prepare_folder(args);
  catch_interrupts();
  Json windows = Json::array();
  std::string text;
  const ProgressLine line;
  for (std::int64_t step = 0; step < args.steps; ++step) {
    GenerateParams params = args.params;
    params.step += step;
    const bool whole = args.parts == 1;
    const fs::path path = whole ? path_of_step(args, params.step) : fs::path(args.output) / "manifest.json";
    const auto progress = [&](std::int64_t done, std::int64_t samples) {
      show_progress(line, path.filename().string(), done, samples);
    };
    const GeneratedWindow made =
        whole ? generate_window(params, path, progress) : generate_parts(params, args.output, args.parts, progress);
    if (args.json) {
      windows.push_back(generated_json(path, made));
    } else {
      text += generated_text(path, made);
    }
  }
  line.clear();
  if (args.json) {
    print_json(args.steps == 1 ? windows[0] : Json{{"windows", windows}});
  } else {
    fmt::print("{}", text);
  }
  return kFine;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  const auto args = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "Make synthetic windows with realistic routing");
  command->add_option("-o,--output", args->output, "window file to write, or a folder for several steps or parts")
      ->type_name("WINDOW|DIR");
  const AddOptions options{*command};
  describe(args->params, options);
  options.integer("steps", args->steps, 1, 9999, "windows of a run, from --step on, into a folder");
  options.integer("parts", args->parts, 1, 9999, "files that one window is cut into, in a folder with a manifest");
  command->add_flag("--list-models", args->list_models, "print the presets and stop");
  command->add_flag("--json", args->json, "machine-readable result on standard output");
  command->footer(R"(Examples:
  routepack generate --model qwen3-30b-a3b --lengths gsm8k -o window.safetensors
  routepack generate --model gpt-oss-20b --lengths gsm8k --steps 8 --seed 7 -o run/
  routepack generate --list-models)");
  command->callback([args, &action] { action = [args] { return run_generate(*args); }; });
}

}  // namespace routepack::cli
