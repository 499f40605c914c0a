// SPDX-License-Identifier: Apache-2.0
#include "cli/compare_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "cli/report.h"

namespace routepack::cli {
namespace {

using Figure = double (*)(const Evaluation&);

double joint_of(const Evaluation& e) {
  return e.score.max_shard;
}
double attention_of(const Evaluation& e) {
  return e.attention;
}
double peaks_of(const Evaluation& e) {
  return static_cast<double>(e.expert_peak_sum);
}
double tail_of(const Evaluation& e) {
  return static_cast<double>(e.tail_peak);
}

struct Change {
  const char* name;
  Figure figure;
  std::optional<double> Average::* mean;
};
constexpr std::array kChanges = {Change{"joint", joint_of, &Average::joint_change},
                                 Change{"attention", attention_of, &Average::attention_change},
                                 Change{"expert_peak_sum", peaks_of, &Average::expert_peak_sum_change},
                                 Change{"tail_peak", tail_of, &Average::tail_peak_change}};

/// Why an entry has no rank, most serious first; empty when it has one.
std::vector<std::string> marks(const Entry& entry) {
  if (!entry.evaluation) return {"no-layout"};
  std::vector<std::string> found;
  if (entry.cells_over_cap > 0) found.emplace_back("over-cap");
  for (const std::string& rule : entry.broken_rules) {
    if (rule != "token-cap" && rule != "oversized") found.push_back(rule);
  }
  if (entry.more_rows) found.emplace_back("more-rows");
  return found;
}

/// The rank, or the first mark in at most four letters.
std::string rank_text(const Entry& entry) {
  if (entry.rank > 0) return std::to_string(entry.rank);
  if (!entry.evaluation) return "none";
  if (entry.cells_over_cap > 0) return "cap";
  return entry.broken_rules.empty() ? "rows" : "rule";
}

std::string percent(std::optional<double> fraction) {
  if (!fraction) return "";
  return fmt::format("{:+.{}f}", 100.0 * *fraction, std::abs(*fraction) < 9.995 ? 1 : 0);
}
std::string short_number(double value, int digits) {
  if (value < 99999.5) return fixed(value, digits);
  return value < 99999999.5 ? fixed(value, 0) : fmt::format("{:.3g}", value);
}
std::string gap_text(double gap) {
  return std::isfinite(gap) ? short_number(100.0 * gap, 1) : "inf";
}

/// A sentence of its own, indented.
std::string sentence(const std::string& text) {
  return wrapped("  " + text + "\n");
}

/// Why an entry is not ranked, in words.
std::string reason_text(const Entry& entry, std::int64_t fewest_rows) {
  if (!entry.evaluation) return "no layout: " + entry.reason;
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : "; ") + what; };
  if (entry.cells_over_cap > 0) {
    add(fmt::format("{} cells over the cap, the fullest with {} tokens", entry.cells_over_cap,
                    with_commas(entry.fullest_cell)));
  }
  for (const std::string& rule : entry.broken_rules) {
    if (rule != "token-cap" && rule != "oversized") add("breaks the rule " + rule);
  }
  if (entry.more_rows) add(fmt::format("{} rows where {} do", entry.rows, fewest_rows));
  return text;
}

std::string notes_text(const WindowComparison& window, const ComparisonPlan& plan, bool clocked) {
  std::string text = sentence(fmt::format(
      "rank by joint; changes against {} of joint, attention, peaks (busiest rank, summed over rows and layers){}; gap "
      "to the bound {:.2f}; ms to place and pack{}",
      plan.baseline.name(), clocked ? "" : " and tail (busiest rank anywhere)", window.bound,
      clocked ? "; the step as simulated" : ""));
  for (const PlacementUse& use : window.placements) {
    text += sentence(fmt::format("{}: {} experts change rank ({:.1f} %), rank load over the step varies by {:.1f} %",
                                 use.name, with_commas(use.moves.experts), 100.0 * use.moves.fraction, 100.0 * use.cv));
  }
  std::vector<std::string> said;  // most reasons are the same under every placement
  const auto say_once = [&](const std::string& what) {
    if (std::ranges::find(said, what) == said.end()) text += sentence(said.emplace_back(what));
  };
  for (const Entry& entry : window.entries) {
    if (entry.dummies_removed > 0) {
      say_once(fmt::format("{}: packed with {} one-token dummies that were taken out again, for equal counts",
                           entry.what.strategy, entry.dummies_removed));
    }
  }
  for (const Entry& entry : window.entries) {
    if (entry.rank > 0) continue;
    say_once(fmt::format("not ranked: {}: {}", entry.what.strategy, reason_text(entry, window.fewest_rows)));
  }
  if (window.of(plan.baseline).rank == 0) text += sentence("take care: the baseline itself is not ranked");
  return text;
}

