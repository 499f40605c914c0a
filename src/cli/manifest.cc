// SPDX-License-Identifier: Apache-2.0
// routepack manifest: window files become the parts of one window.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/paths.h"
#include "cli/report.h"
#include "routepack/window_parts.h"

namespace routepack::cli {
namespace {

namespace fs = std::filesystem;

struct ManifestArguments {
  std::vector<std::string> parts;
  std::string output;
  bool json = false;
};

int run_manifest(const ManifestArguments& args) {
  const std::vector<fs::path> parts(args.parts.begin(), args.parts.end());
  refuse_clashes(parts, {args.output});
  if (args.output.empty()) throw UsageError("--output is missing: -o MANIFEST");
  const Window window = save_manifest(args.output, parts);
  if (args.json) {
    print_json({{"window", args.output},
                {"parts", parts.size()},
                {"samples", window.samples()},
                {"layers", window.layers()},
                {"experts", window.experts()},
                {"top_k", window.top_k()},
                {"fingerprint", window.fingerprint()}});
    return kFine;
  }
  fmt::print("{}: {} parts, {} samples, {} MoE layers of {} experts, top {}\n  {}\n", printable(args.output),
             parts.size(), with_commas(window.samples()), window.layers(), window.experts(), window.top_k(),
             window.fingerprint());
  return kFine;
}

}  // namespace

void add_manifest(CLI::App& app, Action& action) {
  const auto args = std::make_shared<ManifestArguments>();
  CLI::App* command = app.add_subcommand("manifest", "Name window files as the parts of one window");
  command->add_option("PART", args->parts, "window files (safetensors), in the order of the samples")->required();
  command->add_option("-o,--output", args->output, "manifest to write")->type_name("MANIFEST")->required();
  command->add_flag("--json", args->json, "machine-readable result on standard output");
  command->footer(R"(Example:
  routepack manifest host0.safetensors host1.safetensors -o window.json)");
  command->callback([args, &action] { action = [args] { return run_manifest(*args); }; });
}

}  // namespace routepack::cli
