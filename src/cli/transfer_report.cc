// SPDX-License-Identifier: Apache-2.0
#include "cli/transfer_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "cli/report.h"

namespace routepack::cli {
namespace {

/// 12345678 → «12.3 MB», in powers of 1000 as link rates are.
std::string size_text(std::int64_t bytes) {
  constexpr std::array kUnits = {"B", "KB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{} {}", fixed(value, digits), kUnits[unit]);
}

std::string time_text(double seconds) {
  if (seconds < 1.0) return fmt::format("{} ms", fixed(1e3 * seconds, seconds < 0.01 ? 2 : 1));
  return fmt::format("{} s", fixed(seconds, seconds < 10.0 ? 2 : 1));
}

std::int64_t sent(const LinkTraffic& traffic) {
  return traffic.across_ep + traffic.within_edp + traffic.across_both;
}

/// One number of every rank.
struct Range {
  std::int64_t least = 0, most = 0, most_rank = 0;
  double mean = 0.0;
  Range(std::span<const RankLoad> ranks, const std::function<std::int64_t(const RankLoad&)>& value) {
    least = most = value(ranks.front());
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const std::int64_t of_rank = value(ranks[r]);
      least = std::min(least, of_rank);
      if (of_rank > most) {
        most = of_rank;
        most_rank = static_cast<std::int64_t>(r);
      }
      mean += static_cast<double>(of_rank) / static_cast<double>(ranks.size());
    }
  }
  [[nodiscard]] Json json() const { return {{"min", least}, {"mean", mean}, {"max", most}, {"max_rank", most_rank}}; }
  [[nodiscard]] std::vector<std::string> row(const std::string& name) const {
    return {name, size_text(least), size_text(static_cast<std::int64_t>(mean)), size_text(most),
            fmt::format("rank {}", most_rank)};
  }
};

struct Ranges {
  Range out, in, layer, step;
  explicit Ranges(const TrafficForecast& forecast)
      : out(forecast.ranks, [](const RankLoad& r) { return sent(r.out); }),
        in(forecast.ranks, [](const RankLoad& r) { return sent(r.in); }),
        layer(forecast.ranks, [](const RankLoad& r) { return r.staging_peak; }),
        step(forecast.ranks, [](const RankLoad& r) { return r.staging_total; }) {}
};

Json grid_json(const GridLayout& layout) {
  return {{"ep", layout.grid().ep}, {"edp", layout.grid().edp}, {"ranks", layout.grid().ranks()}};
}

std::string grid_text(const GridLayout& layout) {
  return fmt::format("EP {} x EDP {} = {} ranks, {} layers of {} experts, {} an expert on all lanes", layout.grid().ep,
                     layout.grid().edp, layout.grid().ranks(), layout.layers(), layout.experts(),
                     size_text(bytes_of_one_expert(layout)));
}

double share(std::int64_t part, std::int64_t all) {
  return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0.0;
}

}  // namespace

std::int64_t bytes_of_one_expert(const GridLayout& layout) {
  std::int64_t bytes = 0;
  for (const ExpertTensor& tensor : layout.tensors().first(static_cast<std::size_t>(layout.canary()))) {
    if (tensor.spread == Spread::Equal) continue;
    bytes += tensor.bytes() * (tensor.spread == Spread::Replicated ? layout.grid().edp : 1);
  }
  return bytes;
}

Json dry_run_json(const DryRun& run, const GridLayout& layout, const TrafficForecast& forecast) {
  const Ranges ranges(forecast);
  const LinkTraffic& total = forecast.total;
  const std::int64_t all = std::int64_t{layout.layers()} * layout.experts();
  Json json = {{"from", run.from},
               {"to", run.to},
               {"state", run.state},
               {"layout_fingerprint", layout.fingerprint()},
               {"grid", grid_json(layout)},
               {"layers", layout.layers()},
               {"experts", layout.experts()},
               {"expert_bytes", bytes_of_one_expert(layout)},
               {"route", name_of(run.route)},
               {"atomic", name_of(run.atomic)},
               {"moves",
                {{"experts", forecast.moved_experts},
                 {"fraction", share(forecast.moved_experts, all)},
                 {"local", forecast.local_experts},
                 {"layers", forecast.layers}}},
               {"bytes",
                {{"across_ep", total.across_ep},
                 {"within_edp", total.within_edp},
                 {"across_both", total.across_both},
                 {"local", total.local},
                 {"overhead", total.overhead}}},
               {"messages", total.messages},
               {"rank_bytes", {{"out", ranges.out.json()}, {"in", ranges.in.json()}}},
               {"staging_bytes", {{"layer", ranges.layer.json()}, {"step", ranges.step.json()}}}};
  if (run.by_node) json["bytes"]["between_nodes"] = total.between_nodes;
  if (run.timed) json["seconds"] = forecast.seconds;
  return json;
}

