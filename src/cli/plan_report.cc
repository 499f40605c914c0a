// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <variant>

#include "cli/report.h"

namespace routepack::cli {
namespace {

/// Bytes into or out of the rank that sends or receives most.
std::int64_t busiest_rank(const Plan& plan) {
  std::int64_t busiest = 0;
  for (const RankTraffic& rank : plan.placing.moves.ranks) busiest = std::max({busiest, rank.in, rank.out});
  return busiest;
}

bool bytes_are_limited(const Plan& plan) {
  return plan.placing.budget && plan.placing.budget->rank_bytes;
}

/// Experts that may change rank.
std::int64_t most_experts(const Planned& planned, const MoveBudget& budget) {
  const Window& window = planned.instance->window;
  return budget.most_experts(std::int64_t{window.layers()} * window.experts());
}

Json limits_json(const Planned& planned, const MoveBudget& budget) {
  Json json{{"experts", most_experts(planned, budget)},
            {"price", budget.price},
            {"price_between_nodes", budget.price_between_nodes}};
  if (budget.rank_bytes) json["rank_bytes"] = *budget.rank_bytes;
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
  table.row({"spread of rank loads over the step (cv)", fixed(planned.plan.cv_global_before, 4),
             fixed(planned.plan.cv_global, 4)});
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

/// The limits on moves with what they left, and the price in effect. A swap moves two experts.
std::string limits_text(const Planned& planned) {
  const auto& budget = planned.plan.placing.budget;
  if (!budget) return "";
  const PlanParams& params = *planned.record.params;
  std::string text;
  if (budget->share < 1.0) {
    const std::int64_t moved = planned.plan.moves.experts;
    const std::int64_t most = most_experts(planned, *budget);
    text += fmt::format("  limit: {} of {} experts moved{}\n", with_commas(moved), with_commas(most),
                        moved + 2 > most ? ", used up: no further swap fits" : "");
  }
  if (budget->rank_bytes) {
    const std::int64_t busiest = busiest_rank(planned.plan);
    text +=
        fmt::format("  limit: {} of {} bytes into or out of the busiest rank{}\n", with_commas(busiest),
                    with_commas(*budget->rank_bytes),
                    busiest + bytes_of_expert(params) > *budget->rank_bytes ? ", used up: no further expert fits" : "");
  }
  if (budget->price == 0.0 && budget->price_between_nodes == 0.0) return text;
  const bool rated = params.link_gbytes > 0.0;
  const char* why = rated                  ? "from --link-gbytes and --tflops"
                    : params.moves.empty() ? "the default; --moves says otherwise"
                                           : "from --moves";
  const std::string far = budget->price == budget->price_between_nodes
                              ? std::string()
                              : fmt::format(", {:.4g} to another node", budget->price_between_nodes);
  return text + fmt::format("  price: a moved expert has to bring {:.4g} of the joint objective{} ({})\n",
                            budget->price, far, why);
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
  if (!planned.record.params->model.empty()) {
    print("  moves: an expert weighs {} bytes, as {} does with {} + {}/{} bytes per parameter\n",
          with_commas(bytes_of_expert(*planned.record.params)), planned.record.params->model,
          planned.record.params->weight_bytes, planned.record.params->optimizer_bytes,
          planned.record.params->optimizer_shards);
  }
  if (const std::int64_t busiest = busiest_rank(plan); busiest > 0 && !bytes_are_limited(plan)) {
    print("  moves: no rank sends or receives more than {} bytes\n", with_commas(busiest));
  }
  print("{}", limits_text(planned));
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
  if (!planned.sent_bytes.empty()) {
    std::int64_t sent = 0;
    for (const auto& [name, bytes] : planned.sent_bytes) sent += bytes;
    print("  rank 0 sent {} bytes\n", with_commas(sent));
  }
  return wrapped(text) + fmt::format("  plan: {}  {}\n", planned.plan_path.string(), planned.hash);
}

}  // namespace

std::optional<Baseline> baseline(const Instance& instance, const Placement& current, Communicator* team) {
  const auto layout = pack_first_fit_decreasing(instance);
  if (std::holds_alternative<Infeasible>(layout)) return std::nullopt;
  const Layout& rows = std::get<Layout>(layout);
  return Baseline{rows.rows(),
                  team == nullptr ? evaluate(instance, current, rows) : evaluate(instance, current, rows, *team)};
}

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
  if (const auto& budget = planned.plan.placing.budget) json["moves"]["limits"] = limits_json(planned, *budget);
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
  if (!planned.sent_bytes.empty()) {
    Json sent = Json::object();
    for (const auto& [name, bytes] : planned.sent_bytes) sent[name] = bytes;
    json["sent_bytes"] = sent;
  }
  if (planned.before) {
    json["baseline"] = {{"rows", planned.before->rows},
                        {"score", score_json(planned.before->evaluation.score)},
                        {"metrics", metrics_json(planned.before->evaluation, planned.plan.cv_global_before)}};
  }
  return json;
}

std::string planned_text(const Planned& planned) {
  const Instance& instance = *planned.instance;
  const Window& window = instance.window;
  std::int64_t tokens = 0;
  for (const SampleId i : window.sample_ids()) tokens += window.length(i);
  return headed(
             planned.window_path.string(),
             fmt::format("{} samples, {} tokens, {} MoE layers of {} experts, top {}\n", with_commas(window.samples()),
                         with_commas(tokens), window.layers(), window.experts(), window.top_k())) +
         fmt::format("  {} slots in {} shard{}, {} EP ranks, cap {}, sync {}\n\n", instance.topology.slots(),
                     instance.topology.shards(), instance.topology.shards() == 1 ? "" : "s", instance.topology.ranks(),
                     with_commas(instance.capacity), name_of(instance.sync)) +
         comparison_text(planned) + "  before = experts where they are now, samples by length alone (first fit)\n\n" +
         notes_text(planned);
}

}  // namespace routepack::cli
