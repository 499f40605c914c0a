// SPDX-License-Identifier: Apache-2.0
// What is known about a plan beyond the plan itself.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "bindings.h"
#include "buffer.h"
#include "core/json.h"
#include "cost/row_cost.h"
#include "plan_object.h"
#include "routepack/error.h"

namespace routepack::python {
namespace {

template <class Enum>
Enum choice_of(const std::string& name) {
  for (const auto& choice : choices(Enum{})) {
    if (choice.name == name) return choice.value;
  }
  throw FormatError(name);
}

/// What `read` makes of the plan's text, when that has what `read` looks for. Writers of plans other than routepack
/// may leave reports out, or put something else there.
template <class Report, class Read>
std::optional<Report> from_text(const PlanObject& plan, Read read) {
  try {
    return read(parse_json(plan.text(), plan.source));
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

MoveList read_moves(const Json& moves) {
  MoveList list;
  list.between_nodes = moves.at("between_nodes").get<std::int64_t>();
  list.same_index = moves.at("same_index").get<std::int64_t>();
  const Json& in = moves.at("bytes_in");
  const Json& out = moves.at("bytes_out");
  for (std::size_t p = 0; p < in.size(); ++p) {
    list.ranks.push_back({in.at(p).get<std::int64_t>(), out.at(p).get<std::int64_t>()});
  }
  const Json& cycles = moves.at("cycles");
  for (std::size_t l = 0; l < cycles.size(); ++l) {
    for (const Json& slots : cycles.at(l)) {
      list.cycles.push_back({LayerId(static_cast<std::int32_t>(l)), slots.get<std::vector<std::int32_t>>()});
    }
  }
  return list;
}

PlacementReport read_placing(const Json& document, std::int32_t ranks, const std::string& source) {
  const Json& from = document.at("placing");
  PlacementReport report;
  report.sticky_swaps = from.at("sticky_swaps").get<std::int64_t>();
  report.swaps_needed = from.at("swaps_needed").get<std::int64_t>();
  report.row_aware_swaps = from.at("row_aware_swaps").get<std::int64_t>();
  for (const Json& end : from.at("layers")) report.layers.push_back(choice_of<LayerEnd>(end.get<std::string>()));
  report.moves = read_moves(document.at("moves"));
  if (const auto batch = document.find("first_batch"); batch != document.end()) {
    std::vector<std::vector<ExpertId>> maps;
    for (const Json& layer : batch->at("physical_to_logical")) {
      auto& map = maps.emplace_back();
      for (const Json& expert : layer) map.emplace_back(std::max(0, expert.get<std::int32_t>()));
    }
    report.first_batch = Placement::from_maps(ranks, std::move(maps), source);
  }
  return report;
}

SearchReport read_search(const Json& from) {
  return {.ending = choice_of<Ending>(from.at("ending").get<std::string>()),
          .seed = from.at("seed").get<double>(),
          .seeds = from.at("seeds").get<std::int64_t>(),
          .failed_seeds = from.at("failed_seeds").get<std::int64_t>(),
          .levels = from.at("levels").get<std::int64_t>(),
          .proposals = from.at("proposals").get<std::int64_t>(),
          .accepted = from.at("accepted").get<std::int64_t>()};
}

template <class Value>
nb::object traffic(const PlacementReport& report, Value value) {
  std::vector<std::int64_t> bytes;
  for (const RankTraffic& rank : report.moves.ranks) bytes.push_back(value(rank));
  const std::size_t ranks = bytes.size();
  return numpy_array(std::move(bytes), {ranks});
}

template <class T, class Value>
nb::object per_layer(const Bounds& bounds, Value value) {
  std::vector<T> all;
  for (const LayerBound& layer : bounds.layers) all.push_back(value(layer));
  const std::size_t layers = all.size();
  return numpy_array(std::move(all), {layers});
}

}  // namespace

std::optional<SearchReport> search_of(const PlanObject& plan) {
  if (plan.search) return plan.search;
  return from_text<SearchReport>(plan, [](const Json& document) { return read_search(document.at("search")); });
}

std::optional<PlacementReport> placing_of(const PlanObject& plan) {
  if (plan.placing) return plan.placing;
  return from_text<PlacementReport>(plan,
                                    [&](const Json& document) { return read_placing(document, plan.ep, plan.source); });
}

std::vector<std::int64_t> rank_loads(const PlanObject& plan, const Window& window) {
  const CheckedPlan checked = check_record(plan, window);
  const Instance& instance = checked.instance;
  const auto pad_rates = pad_rank_rates(window, checked.placement);
  const auto width = static_cast<std::size_t>(std::int64_t{window.layers()} * instance.topology.ranks());
  const auto shards = static_cast<std::size_t>(instance.topology.shards());
  std::vector<std::int64_t> all(static_cast<std::size_t>(checked.layout.rows()) * shards * width);
  auto at = all.begin();
  for (const RowId r : checked.layout.row_ids()) {
    for (const ShardId g : instance.topology.shard_ids()) {
      const std::span<std::int64_t> loads(at, width);
      std::int64_t pads = 0;
      for (const SlotId d : instance.topology.slots_of(g)) {
        std::int64_t aligned = 0;
        for (const SampleId i : checked.layout.cell(r, d)) {
          aligned += instance.aligned_length(i);
          pads -= window.length(i);
          add_rank_loads(window, checked.placement, i, loads);
        }
        pads += instance.aligned_cell(aligned);
      }
      if (!pad_rates.empty()) add_pad_loads(pad_rates, pads, loads);
      at += static_cast<std::ptrdiff_t>(width);
    }
  }
  return all;
}

nb::dict metrics_of(const PlanObject& plan) {
  nb::dict all;
  const auto add = [&](std::string_view name, double value) {
    all[nb::str(fmt::format("routepack/{}", name).c_str())] = value;
  };
  const auto whole = [&](std::string_view name, std::int64_t value) { add(name, static_cast<double>(value)); };
  for (const auto& [name, value] : plan.metrics) add(name, value);
  if (plan.score) {
    add("total", plan.score->total);
    add("worst_row", plan.score->worst_row);
  }
  if (plan.bound) add("bound", *plan.bound);
  if (plan.bound_fixed_placement) add("bound_fixed_placement", *plan.bound_fixed_placement);
  whole("rows", plan.rows);
  if (plan.rows_lower_bound) whole("rows_lower_bound", *plan.rows_lower_bound);
  whole("dummies", plan.dummies);
  whole("complete", plan.complete ? 1 : 0);
  if (plan.moves) {
    whole("moved_experts", plan.moves->experts);
    add("moved_fraction", plan.moves->fraction);
    whole("moved_local", plan.moves->local);
    if (plan.moves->bytes) whole("moved_bytes", *plan.moves->bytes);
  }
  if (plan.search) {
    add("search_seed", plan.search->seed);
    whole("search_proposals", plan.search->proposals);
    whole("search_accepted", plan.search->accepted);
  }
  for (const auto& [name, ms] : plan.timings_ms) add("ms_" + name, ms);
  return all;
}

void bind_plan_reports(nb::module_& module) {
  nb::class_<SearchReport>(module, "SearchReport", "What the search for a layout did.")
      .def_prop_ro(
          "ending", [](const SearchReport& self) { return std::string(name_of(self.ending)); },
          "'budget', 'bound reached', 'nothing to move' or 'stopped'")
      .def_ro("seed", &SearchReport::seed, "First component of the score of the best layout to start from")
      .def_ro("seeds", &SearchReport::seeds, "Different layouts to start from")
      .def_ro("failed_seeds", &SearchReport::failed_seeds, "Trials given up")
      .def_ro("levels", &SearchReport::levels, "Temperatures passed")
      .def_ro("proposals", &SearchReport::proposals, "Moves priced")
      .def_ro("accepted", &SearchReport::accepted, "Moves made")
      .def("__repr__", [](const SearchReport& self) {
        return fmt::format("<routepack.SearchReport: from {:.2f}, {} moves tried, {} made, {}>", self.seed,
                           self.proposals, self.accepted, name_of(self.ending));
      });
  nb::class_<PlacementReport>(module, "PlacementReport",
                              "What placing the experts did, and how to get there from where they were.")
      .def_prop_ro(
          "layers",
          [](const PlacementReport& self) {
            std::vector<std::string> names;
            for (const LayerEnd end : self.layers) names.emplace_back(name_of(end));
            return names;
          },
          "Why each layer ended: 'kept', 'balanced', 'hot expert', 'budget' or 'no swap helps'; empty when experts "
          "were kept or placed afresh")
      .def_ro("sticky_swaps", &PlacementReport::sticky_swaps, "Swaps that balance the whole window")
      .def_ro("swaps_needed", &PlacementReport::swaps_needed, "No fewer swaps do that")
      .def_ro("row_aware_swaps", &PlacementReport::row_aware_swaps, "Swaps that suit the rows")
      .def_prop_ro(
          "cycles",
          [](const PlacementReport& self) {
            std::vector<std::pair<std::int32_t, std::vector<std::int32_t>>> cycles;
            for (const MoveCycle& cycle : self.moves.cycles) cycles.emplace_back(cycle.layer.value(), cycle.slots);
            return cycles;
          },
          "(layer, slots): the expert in slots[k] goes to slots[k + 1], the last to the first")
      .def_prop_ro(
          "bytes_in",
          [](const PlacementReport& self) { return traffic(self, [](const RankTraffic& rank) { return rank.in; }); },
          nb::sig("def bytes_in(self) -> numpy.typing.NDArray[numpy.int64]"),
          "int64 [P]: bytes into each rank; zeros when nobody said what an expert weighs")
      .def_prop_ro(
          "bytes_out",
          [](const PlacementReport& self) { return traffic(self, [](const RankTraffic& rank) { return rank.out; }); },
          nb::sig("def bytes_out(self) -> numpy.typing.NDArray[numpy.int64]"), "int64 [P]: bytes out of each rank")
      .def_prop_ro(
          "between_nodes", [](const PlacementReport& self) { return self.moves.between_nodes; },
          "Moved experts that leave their node")
      .def_prop_ro(
          "same_index", [](const PlacementReport& self) { return self.moves.same_index; },
          "Moved experts that keep their local slot")
      .def_ro("first_batch", &PlacementReport::first_batch,
              "With two_batches: where experts are after the sticky moves")
      .def("__repr__", [](const PlacementReport& self) {
        return fmt::format("<routepack.PlacementReport: {} swaps for the window, {} for the rows>", self.sticky_swaps,
                           self.row_aware_swaps);
      });
  nb::class_<Bounds>(module, "Bounds", "What no layout can beat, and why. Arrays are [L], in routed tokens.")
      .def_ro("fixed_placement", &Bounds::fixed_placement, "Over every packing under the plan's placement")
      .def_ro("any_placement", &Bounds::any_placement, "Over every packing and every placement")
      .def_ro("balanced", &Bounds::balanced, "The same if every rank could get the mean")
      .def_prop_ro(
          "placed_peak",
          [](const Bounds& self) {
            return per_layer<std::int64_t>(self, [](const LayerBound& layer) { return layer.placed_peak; });
          },
          nb::sig("def placed_peak(self) -> numpy.typing.NDArray[numpy.int64]"),
          "Load of the busiest rank over the window")
      .def_prop_ro(
          "rank_mean",
          [](const Bounds& self) {
            return per_layer<std::int64_t>(self, [](const LayerBound& layer) { return layer.rank_mean; });
          },
          nb::sig("def rank_mean(self) -> numpy.typing.NDArray[numpy.int64]"), "Mean load of a rank, rounded up")
      .def_prop_ro(
          "least_peak",
          [](const Bounds& self) {
            return per_layer<std::int64_t>(self, [](const LayerBound& layer) { return layer.any_placement; });
          },
          nb::sig("def least_peak(self) -> numpy.typing.NDArray[numpy.int64]"),
          "The least peak that some placement might reach")
      .def_prop_ro(
          "copies_needed",
          [](const Bounds& self) {
            return per_layer<std::int64_t>(self, [](const LayerBound& layer) { return layer.copies_needed; });
          },
          nb::sig("def copies_needed(self) -> numpy.typing.NDArray[numpy.int64]"),
          "Copies of hot experts without which no rank gets down to the mean")
      .def_prop_ro("layers_that_need_replication", &Bounds::layers_that_need_replication,
                   "Layers in which one expert is hotter than a rank's fair share");
}

}  // namespace routepack::python
