// SPDX-License-Identifier: Apache-2.0
// routepack inspect: what is in a window, and how much balancing can win.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <string>

#include "cli/command.h"
#include "cli/report.h"
#include "routepack/bounds.h"
#include "routepack/placement.h"
#include "routepack/score.h"
#include "routepack/window.h"

namespace routepack::cli {
namespace {

struct InspectArguments {
  std::string window;
  bool json = false;
};

/// Spread of the lengths, and how many samples lack routes.
struct LengthSummary {
  std::int64_t tokens = 0;
  std::vector<std::pair<const char*, std::int32_t>> quantiles;
  std::int64_t without_routes = 0;
  std::int64_t tokens_without_route = 0;  ///< tokens whose route was not recorded, mean over layers, rounded
};

LengthSummary summarise_lengths(const Window& window) {
  LengthSummary summary;
  std::vector<std::int32_t> sorted(window.arrays().lengths.begin(), window.arrays().lengths.end());
  std::ranges::sort(sorted);
  for (const std::int32_t length : sorted) summary.tokens += length;
  const auto at = [&](double q) {
    return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))];
  };
  if (!sorted.empty()) {
    summary.quantiles = {{"min", sorted.front()}, {"p25", at(0.25)}, {"median", at(0.5)},
                         {"p75", at(0.75)},       {"p95", at(0.95)}, {"max", sorted.back()}};
  }
  std::int64_t missing = 0;
  for (const SampleId i : window.sample_ids()) {
    if (window.lacks_routes(i)) ++summary.without_routes;
    if (sorted.empty()) continue;  // an aggregate need not have lengths
    for (const LayerId l : window.layer_ids()) {
      if (const auto recorded = window.recorded(i, l)) missing += window.length(i) - *recorded;
    }
  }
  summary.tokens_without_route = missing / window.layers();
  return summary;
}

/// Skew of the experts: per layer, mean over layers and the range.
struct Skew {
  double cv_mean = 0.0, cv_min = 0.0, cv_max = 0.0;
  double hottest_mean = 0.0;  ///< hottest expert / mean expert
};

Skew expert_skew(const Window& window, std::span<const std::int64_t> demand) {
  Skew skew;
  const auto experts = static_cast<std::size_t>(window.experts());
  std::int64_t layers = 0;
  for (const LayerId l : window.layer_ids()) {
    const auto layer = demand.subspan(l * experts, experts);
    const std::int64_t total = std::accumulate(layer.begin(), layer.end(), std::int64_t{0});
    if (total == 0) continue;
    const double cv = rank_demand_cv(layer, window.experts());
    skew.cv_min = layers == 0 ? cv : std::min(skew.cv_min, cv);
    skew.cv_max = std::max(skew.cv_max, cv);
    skew.cv_mean += cv;
    skew.hottest_mean += static_cast<double>(*std::ranges::max_element(layer)) * static_cast<double>(experts) /
                         static_cast<double>(total);
    ++layers;
  }
  if (layers > 0) {
    skew.cv_mean /= static_cast<double>(layers);
    skew.hottest_mean /= static_cast<double>(layers);
  }
  return skew;
}

/// What placement alone can do at one EP size. Efficiencies are Σ_l mean over ranks / Σ_l busiest rank for the whole
/// window: no packing under that placement does better.
struct PlacementOutlook {
  std::int32_t ranks = 0;
  double identity = 1.0;
  double lpt = 1.0;
  double best = 1.0;  ///< upper limit over all placements
  std::int32_t replication_layers = 0;
  std::int64_t copies = 0;  ///< of hot experts, that would lift the limit
};

PlacementOutlook outlook(const Window& window, std::span<const std::int64_t> demand, std::int32_t ranks) {
  const Placement identity = Placement::identity(window.layers(), window.experts(), ranks);
  const auto efficiency = [&](const std::vector<LayerBound>& layers, auto peak) {
    std::int64_t peaks = 0;
    for (const LayerBound& layer : layers) peaks += layer.*peak;
    const std::int64_t total = std::accumulate(demand.begin(), demand.end(), std::int64_t{0});
    return peaks == 0 ? 1.0 : static_cast<double>(total) / ranks / static_cast<double>(peaks);
  };
  const auto at_identity = layer_bounds(demand, identity);
  return {.ranks = ranks,
          .identity = efficiency(at_identity, &LayerBound::placed_peak),
          .lpt = efficiency(layer_bounds(demand, place_lpt(demand, identity)), &LayerBound::placed_peak),
          .best = efficiency(at_identity, &LayerBound::any_placement),
          .replication_layers =
              static_cast<std::int32_t>(std::ranges::count_if(at_identity, &LayerBound::replication_needed)),
          .copies = std::accumulate(at_identity.begin(), at_identity.end(), std::int64_t{0},
                                    [](std::int64_t sum, const LayerBound& l) { return sum + l.copies_needed; })};
}

/// EP sizes worth a look: powers of two that divide E, up to 64.
std::vector<std::int32_t> ep_sizes(std::int32_t experts) {
  std::vector<std::int32_t> sizes;
  for (std::int32_t p = 2; p <= 64 && p <= experts; p *= 2) {
    if (experts % p == 0) sizes.push_back(p);
  }
  return sizes;
}

