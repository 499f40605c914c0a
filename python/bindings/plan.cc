// SPDX-License-Identifier: Apache-2.0
#include "routepack/plan.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "bindings.h"
#include "buffer.h"
#include "core/file.h"
#include "plan_object.h"
#include "routepack/error.h"
#include "routepack/plan_file.h"
#include "routepack/verify.h"
#include "routepack/window.h"

namespace routepack::python {
namespace {

PlanObject parse(std::string text, const std::string& source) {
  const nb::gil_scoped_release unlocked;
  PlanRecord record = parse_plan(text, source);
  return {std::move(record), std::move(text)};
}

PlanObject load(const std::filesystem::path& path) {
  std::string text;
  {
    const nb::gil_scoped_release unlocked;
    text = read_text(path);
  }
  return parse(std::move(text), path.string());
}

/// For each sample, the row (or slot) in which it trains.
nb::object place_of_samples(const PlanObject& record, bool row_wanted) {
  std::size_t samples = 0;
  for (const auto& row : record.layout) {
    for (const auto& cell : row) samples += cell.size();
  }
  std::vector<std::int32_t> places(samples, -1);
  for (std::size_t r = 0; r < record.layout.size(); ++r) {
    for (std::size_t d = 0; d < record.layout[r].size(); ++d) {
      for (const std::int32_t i : record.layout[r][d]) {
        if (i < 0 || static_cast<std::size_t>(i) >= samples) {
          throw InvalidInput(
              fmt::format("{}: layout[{}][{}]: found sample {}, wanted 0 to {}", record.source, r, d, i, samples - 1));
        }
        places[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(row_wanted ? r : d);
      }
    }
  }
  return numpy_array(std::move(places), {samples});
}

nb::dict dict_of(const std::vector<std::pair<std::string, double>>& pairs) {
  nb::dict all;
  for (const auto& [name, value] : pairs) all[name.c_str()] = value;
  return all;
}

nb::tuple triple(const Score& score) {
  return nb::make_tuple(score.max_shard, score.total, score.worst_row);
}

nb::object moves_of(const PlanObject& record) {
  if (!record.moves) return nb::none();
  nb::dict moves;
  moves["experts"] = record.moves->experts;
  moves["local"] = record.moves->local;
  moves["fraction"] = record.moves->fraction;
  if (record.moves->bytes) moves["bytes"] = *record.moves->bytes;
  return moves;
}

std::vector<std::pair<std::string, std::string>> verify_plan(const PlanObject& record, const Window& window) {
  std::vector<std::pair<std::string, std::string>> violations;
  for (const Violation& violation : verify(window, record).violations) {
    violations.emplace_back(violation.rule, violation.message);
  }
  return violations;
}

}  // namespace

Placement placement_of(const PlanObject& record) {
  std::vector<std::vector<ExpertId>> maps;
  for (const auto& layer : record.physical_to_logical) {
    for (const std::int32_t e : layer) {
      if (e < 0)
        throw InvalidInput(fmt::format("{}: physical_to_logical: found {}, wanted 0 or more", record.source, e));
    }
    maps.emplace_back(layer.begin(), layer.end());
  }
  return Placement::from_maps(record.ep, std::move(maps), record.source);
}

void bind_plan(nb::module_& module) {
  nb::class_<PlanObject>(module, "Plan", "A placement, a layout, and what they are worth.")
      .def_static("load", &load, nb::arg("path"), "Reads a plan file.")
      .def_static("from_json", &parse, nb::arg("text"), nb::arg("source") = "plan",
                  "From the text of a plan file; `source` stands in messages.")
      .def(
          "save",
          [](const PlanObject& self, const std::filesystem::path& path) {
            const std::string& text = self.text();
            const nb::gil_scoped_release unlocked;
            write_atomically(path, text);
          },
          nb::arg("path"), "Writes a plan file, whole or not at all.")
      .def(
          "to_json", [](const PlanObject& self) { return self.text(); }, "The text of the plan file.")
      .def_prop_ro(
          "hash", [](const PlanObject& self) { return plan_hash(self.text()); },
          "«xxh3:» and 16 hex digits; equal for the same plan, whatever its timings and threads")
      .def("verify", &verify_plan, nb::arg("window"), nb::call_guard<nb::gil_scoped_release>(),
           "Broken rules as (rule, sentence); an empty list is a sound plan.")
      .def(
          "evaluate",
          [](const PlanObject& self, const Window& window) {
            Score score;
            {
              const nb::gil_scoped_release unlocked;
              const CheckedPlan plan = check_record(self, window);
              score = evaluate(plan.instance, plan.placement, plan.layout).score;
            }
            return triple(score);
          },
          nb::arg("window"), nb::sig("def evaluate(self, window: Window) -> tuple[float, float, float]"),
          "The score from scratch: (max_shard, total, worst_row).")
      .def_prop_ro("placement", &placement_of)
      .def_prop_ro(
          "physical_to_logical",
          [](const PlanObject& self) -> nb::object {
            const nb::object placement = nb::cast(placement_of(self));
            return placement.attr("physical_to_logical");
          },
          nb::sig("def physical_to_logical(self) -> numpy.typing.NDArray[numpy.int32]"),
          "int32 [L, E]: the logical expert in each slot")
      .def_ro("layout", &PlanRecord::layout, "Samples of each slot of each row")
      .def_prop_ro(
          "rows", [](const PlanObject& self) { return place_of_samples(self, true); },
          nb::sig("def rows(self) -> numpy.typing.NDArray[numpy.int32]"),
          "int32 [samples and dummies]: the row of each")
      .def_prop_ro(
          "slots", [](const PlanObject& self) { return place_of_samples(self, false); },
          nb::sig("def slots(self) -> numpy.typing.NDArray[numpy.int32]"),
          "int32 [samples and dummies]: the slot of each")
      .def_ro("num_rows", &PlanRecord::rows, "R")
      .def_prop_ro(
          "num_slots",
          [](const PlanObject& self) {
            std::size_t slots = 0;
            for (const auto& shard : self.shards) slots += shard.size();
            return slots;
          },
          "D")
      .def_ro("rows_lower_bound", &PlanRecord::rows_lower_bound)
      .def_ro("rows_certified", &PlanRecord::rows_certified)
      .def_ro("dummies", &PlanRecord::dummies, "One-token samples behind the last one")
      .def_ro("capacity", &PlanRecord::capacity)
      .def_ro("complete", &PlanRecord::complete, "False: cut short by a deadline")
      .def_ro("shards", &PlanRecord::shards)
      .def_ro("ranks", &PlanRecord::ep, "P, expert-parallel ranks")
      .def_prop_ro(
          "num_samples",
          [](const PlanObject& self) {
            std::size_t samples = 0;
            for (const auto& row : self.layout) {
              for (const auto& cell : row) samples += cell.size();
            }
            return static_cast<std::int64_t>(samples) - self.dummies;
          },
          "N, without dummies")
      .def_ro("constraints", &PlanRecord::constraints)
      .def_ro("params", &PlanRecord::params)
      .def_prop_ro("sync", [](const PlanObject& self) { return std::string(name_of(self.sync)); })
      .def_prop_ro(
          "score", [](const PlanObject& self) { return self.score ? triple(*self.score) : nb::object(nb::none()); },
          nb::sig("def score(self) -> tuple[float, float, float] | None"), "(max_shard, total, worst_row)")
      .def_ro("bound", &PlanRecord::bound, "What no plan goes below in the first component of the score")
      .def_ro("gap", &PlanRecord::gap, "score / bound - 1")
      .def_prop_ro("metrics", &metrics_of, nb::sig("def metrics(self) -> dict[str, float]"),
                   "Everything that a dashboard shows, as `routepack/NAME`: log it as it is (docs/python.md)")
      .def_prop_ro("search", &search_of, "What the search did; None when the file does not say")
      .def_prop_ro("placing", &placing_of, "How experts move and why; None when the file does not say")
      .def_prop_ro(
          "bounds",
          [](const PlanObject& self) {
            return self.measured() == nullptr ? std::nullopt : std::optional(self.measured()->bounds);
          },
          "Layer by layer; None for a plan that was read: its file has `bound` alone")
      .def_prop_ro(
          "row_scores",
          [](const PlanObject& self) -> nb::object {
            if (self.measured() == nullptr) return nb::none();
            std::vector<double> joint = self.measured()->joint;
            return numpy_array(std::move(joint), {static_cast<std::size_t>(self.rows), self.shards.size()});
          },
          nb::sig("def row_scores(self) -> numpy.typing.NDArray[numpy.float64] | None"),
          "float64 [R, G]: the objective of each row on each shard; None for a plan that was read")
      .def_prop_ro(
          "rows_because",
          [](const PlanObject& self) {
            return self.measured() == nullptr ? std::nullopt : std::optional(self.measured()->because);
          },
          "The rule that binds the lower bound of the rows; None for a plan that was read")
      .def(
          "rank_loads",
          [](const PlanObject& self, const Window& window) {
            std::vector<std::int64_t> loads;
            {
              const nb::gil_scoped_release unlocked;
              loads = rank_loads(self, window);
            }
            const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };
            return numpy_array(std::move(loads),
                               {size(self.rows), self.shards.size(), size(window.layers()), size(self.ep)});
          },
          nb::arg("window"), nb::sig("def rank_loads(self, window: Window) -> numpy.typing.NDArray[numpy.int64]"),
          "int64 [R, G, L, P]: routed tokens of each rank in each row, on each shard, at each layer")
      .def_prop_ro(
          "timings_ms", [](const PlanObject& self) { return dict_of(self.timings_ms); },
          nb::sig("def timings_ms(self) -> dict[str, float]"))
      .def_prop_ro("moves", &moves_of, nb::sig("def moves(self) -> dict[str, float] | None"),
                   "experts and fraction that change rank, local that change slot inside one, bytes when known")
      .def(
          "__getstate__", [](const PlanObject& self) { return std::pair(self.text(), self.source); },
          nb::sig("def __getstate__(self) -> tuple[str, str]"))
      .def("__setstate__",
           [](PlanObject& self, const std::pair<std::string, std::string>& state) {
             new (&self) PlanObject(parse(state.first, state.second));
           })
      .def("__repr__", [](const PlanObject& self) {
        return fmt::format("<routepack.Plan: {} rows, {} layers on {} ranks{}>", self.rows,
                           self.physical_to_logical.size(), self.ep,
                           self.gap ? fmt::format(", {:.2f} % above the bound", 100.0 * *self.gap) : "");
      });
}

}  // namespace routepack::python