Json optional_json(std::optional<double> value) {
  return value && std::isfinite(*value) ? Json(*value) : Json();
}

Json entry_json(const Entry& entry, const Entry& baseline, std::int64_t tokens) {
  Json json{{"placement", entry.what.placement}, {"strategy", entry.what.strategy}};
  json["rank"] = entry.rank > 0 ? Json(entry.rank) : Json();
  json["marks"] = marks(entry);
  json["planning_ms"] = entry.planning_ms;
  if (!entry.evaluation) {
    json["reason"] = entry.reason;
    return json;
  }
  const Evaluation& evaluation = *entry.evaluation;
  json["rows"] = entry.rows;
  json["cells_over_cap"] = entry.cells_over_cap;
  json["fullest_cell"] = entry.fullest_cell;
  json["dummies_removed"] = entry.dummies_removed;
  json["score"] = score_json(evaluation.score);
  json["joint"] = evaluation.score.max_shard;
  json["attention"] = evaluation.attention;
  json["ep_efficiency"] = evaluation.ep_efficiency;
  json["expert_peak_sum"] = evaluation.expert_peak_sum;
  json["tail_peak"] = evaluation.tail_peak;
  json["gap"] = optional_json(entry.gap);
  if (entry.step_seconds) {
    json["simulated"] = {{"seconds", *entry.step_seconds},
                         {"tokens_per_second", static_cast<double>(tokens) / *entry.step_seconds}};
  }
  Json change = Json::object();
  for (const Change& of : kChanges) change[of.name] = optional_json(change_of(baseline, entry, of.figure));
  json["change"] = std::move(change);
  return json;
}

Json window_json(const WindowComparison& window, const ComparisonPlan& plan) {
  Json json{{"window", window.path.string()},
            {"samples", window.samples},
            {"tokens", window.tokens},
            {"bound", window.bound},
            {"fewest_rows", window.fewest_rows > 0 ? Json(window.fewest_rows) : Json()},
            {"rows_lower_bound", window.rows_lower_bound ? Json(*window.rows_lower_bound) : Json()}};
  Json placements = Json::array();
  for (const PlacementUse& use : window.placements) {
    Json moves{{"experts", use.moves.experts}, {"fraction", use.moves.fraction}, {"local", use.moves.local}};
    if (use.move_seconds) moves["seconds"] = *use.move_seconds;
    placements.push_back(
        {{"placement", use.name}, {"moves", std::move(moves)}, {"cv_global", use.cv}, {"planning_ms", use.ms}});
  }
  json["placements"] = std::move(placements);
  Json entries = Json::array();
  const Entry& baseline = window.of(plan.baseline);
  for (const Entry& entry : window.entries) entries.push_back(entry_json(entry, baseline, window.tokens));
  json["entries"] = std::move(entries);
  return json;
}

/// A field of a CSV line (RFC 4180).
std::string quoted(std::string text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  for (std::size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) text.insert(at, 1, '"');
  return '"' + text + '"';
}