std::string dry_run_text(const DryRun& run, const GridLayout& layout, const TrafficForecast& forecast) {
  const Ranges ranges(forecast);
  const LinkTraffic& total = forecast.total;
  const std::int64_t all = std::int64_t{layout.layers()} * layout.experts();
  std::string text = headed(fmt::format("{} -> {}", run.from, run.to), "dry run, nothing moves\n");
  text += wrapped(fmt::format("  {}: {}\n", run.state, grid_text(layout)), 4);
  text += wrapped(fmt::format("  moves: {} of {} experts change rank ({} %), {} only their slot, in {} layers\n",
                              with_commas(forecast.moved_experts), with_commas(all),
                              fixed(100.0 * share(forecast.moved_experts, all), 1), with_commas(forecast.local_experts),
                              forecast.layers),
                  4);
  Table links;
  links.row({"link", "bytes", ""});
  const std::int64_t on_links = sent(total);
  const auto link = [&](const char* name, std::int64_t bytes) {
    links.row({name, with_commas(bytes),
               bytes > 0 && on_links > 0 ? fmt::format("{} %", fixed(100.0 * share(bytes, on_links), 1)) : ""});
  };
  link("to another EP rank, same lane", total.across_ep);
  link("to another lane, same EP rank", total.within_edp);
  if (run.route == Route::Direct) link("to another lane of another EP rank", total.across_both);
  if (run.by_node) link("of these, to another node", total.between_nodes);
  links.row({"inside a rank", with_commas(total.local), ""});
  links.row({"checksums and canaries", with_commas(total.overhead), ""});
  text += "\n" + links.text();
  text += wrapped(fmt::format("  route {}: {} messages, before large ones are cut\n", name_of(run.route),
                              with_commas(total.messages)),
                  4);
  Table busy;
  busy.row({"of one rank", "least", "mean", "most", ""});
  busy.row(ranges.out.row("sends"));
  busy.row(ranges.in.row("receives"));
  const bool by_step = run.atomic == Atomic::Step;
  busy.row(by_step ? ranges.step.row("staging, atomic step") : ranges.layer.row("staging, atomic layer"));
  busy.row(by_step ? ranges.layer.row("(atomic layer)") : ranges.step.row("(atomic step)"));
  text += "\n" + busy.text();
  if (run.timed) {
    text += wrapped(fmt::format("  time at these rates: {}, the busiest rank of every layer and hop\n",
                                time_text(forecast.seconds)),
                    4);
  }
  return text;
}

Json self_test_json(const std::string& backend, const GridLayout& layout, const SelfTestOptions& options,
                    const SelfTestReport& report) {
  Json json = {{"verified", report.verified},
               {"backend", backend},
               {"grid", grid_json(layout)},
               {"layers", layout.layers()},
               {"experts", layout.experts()},
               {"expert_bytes", bytes_of_one_expert(layout)},
               {"layout_fingerprint", layout.fingerprint()},
               {"route", name_of(options.transfer.route)},
               {"atomic", name_of(options.transfer.atomic)},
               {"read_back", options.transfer.read_back},
               {"seed", options.seed},
               {"moves", report.moves},
               {"state_bytes", report.state_bytes},
               {"moved_bytes", report.bytes},
               {"sent_bytes", report.bytes_sent},
               {"staging_bytes", report.staging_bytes},
               {"staging_promised", report.staging_promised},
               {"seconds", report.seconds},
               {"phases",
                {{"prepare", report.prepare_seconds},
                 {"transfer", report.transfer_seconds},
                 {"verify", report.verify_seconds},
                 {"commit", report.commit_seconds},
                 {"confirm", report.confirm_seconds}}},
               {"check_seconds", report.check_seconds},
               {"bare_seconds", report.bare_seconds},
               {"gbytes_per_second", report.bytes_per_second() / 1e9},
               {"share_of_bare_copy", report.bare_share()}};
  if (report.problem) json["problem"] = printable(*report.problem);
  return json;
}

std::string self_test_text(const std::string& backend, const GridLayout& layout, const SelfTestOptions& options,
                           const SelfTestReport& report) {
  std::string text = wrapped(fmt::format("self-test over {}: {}; route {}, atomic {}{}\n", backend, grid_text(layout),
                                         name_of(options.transfer.route), name_of(options.transfer.atomic),
                                         options.transfer.read_back ? ", written bytes read back" : ""),
                             4);
  if (report.verified) {
    text += wrapped(fmt::format("  verified: every byte on every rank, after each of {} moves; traffic and staging as "
                                "forecast\n",
                                report.moves),
                    4);
  } else {
    text += wrapped(fmt::format("  FAILED after {} verified moves: {}\n", report.moves,
                                one_line(report.problem.value_or("no rank said why"))),
                    4);
  }
  if (report.moves == 0) return text;
  Table table;
  const auto phase = [](double seconds) { return time_text(seconds); };
  table.row({"state of all ranks", size_text(report.state_bytes)});
  table.row({"moved", size_text(report.bytes)});
  table.row({"of it to another rank", size_text(report.bytes_sent)});
  table.row({"staging of a rank, at most", size_text(report.staging_bytes)});
  table.row({"time", time_text(report.seconds)});
  table.row({"  prepare", phase(report.prepare_seconds)});
  table.row({"  transfer", phase(report.transfer_seconds)});
  table.row({"  verify", phase(report.verify_seconds)});
  table.row({"  commit", phase(report.commit_seconds)});
  table.row({"  confirm", phase(report.confirm_seconds)});
  text += "\n" + table.text();
  text += wrapped(fmt::format("  speed: {} GB/s, {} % of a bare copy of the same bytes\n",
                              fixed(report.bytes_per_second() / 1e9, 2), fixed(100.0 * report.bare_share(), 0)),
                  4);
  return text;
}

}  // namespace routepack::cli
