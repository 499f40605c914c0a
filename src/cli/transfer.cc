// SPDX-License-Identifier: Apache-2.0
// routepack transfer: what a move between two placements takes, and whether this machine or cluster can be trusted.
#include "cli/transfer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/add_options.h"
#include "cli/command.h"
#include "cli/program.h"
#include "cli/report.h"
#include "cli/transfer_report.h"
#include "comm/in_process.h"
#include "routepack/error.h"
#include "routepack/generate.h"
#include "routepack/grid_layout.h"
#include "routepack/move_schedule.h"
#include "routepack/placement.h"
#include "routepack/transport.h"
#include "routepack/version.h"
#include "transfer/self_test.h"

namespace routepack::cli {
namespace {

constexpr std::int64_t kMostThreads = 256;
constexpr double kFreely = 1e300;  // bytes per second of what is not to be counted

struct TransferArguments {
  std::string from, to;
  std::string model, layout;
  std::int64_t edp = 0, etp = 1, bucket_elements = 0;
  Route route = Route::TwoHop;
  Atomic atomic = Atomic::Layer;
  // Dry run.
  std::int64_t ranks_per_node = 0;
  double link_gbytes = 0.0, edp_gbytes = 0.0, node_gbytes = 0.0, memory_gbytes = 0.0, message_us = 0.0;
  // Self-test.
  bool self_test = false, read_back = false;
  std::int64_t ep = 4, layers = 4, experts = 16, hidden = 64, width = 32, moves = 4, seed = 0, timeout_ms = 60'000;
  bool json = false;
};

struct SelfTestJob {
  GridLayout layout;
  SelfTestOptions options;
  bool json = false;
};
using SelfTestRunner = std::function<int(const SelfTestJob&)>;

constexpr std::array kDryRunOnly = {"--ranks-per-node", "--link-gbytes",   "--edp-gbytes",
                                    "--node-gbytes",    "--memory-gbytes", "--message-us"};
constexpr std::array kSelfTestOnly = {"--ep",    "--layers", "--experts",    "--hidden",   "--width",
                                      "--moves", "--seed",   "--timeout-ms", "--read-back"};
/// What a layout file says instead.
constexpr std::array kWithoutLayout = {"--model",  "--etp",     "--bucket-elements", "--ep",
                                       "--layers", "--experts", "--hidden",          "--width"};

template <class Names>
void refuse(const CLI::App& command, const Names& names, const std::string& why) {
  for (const char* name : names) {
    if (command.count(name) > 0) throw UsageError(fmt::format("{} {}", name, why));
  }
}

std::int32_t narrow(std::int64_t value) {
  return static_cast<std::int32_t>(value);  // options have bounds
}

/// Widths of an expert as one expert-tensor-parallel rank holds it.
std::pair<std::int64_t, std::int64_t> widths(const TransferArguments& args, std::int64_t hidden, std::int64_t width) {
  if (width % args.etp != 0) {
    throw UsageError(fmt::format("--etp: found {}, wanted a divisor of the experts' width {}", args.etp, width));
  }
  return {hidden, width / args.etp};
}

MegatronBuffers buffers_of(const TransferArguments& args) {
  MegatronBuffers buffers;
  if (args.bucket_elements > 0) buffers.bucket_elements = args.bucket_elements;
  return buffers;
}

ModelInfo model_named(const std::string& name) {
  const std::vector<ModelInfo> models = list_models();
  const auto found = std::ranges::find(models, name, &ModelInfo::name);
  if (found != models.end()) return *found;
  std::string names;
  for (const ModelInfo& model : models) names += fmt::format("{}{}", names.empty() ? "" : ", ", model.name);
  throw UsageError(fmt::format("--model: found \"{}\", wanted one of {}", name, names));
}

std::string shape_text(const Placement& placement) {
  return fmt::format("{} layers of {} experts on {} EP ranks", placement.layers(), placement.experts(),
                     placement.ranks());
}

GridLayout layout_for(const TransferArguments& args, const Placement& from) {
  if (!args.layout.empty()) {
    GridLayout layout = GridLayout::load(args.layout);
    if (args.edp != 0 && args.edp != layout.grid().edp) {
      throw UsageError(
          fmt::format("--edp: found {}, wanted {} as {} says, or nothing", args.edp, layout.grid().edp, args.layout));
    }
    if (layout.layers() != from.layers() || layout.experts() != from.experts() || layout.grid().ep != from.ranks()) {
      throw InvalidInput(fmt::format("{}: found {} layers of {} experts on {} EP ranks, wanted {} as in {}",
                                     args.layout, layout.layers(), layout.experts(), layout.grid().ep, shape_text(from),
                                     args.from));
    }
    return layout;
  }
  if (args.edp == 0) {
    throw UsageError("--edp is missing: lanes, the replicas of every expert that share its optimizer state (1: none)");
  }
  const ModelInfo model = model_named(args.model);
  if (model.experts != from.experts() || model.moe_layers < from.layers()) {
    throw UsageError(fmt::format("--model: found {} with {} MoE layers of {} experts, wanted a model of the {} of {}",
                                 model.name, model.moe_layers, model.experts, shape_text(from), args.from));
  }
  const auto [hidden, width] = widths(args, model.hidden, model.moe_width);
  return GridLayout::adam({.ep = from.ranks(), .edp = narrow(args.edp)}, from.layers(), from.slots_per_rank(), hidden,
                          width, buffers_of(args));
}

std::optional<LinkRates> rates_of(const CLI::App& command, const TransferArguments& args) {
  if (command.count("--link-gbytes") == 0) {
    refuse(command, std::array{"--edp-gbytes", "--node-gbytes", "--memory-gbytes", "--message-us"},
           "needs --link-gbytes: GB/s that a rank sends to others");
    return std::nullopt;
  }
  if (command.count("--node-gbytes") > 0 && args.ranks_per_node == 0) {
    throw UsageError("--node-gbytes needs --ranks-per-node: which ranks share a node");
  }
  const auto rate = [](double gbytes, double otherwise) { return gbytes > 0.0 ? 1e9 * gbytes : otherwise; };
  const double link = rate(args.link_gbytes, 0.0);
  return LinkRates{.across_ep = link,
                   .within_edp = rate(args.edp_gbytes, link),
                   .between_nodes = rate(args.node_gbytes, link),
                   .memory = rate(args.memory_gbytes, kFreely),
                   .message_seconds = 1e-6 * args.message_us};
}

int run_dry(const CLI::App& command, const TransferArguments& args) {
  refuse(command, kSelfTestOnly, "needs --self-test: a dry run takes its sizes from the plans");
  if (args.from.empty() || args.to.empty()) {
    throw UsageError("FROM and TO are missing: two plan or placement files, or --self-test");
  }
  if (args.model.empty() && args.layout.empty()) {
    throw UsageError("--model or --layout is missing: a preset (routepack generate --list-models) or a layout file");
  }
  const Placement from = Placement::load(args.from);
  const Placement to = Placement::load(args.to);
  if (to.layers() != from.layers() || to.experts() != from.experts() || to.ranks() != from.ranks()) {
    throw InvalidInput(
        fmt::format("{}: found {}, wanted {} as in {}", args.to, shape_text(to), shape_text(from), args.from));
  }
  const GridLayout layout = layout_for(args, from);
  const auto rates = rates_of(command, args);
  const TrafficForecast forecast = forecast_traffic(layout, from, to, args.route, narrow(args.ranks_per_node), rates);
  const DryRun run{.from = args.from,
                   .to = args.to,
                   .state = args.layout.empty() ? args.model : args.layout,
                   .route = args.route,
                   .atomic = args.atomic,
                   .timed = rates.has_value(),
                   .by_node = args.ranks_per_node > 0};
  if (args.json) {
    print_json(dry_run_json(run, layout, forecast));
  } else {
    fmt::print("{}", printable(dry_run_text(run, layout, forecast)));
  }
  return kFine;
}

GridLayout self_test_layout(const TransferArguments& args) {
  if (!args.layout.empty()) {
    GridLayout layout = GridLayout::load(args.layout);
    if (args.edp != 0 && args.edp != layout.grid().edp) {
      throw UsageError(
          fmt::format("--edp: found {}, wanted {} as {} says, or nothing", args.edp, layout.grid().edp, args.layout));
    }
    return layout;
  }
  if (args.experts % args.ep != 0) {
    throw UsageError(fmt::format("--experts: found {}, wanted a multiple of --ep {}", args.experts, args.ep));
  }
  const std::optional<ModelInfo> model = args.model.empty() ? std::nullopt : std::optional(model_named(args.model));
  const auto [hidden, width] =
      model ? widths(args, model->hidden, model->moe_width) : widths(args, args.hidden, args.width);
  const std::int64_t edp = args.edp == 0 ? 2 : args.edp;
  return GridLayout::adam({.ep = narrow(args.ep), .edp = narrow(edp)}, narrow(args.layers),
                          narrow(args.experts / args.ep), hidden, width, buffers_of(args));
}

SelfTestJob self_test_job(const CLI::App& command, const TransferArguments& args) {
  refuse(command, kDryRunOnly, "belongs to a dry run, found with --self-test");
  if (!args.from.empty()) throw UsageError("FROM and TO belong to a dry run, found with --self-test");
  if (!args.model.empty()) refuse(command, std::array{"--hidden", "--width"}, "and --model exclude each other");
  return {.layout = self_test_layout(args),
          .options = {.seed = static_cast<std::uint64_t>(args.seed),
                      .moves = narrow(args.moves),
                      .transfer = {.route = args.route,
                                   .atomic = args.atomic,
                                   .staging_limit = std::nullopt,
                                   .timeout = std::chrono::milliseconds(args.timeout_ms),
                                   .read_back = args.read_back}},
          .json = args.json};
}

int print_self_test(const std::string& backend, const SelfTestJob& job, const SelfTestReport& report) {
  if (job.json) {
    print_json(self_test_json(backend, job.layout, job.options, report));
  } else {
    fmt::print("{}", printable(self_test_text(backend, job.layout, job.options, report)));
  }
  return report.verified ? kFine : kRejected;
}

/// The system gives out more memory than it has, and ends whoever uses it.
void require_memory(const SelfTestJob& job) {
  const GridLayout& layout = job.layout;
  double state = 0.0;  // bytes of all ranks
  for (const LayerId l : IdRange<LayerId>(layout.layers())) {
    for (std::int32_t slot = 0; slot < layout.slots(); ++slot) {
      for (std::int32_t tensor = 0; tensor < std::ssize(layout.tensors()); ++tensor) {
        for (std::int32_t lane = 0; lane < layout.grid().edp; ++lane) {
          state += static_cast<double>(layout.bytes_on(l, slot, tensor, lane)) * layout.grid().ep;
        }
      }
    }
  }
  // Staging of the engine and of the bare copy: a layer each, or all layers.
  const double staged = job.options.transfer.atomic == Atomic::Step ? 1.0 : 1.0 / layout.layers();
  const double wanted = state * (1.0 + staged + 1.0 / layout.layers());
  const double there = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (wanted > there) {
    throw UsageError(
        fmt::format("--self-test: found {:.1f} GB of state and staging, wanted at most the {:.1f} GB of this "
                    "machine; fewer --layers or --experts, or the MPI executable on several machines",
                    wanted / 1e9, there / 1e9));
  }
}

int run_on_threads(const SelfTestJob& job) {
  const std::int32_t ranks = job.layout.grid().ranks();
  if (ranks > kMostThreads) {
    throw UsageError(
        fmt::format("--self-test: found a grid of {} ranks, wanted at most {} threads; use the MPI "
                    "executable for more",
                    ranks, kMostThreads));
  }
  require_memory(job);
  InProcessNetwork network(ranks);
  std::vector<SelfTestReport> reports(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    const auto stop_all = [&] {
      for (std::int32_t rank = 0; rank < ranks; ++rank) network.kill(rank);
    };
    try {
      for (std::int32_t rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
          const auto at = static_cast<std::size_t>(rank);
          try {
            reports[at] = self_test(network.end(rank), job.layout, job.options);
          } catch (...) {
            errors[at] = std::current_exception();
            stop_all();  // nobody waits for a rank that could not begin
          }
        });
      }
    } catch (...) {
      stop_all();
      throw;
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  const auto failed = std::ranges::find(reports, false, &SelfTestReport::verified);
  return print_self_test("threads", job, failed == reports.end() ? reports.front() : *failed);
}

int run_over(Transport& transport, const SelfTestJob& job, std::string_view name) {
  if (transport.ranks() != job.layout.grid().ranks()) {
    throw UsageError(
        fmt::format("--self-test: found {} processes, wanted {}, an EP x EDP grid of {} x {}: "
                    "mpirun -n {} {} transfer --self-test --ep {} --edp {}",
                    transport.ranks(), job.layout.grid().ranks(), job.layout.grid().ep, job.layout.grid().edp,
                    job.layout.grid().ranks(), name, job.layout.grid().ep, job.layout.grid().edp));
  }
  const SelfTestReport report = self_test(transport, job.layout, job.options);
  if (transport.rank() == 0) return print_self_test("MPI", job, report);
  if (report.verified) return kFine;
  return report.problem_shared ? int{kRejected}
                               : fail(kRejected, fmt::format("rank {}: {}", transport.rank(), *report.problem));
}

constexpr const char* kFooter = R"(Examples:
  routepack transfer before.json after.json --model gpt-oss-20b --edp 2
  routepack transfer before.json after.json --layout grid.json --route direct --ranks-per-node 8 \
      --link-gbytes 150 --node-gbytes 40
  routepack transfer --self-test --ep 8 --edp 4
  mpirun -n 8 routepack-mpi transfer --self-test --ep 4 --edp 2 --hidden 2048 --width 768)";

void add_transfer_command(CLI::App& app, Action& action, bool dry_runs, SelfTestRunner runner) {
  const auto args = std::make_shared<TransferArguments>();
  CLI::App* command = app.add_subcommand("transfer", "Dry run of a move between two plans; self-test of the transport");
  command->add_option("FROM", args->from, "plan or placement file: where experts are");
  command->add_option("TO", args->to, "plan or placement file: where they shall be");
  command->add_flag("--json", args->json, "machine-readable result on standard output");
  constexpr std::int64_t kMany = 1 << 20;
  AddOptions options{*command};
  options.group("Grid and state");
  options.text("model", args->model, "preset whose widths an expert has, in bf16 with Adam in fp32");
  options.text("layout", args->layout, "grid layout file (docs/formats.md): other tensors or other lane ranges",
               "FILE");
  options.integer("edp", args->edp, 1, 1 << 15, "lanes: replicas of every expert that share its optimizer state");
  options.integer("etp", args->etp, 1, kMany, "expert tensor parallel size: each of its ranks moves its own share");
  options.integer("bucket_elements", args->bucket_elements, 0, std::int64_t{1} << 50,
                  "Megatron closes a bucket that holds so many (0 = one bucket)");
  options.group("Moving");
  options.choice("route", args->route, "how sharded state reaches its lane");
  options.choice("atomic", args->atomic, "what stays whole when something fails, and so is staged together");
  options.group("Dry run");
  options.integer("ranks_per_node", args->ranks_per_node, 0, 1 << 15, "grid ranks of a node (0 = one node)");
  options.number("link_gbytes", args->link_gbytes, 1e-6, 1e9, "GB/s that a rank sends; gives the time of the move");
  options.number("edp_gbytes", args->edp_gbytes, 1e-6, 1e9, "the same to other lanes (default: as --link-gbytes)");
  options.number("node_gbytes", args->node_gbytes, 1e-6, 1e9, "the same to other nodes (default: as --link-gbytes)");
  options.number("memory_gbytes", args->memory_gbytes, 1e-6, 1e9,
                 "GB/s of copies inside a rank, which take no time otherwise");
  options.number("message_us", args->message_us, 0.0, 1e9, "microseconds that a message takes beside its bytes");
  options.group("Self-test");
  options.flag("self_test", args->self_test, "move synthetic state to and fro, and check every byte");
  options.integer("ep", args->ep, 2, 1 << 15, "expert-parallel ranks");
  options.integer("layers", args->layers, 1, kMany, "MoE layers");
  options.integer("experts", args->experts, 2, kMany, "experts of a layer");
  options.integer("hidden", args->hidden, 1, kMany, "width of a token");
  options.integer("width", args->width, 1, kMany, "inner width of an expert");
  options.integer("moves", args->moves, 1, kMany, "random placements, one after another; then back to the first");
  options.integer("seed", args->seed, 0, std::numeric_limits<std::int64_t>::max(), "of placements and state");
  options.integer("timeout_ms", args->timeout_ms, 1, 86'400'000, "wait so long for others that do nothing");
  options.flag("read_back", args->read_back, "compare what was written with what should be, on every rank");
  command->footer(kFooter);
  command->callback([command, args, dry_runs, runner = std::move(runner), &action] {
    action = [command, args, dry_runs, runner] {
      if (!args->layout.empty()) refuse(*command, kWithoutLayout, "and --layout exclude each other");
      if (args->self_test) return runner(self_test_job(*command, *args));
      if (!dry_runs) throw UsageError("--self-test is missing: dry runs need no MPI, routepack transfer makes them");
      return run_dry(*command, *args);
    };
  });
}

}  // namespace

void add_transfer(CLI::App& app, Action& action) {
  add_transfer_command(app, action, true, run_on_threads);
}

int run_transfer_rank(int argc, char** argv, Transport& transport, std::string_view name) {
  return run_rank_of_job(argc, argv, transport.rank(), "The self-test of routepack transfer as one rank of an MPI job.",
                         name, [&](CLI::App& app, Action& action) {
                           add_transfer_command(app, action, false,
                                                [&](const SelfTestJob& job) { return run_over(transport, job, name); });
                         });
}

}  // namespace routepack::cli