std::string csv_line(const WindowComparison& window, const Entry& entry, const Entry& baseline) {
  std::string all_marks;
  for (const std::string& mark : marks(entry)) all_marks += (all_marks.empty() ? "" : " ") + mark;
  std::vector<std::string> fields = {window.path.string(), entry.what.placement, entry.what.strategy,
                                     entry.rank > 0 ? std::to_string(entry.rank) : "", all_marks};
  const auto number = [](double value) { return std::isfinite(value) ? fmt::format("{}", value) : "inf"; };
  if (entry.evaluation) {
    const Evaluation& evaluation = *entry.evaluation;
    fields.push_back(std::to_string(entry.rows));
    fields.push_back(std::to_string(entry.cells_over_cap));
    for (const Change& of : kChanges) {
      fields.push_back(number(of.figure(evaluation)));
      const auto change = change_of(baseline, entry, of.figure);
      fields.push_back(change ? number(*change) : "");
    }
    fields.push_back(number(evaluation.ep_efficiency));
    fields.push_back(number(entry.gap));
  } else {
    fields.resize(fields.size() + 4 + 2 * kChanges.size());
  }
  fields.push_back(number(entry.planning_ms));
  const auto use = std::ranges::find(window.placements, entry.what.placement, &PlacementUse::name);
  fields.push_back(std::to_string(use->moves.experts));
  fields.push_back(entry.reason);
  fields.push_back(entry.step_seconds ? number(*entry.step_seconds) : "");
  std::string line;
  for (std::string& field : fields) line += (line.empty() ? "" : ",") + quoted(std::move(field));
  return line + "\n";
}

}  // namespace

std::vector<Average> averages(std::span<const WindowComparison> windows, const ComparisonPlan& plan) {
  std::vector<Average> all;
  for (const Combination& what : plan.combinations) {
    Average& average = all.emplace_back();
    average.what = what;
    std::array<double, kChanges.size()> sums = {};
    std::array<std::int64_t, kChanges.size()> counts = {};
    for (const WindowComparison& window : windows) {
      const Entry& entry = window.of(what);
      if (entry.rank == 0) continue;
      ++average.ranked;
      average.best += entry.rank == 1 ? 1 : 0;
      average.ep_efficiency += entry.evaluation->ep_efficiency;
      average.gap += entry.gap;
      average.planning_ms += entry.planning_ms;
      const Entry& baseline = window.of(plan.baseline);
      for (std::size_t c = 0; c < kChanges.size(); ++c) {
        const auto change = baseline.rank == 0 ? std::nullopt : change_of(baseline, entry, kChanges[c].figure);
        if (!change) continue;
        sums[c] += *change;
        ++counts[c];
      }
    }
    if (average.ranked == 0) continue;
    const auto n = static_cast<double>(average.ranked);
    average.ep_efficiency /= n;
    average.gap /= n;
    average.planning_ms /= n;
    for (std::size_t c = 0; c < kChanges.size(); ++c) {
      if (counts[c] > 0) average.*kChanges[c].mean = sums[c] / static_cast<double>(counts[c]);
    }
  }
  return all;
}

std::string window_text(const WindowComparison& window, const ComparisonPlan& plan) {
  Table table;
  const bool clocked = std::ranges::any_of(window.entries, [](const Entry& e) { return e.step_seconds.has_value(); });
  std::vector<std::string> names = {"", "rank", "rows", "joint", "joint %", "attn %", "EP eff", "peaks %"};
  if (!clocked) names.emplace_back("tail %");  // makes room for the step: 100 columns
  names.insert(names.end(), {"gap %", "ms"});
  if (clocked) names.emplace_back("step ms");
  table.row(std::move(names));
  const Entry& baseline = window.of(plan.baseline);
  std::string placement;
  for (const Entry& entry : window.entries) {
    if (entry.what.placement != placement) table.row({placement = entry.what.placement});
    std::vector<std::string> cells = {"  " + entry.what.strategy, rank_text(entry)};
    if (entry.evaluation) {
      cells.push_back(std::to_string(entry.rows));
      cells.push_back(short_number(joint_of(*entry.evaluation), 2));
      cells.push_back(percent(change_of(baseline, entry, joint_of)));
      cells.push_back(percent(change_of(baseline, entry, attention_of)));
      cells.push_back(fixed(entry.evaluation->ep_efficiency, 3));
      cells.push_back(percent(change_of(baseline, entry, peaks_of)));
      if (!clocked) cells.push_back(percent(change_of(baseline, entry, tail_of)));
      cells.push_back(gap_text(entry.gap));
      cells.push_back(short_number(entry.planning_ms, 1));
      if (entry.step_seconds) cells.push_back(short_number(1e3 * *entry.step_seconds, 1));
    }
    table.row(std::move(cells));
  }
  std::string head = fmt::format("{} samples, {} tokens", with_commas(window.samples), with_commas(window.tokens));
  if (window.fewest_rows > 0) head += fmt::format("; {} row{}", window.fewest_rows, window.fewest_rows == 1 ? "" : "s");
  if (window.rows_lower_bound) {
    head += *window.rows_lower_bound == window.fewest_rows
                ? ", no fewer exist"
                : fmt::format(", at least {} needed", *window.rows_lower_bound);
  }
  return fmt::format("{}\n  {}\n\n{}\n{}", window.path.string(), head, table.text(), notes_text(window, plan, clocked));
}

