// SPDX-License-Identifier: Apache-2.0
#include "routepack/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <stop_token>
#include <utility>

#include "bindings.h"
#include "buffer.h"
#include "core/file.h"
#include "routepack/error.h"
#include "routepack/plan_file.h"
#include "routepack/verify.h"
#include "routepack/window.h"

namespace routepack::python {
namespace {

/// Times the phases, and lets Ctrl-C stop the search.
class Watch : public Observer {
 public:
  void phase_begins(Phase phase) override {
    end_phase();
    running_ = kPhaseNames[static_cast<std::size_t>(phase)];
    look_for_signals();
  }
  void level_ends(const SearchProgress& /*progress*/) override { look_for_signals(); }

  [[nodiscard]] std::stop_token token() const { return stop_.get_token(); }
  std::vector<std::pair<std::string, double>> finish() {
    end_phase();
    return std::move(timings_ms_);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void look_for_signals() {
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  void end_phase() {
    const auto now = Clock::now();
    if (!running_.empty()) {
      timings_ms_.emplace_back(running_, std::chrono::duration<double, std::milli>(now - began_).count());
    }
    began_ = now;
  }

  std::stop_source stop_;
  std::string running_;
  Clock::time_point began_;
  std::vector<std::pair<std::string, double>> timings_ms_;
};

Sync sync_of(const std::string& name) {
  for (const auto& choice : choices(Sync{})) {
    if (choice.name == name) return choice.value;
  }
  throw InvalidInput(fmt::format("sync: found \"{}\", wanted \"step\" or \"row\"", name));
}

[[noreturn]] void raise_infeasible(const Infeasible& why) {
  const nb::object type = nb::module_::import_("routepack._errors").attr("InfeasibleError");
  const nb::object error = type(why.reason, why.remedy);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

/// A plan as Python sees it. The text is that of the file: a plan that was read is written again as it was, and has the
/// hash of its file, although a record holds less than the text says.
struct PlanWithText : PlanRecord {
  PlanWithText(PlanRecord record, std::string json) : PlanRecord(std::move(record)), text(std::move(json)) {}
  std::string text;
};

PlanWithText make(const Window& window, const Topology& topology, std::int64_t capacity, const CostModel& cost,
                  const Constraints& constraints, const PlanParams& params, const Placement* current,
                  const std::string& sync) {
  std::variant<PlanRecord, Infeasible> result;
  {
    const nb::gil_scoped_release unlocked;
    const Instance instance(window, topology, cost, capacity, constraints, sync_of(sync));
    Watch watch;
    auto made = make_plan(instance, params, current, {&watch, watch.token()});
    if (auto* why = std::get_if<Infeasible>(&made)) {
      result = std::move(*why);
    } else {
      PlanRecord record = make_record(instance, params, std::get<Plan>(made));
      record.timings_ms = watch.finish();
      result = std::move(record);
    }
  }
  if (const auto* why = std::get_if<Infeasible>(&result)) raise_infeasible(*why);
  PlanRecord& record = std::get<PlanRecord>(result);
  std::string text = to_json(record);
  return {std::move(record), std::move(text)};
}

PlanWithText load(const std::filesystem::path& path) {
  const nb::gil_scoped_release unlocked;
  std::string text = read_text(path);
  PlanRecord record = parse_plan(text, path.string());
  return {std::move(record), std::move(text)};
}

Placement placement_of(const PlanWithText& record) {
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

/// For each sample, the row (or slot) in which it trains.
nb::object place_of_samples(const PlanWithText& record, bool row_wanted) {
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

nb::object moves_of(const PlanWithText& record) {
  if (!record.moves) return nb::none();
  nb::dict moves;
  moves["experts"] = record.moves->experts;
  moves["local"] = record.moves->local;
  moves["fraction"] = record.moves->fraction;
  if (record.moves->bytes) moves["bytes"] = *record.moves->bytes;
  return moves;
}

std::vector<std::pair<std::string, std::string>> verify_plan(const PlanWithText& record, const Window& window) {
  std::vector<std::pair<std::string, std::string>> violations;
  for (const Violation& violation : verify(window, record).violations) {
    violations.emplace_back(violation.rule, violation.message);
  }
  return violations;
}

}  // namespace

void bind_plan(nb::module_& module) {
  const auto with_defaults = [](const Window& window, const Topology& topology, std::int64_t capacity,
                                const CostModel& cost, const Constraints* constraints, const PlanParams* params,
                                nb::handle current, const std::string& sync) {
    std::optional<Placement> from;
    if (nb::isinstance<PlanWithText>(current)) {
      from = placement_of(nb::cast<const PlanWithText&>(current));
    } else if (!current.is_none()) {
      from = nb::cast<const Placement&>(current);
    }
    return make(window, topology, capacity, cost, constraints == nullptr ? Constraints{} : *constraints,
                params == nullptr ? PlanParams{} : *params, from ? &*from : nullptr, sync);
  };
  nb::class_<PlanWithText>(module, "Plan", "A placement, a layout, and what they are worth.")
      .def_static("load", &load, nb::arg("path"), "Reads a plan file.")
      .def(
          "save",
          [](const PlanWithText& self, const std::filesystem::path& path) { write_atomically(path, self.text); },
          nb::arg("path"), "Writes a plan file, whole or not at all.")
      .def(
          "to_json", [](const PlanWithText& self) { return self.text; }, "The text of the plan file.")
      .def_prop_ro(
          "hash", [](const PlanWithText& self) { return plan_hash(self.text); },
          "«xxh3:» and 16 hex digits; equal for the same plan, whatever its timings and threads")
      .def("verify", &verify_plan, nb::arg("window"), nb::call_guard<nb::gil_scoped_release>(),
           "Broken rules as (rule, sentence); an empty list is a sound plan.")
      .def(
          "evaluate",
          [](const PlanWithText& self, const Window& window) {
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
          [](const PlanWithText& self) -> nb::object {
            const nb::object placement = nb::cast(placement_of(self));
            return placement.attr("physical_to_logical");
          },
          nb::sig("def physical_to_logical(self) -> numpy.typing.NDArray[numpy.int32]"),
          "int32 [L, E]: the logical expert in each slot")
      .def_ro("layout", &PlanRecord::layout, "Samples of each slot of each row")
      .def_prop_ro(
          "rows", [](const PlanWithText& self) { return place_of_samples(self, true); },
          nb::sig("def rows(self) -> numpy.typing.NDArray[numpy.int32]"),
          "int32 [samples and dummies]: the row of each")
      .def_prop_ro(
          "slots", [](const PlanWithText& self) { return place_of_samples(self, false); },
          nb::sig("def slots(self) -> numpy.typing.NDArray[numpy.int32]"),
          "int32 [samples and dummies]: the slot of each")
      .def_ro("num_rows", &PlanRecord::rows, "R")
      .def_prop_ro(
          "num_slots",
          [](const PlanWithText& self) {
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
      .def_ro("constraints", &PlanRecord::constraints)
      .def_ro("params", &PlanRecord::params)
      .def_prop_ro("sync", [](const PlanWithText& self) { return std::string(name_of(self.sync)); })
      .def_prop_ro(
          "score", [](const PlanWithText& self) { return self.score ? triple(*self.score) : nb::object(nb::none()); },
          nb::sig("def score(self) -> tuple[float, float, float] | None"), "(max_shard, total, worst_row)")
      .def_ro("bound", &PlanRecord::bound, "What no plan goes below in the first component of the score")
      .def_ro("gap", &PlanRecord::gap, "score / bound - 1")
      .def_prop_ro(
          "metrics", [](const PlanWithText& self) { return dict_of(self.metrics); },
          nb::sig("def metrics(self) -> dict[str, float]"))
      .def_prop_ro(
          "timings_ms", [](const PlanWithText& self) { return dict_of(self.timings_ms); },
          nb::sig("def timings_ms(self) -> dict[str, float]"))
      .def_prop_ro("moves", &moves_of, nb::sig("def moves(self) -> dict[str, float] | None"),
                   "experts and fraction that change rank, local that change slot inside one, bytes when known")
      .def("__repr__", [](const PlanWithText& self) {
        return fmt::format("<routepack.Plan: {} rows, {} layers on {} ranks{}>", self.rows,
                           self.physical_to_logical.size(), self.ep,
                           self.gap ? fmt::format(", {:.2f} % above the bound", 100.0 * *self.gap) : "");
      });
  module.def("plan", with_defaults, nb::arg("window"), nb::arg("topology"), nb::kw_only(), nb::arg("capacity"),
             nb::arg("cost"), nb::arg("constraints") = nb::none(), nb::arg("params") = nb::none(),
             nb::arg("current") = nb::none(), nb::arg("sync") = "step",
             nb::sig("def plan(window: Window, topology: Topology, *, capacity: int, cost: CostModel, constraints: "
                     "Constraints | None = None, params: PlanParams | None = None, current: Placement | Plan | None = "
                     "None, sync: str = 'step') -> Plan"),
             "Plans one optimizer step: where every expert lives, and in which row and slot every sample trains.\n\n"
             "Runs without the GIL; Ctrl-C stops it. `current` is where experts are now, else expert e in slot e.\n\n"
             ":raises InfeasibleError: when no layout exists; the message says why and what would help");
}

}  // namespace routepack::python