std::size_t distinct(std::span<const std::int32_t> values, std::int32_t from) {
  const std::set<std::int32_t> seen(values.begin(), values.end());
  return static_cast<std::size_t>(std::ranges::count_if(seen, [&](std::int32_t v) { return v >= from; }));
}

int run_inspect(const InspectArguments& args) {
  const Window window = Window::load(args.window);
  const auto demand = aggregate_demand(window);
  const LengthSummary lengths = summarise_lengths(window);
  const Skew skew = expert_skew(window, demand);
  std::vector<PlacementOutlook> outlooks;
  for (const std::int32_t ranks : ep_sizes(window.experts())) outlooks.push_back(outlook(window, demand, ranks));
  const char* kind = window.kind() == WindowKind::Aggregate ? "aggregate" : "samples";

  if (args.json) {
    Json quantiles = Json::object();
    for (const auto& [name, value] : lengths.quantiles) quantiles[name] = value;
    Json ep = Json::array();
    for (const auto& o : outlooks) {
      ep.push_back({{"ep", o.ranks},
                    {"efficiency_identity", o.identity},
                    {"efficiency_lpt", o.lpt},
                    {"efficiency_limit", o.best},
                    {"replication_needed_layers", o.replication_layers},
                    {"copies_needed", o.copies}});
    }
    Json json{{"samples", window.samples()},
              {"layers", window.layers()},
              {"experts", window.experts()},
              {"top_k", window.top_k()},
              {"kind", kind},
              {"model", window.arrays().model},
              {"fingerprint", window.fingerprint()},
              {"tokens", lengths.tokens},
              {"lengths", quantiles},
              {"samples_without_routes", lengths.without_routes},
              {"tokens_without_route", lengths.tokens_without_route},
              {"expert_cv", {{"mean", skew.cv_mean}, {"min", skew.cv_min}, {"max", skew.cv_max}}},
              {"hottest_expert_over_mean", skew.hottest_mean},
              {"placement", ep}};
    if (!window.arrays().groups.empty()) json["groups"] = distinct(window.arrays().groups, INT32_MIN);
    if (!window.arrays().atomic.empty()) json["atomic_groups"] = distinct(window.arrays().atomic, 0);
    print_json(json);
    return kFine;
  }
  fmt::print("{}: {}\n", args.window, window.arrays().model.empty() ? "model not named" : window.arrays().model);
  fmt::print("  {} samples, {} MoE layers of {} experts, top {}, kind {}\n  {}\n", with_commas(window.samples()),
             window.layers(), window.experts(), window.top_k(), kind, window.fingerprint());
  std::string spread;
  for (const auto& [name, value] : lengths.quantiles) spread += fmt::format("  {} {}", name, value);
  fmt::print("  {} tokens;{}\n", with_commas(lengths.tokens), spread);
  if (window.arrays().recorded.empty()) {
    fmt::print("  the window does not say which tokens were recorded\n");
  } else {
    fmt::print("  routes missing for {} tokens; {} samples without any\n", with_commas(lengths.tokens_without_route),
               with_commas(lengths.without_routes));
  }
  if (!window.arrays().groups.empty())
    fmt::print("  {} prompt groups or topics\n", distinct(window.arrays().groups, INT32_MIN));
  if (!window.arrays().atomic.empty()) fmt::print("  {} atomic groups\n", distinct(window.arrays().atomic, 0));
  fmt::print("{}\n", wrapped(fmt::format(
                         "  expert load per layer: standard deviation over mean (cv) {:.2f} ({:.2f} to {:.2f}), "
                         "hottest expert {:.1f} times the mean\n",
                         skew.cv_mean, skew.cv_min, skew.cv_max, skew.hottest_mean)));
  Table table;
  table.row({"EP ranks", "identity", "LPT", "at best", "layers that need copies", "copies"});
  for (const auto& o : outlooks) {
    table.row({std::to_string(o.ranks), fixed(o.identity, 4), fixed(o.lpt, 4), fixed(o.best, 4),
               std::to_string(o.replication_layers), with_commas(o.copies)});
  }
  fmt::print("expert-parallel efficiency over the whole window that no packing exceeds, by placement:\n{}",
             table.text());
  if (std::ranges::any_of(outlooks, [](const PlacementOutlook& o) { return o.replication_layers > 0; })) {
    fmt::print("{}",
               wrapped("where layers need copies, an expert alone exceeds a rank's fair share there: what «at best» "
                       "lacks to 1 is lost on the expert side whatever the placement, until so many copies of hot "
                       "experts exist\n"));
  }
  return kFine;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  const auto args = std::make_shared<InspectArguments>();
  CLI::App* command = app.add_subcommand("inspect", "Show what is in a window and how much balancing can win");
  command->add_option("WINDOW", args->window, "window file")->required();
  command->add_flag("--json", args->json, "machine-readable result on standard output");
  command->footer(R"(Example:
  routepack inspect examples/windows/mixtral-mmlu-512.safetensors)");
  command->callback([args, &action] { action = [args] { return run_inspect(*args); }; });
}

}  // namespace routepack::cli