std::string summary_text(std::span<const WindowComparison> windows, const ComparisonPlan& plan) {
  Table table;
  table.row({"", "ranked", "best", "joint %", "attn %", "EP eff", "peaks %", "tail %", "gap %", "ms"});
  std::string placement;
  for (const Average& average : averages(windows, plan)) {
    if (average.what.placement != placement) table.row({placement = average.what.placement});
    std::vector<std::string> cells = {"  " + average.what.strategy, std::to_string(average.ranked)};
    if (average.ranked > 0) {
      cells.push_back(std::to_string(average.best));
      cells.push_back(percent(average.joint_change));
      cells.push_back(percent(average.attention_change));
      cells.push_back(fixed(average.ep_efficiency, 3));
      cells.push_back(percent(average.expert_peak_sum_change));
      cells.push_back(percent(average.tail_peak_change));
      cells.push_back(gap_text(average.gap));
      cells.push_back(short_number(average.planning_ms, 1));
    }
    table.row(std::move(cells));
  }
  std::string text = fmt::format("means over {} windows\n\n{}\n", windows.size(), table.text());
  text +=
      sentence(fmt::format("over the windows where it is ranked, in % against {} where that is ranked too; compare "
                           "only strategies that are ranked equally often",
                           plan.baseline.name()));
  if (!plan.steps) return text;
  for (const PlacementUse& use : windows.front().placements) {
    std::string per_step;
    std::int64_t later = 0;
    for (const WindowComparison& window : windows) {
      const auto same = std::ranges::find(window.placements, use.name, &PlacementUse::name);
      per_step += fmt::format("{}{}", per_step.empty() ? "" : ", ", with_commas(same->moves.experts));
      if (&window != &windows.front()) later += same->moves.experts;
    }
    const double mean = windows.size() < 2 ? 0.0 : static_cast<double>(later) / static_cast<double>(windows.size() - 1);
    text += sentence(fmt::format("{}: experts that change rank, step by step: {} (mean after the first {:.1f})",
                                 use.name, per_step, mean));
  }
  return text;
}

Json comparison_json(std::span<const WindowComparison> windows, const ComparisonPlan& plan) {
  Json json{{"format", "routepack.compare/1"}, {"baseline", plan.baseline.name()}, {"steps", plan.steps}};
  json["windows"] = Json::array();
  for (const WindowComparison& window : windows) json["windows"].push_back(window_json(window, plan));
  json["summary"] = Json::array();
  for (const Average& average : averages(windows, plan)) {
    Json entry{{"placement", average.what.placement},
               {"strategy", average.what.strategy},
               {"windows", windows.size()},
               {"ranked", average.ranked},
               {"best", average.best}};
    if (average.ranked > 0) {
      entry["ep_efficiency"] = average.ep_efficiency;
      entry["gap"] = optional_json(average.gap);
      entry["planning_ms"] = average.planning_ms;
      Json change = Json::object();
      for (const Change& of : kChanges) change[of.name] = optional_json(average.*of.mean);
      entry["change"] = std::move(change);
    }
    json["summary"].push_back(std::move(entry));
  }
  return json;
}

std::string comparison_csv(std::span<const WindowComparison> windows, const ComparisonPlan& plan) {
  std::string text = "window,placement,strategy,rank,marks,rows,cells_over_cap";
  for (const Change& of : kChanges) text += fmt::format(",{},{}_change", of.name, of.name);
  text += ",ep_efficiency,gap,planning_ms,moved_experts,reason,simulated_seconds\n";
  for (const WindowComparison& window : windows) {
    for (const Entry& entry : window.entries) text += csv_line(window, entry, window.of(plan.baseline));
  }
  return text;
}

}  // namespace routepack::cli
