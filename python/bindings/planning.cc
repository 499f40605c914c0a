// SPDX-License-Identifier: Apache-2.0
// plan and plan_many.
#include <fmt/format.h>

#include <list>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "bindings.h"
#include "plan_object.h"
#include "routepack/error.h"
#include "routepack/plan.h"
#include "routepack/window.h"
#include "run.h"

namespace routepack::python {
namespace {

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

/// Everything but the windows.
struct Request {
  const Topology& topology;
  std::int64_t capacity;
  const CostModel& cost;
  Constraints constraints;
  PlanParams params;
  std::optional<Placement> current;
  Sync sync;
  nb::object progress, placed;
  std::shared_ptr<Switch> control;
};

Request request_of(const Topology& topology, std::int64_t capacity, const CostModel& cost,
                   const Constraints* constraints, const PlanParams* params, nb::handle current,
                   const std::string& sync, nb::object progress, nb::object placed, std::shared_ptr<Switch> control) {
  for (const auto& [name, called] :
       {std::pair{"progress", nb::handle(progress)}, std::pair{"placed", nb::handle(placed)}}) {
    if (!called.is_none() && PyCallable_Check(called.ptr()) == 0) {
      throw nb::type_error(
          fmt::format("{}: found {}, wanted a callable or None", name, nb::repr(called).c_str()).c_str());
    }
  }
  std::optional<Placement> from;
  if (nb::isinstance<PlanObject>(current)) {
    from = placement_of(nb::cast<const PlanObject&>(current));
  } else if (nb::isinstance<Placement>(current)) {
    from = nb::cast<const Placement&>(current);
  } else if (!current.is_none()) {
    throw nb::type_error(
        fmt::format("current: found {}, wanted a Placement, a Plan or None", nb::repr(current).c_str()).c_str());
  }
  return {topology,
          capacity,
          cost,
          constraints == nullptr ? Constraints{} : *constraints,
          params == nullptr ? PlanParams{} : *params,
          std::move(from),
          sync_of(sync),
          std::move(progress),
          std::move(placed),
          control ? std::move(control) : std::make_shared<Switch>()};
}

std::vector<PlanObject> make(const std::vector<const Window*>& windows, const Request& request) {
  Conductor conductor(request.control, static_cast<std::int64_t>(windows.size()), request.progress, request.placed);
  std::optional<Infeasible> why;
  std::vector<PlanObject> plans;
  conductor.conduct([&] {
    std::list<Instance> instances;
    std::vector<const Instance*> asked;
    for (const Window* window : windows) {
      asked.push_back(&instances.emplace_back(*window, request.topology, request.cost, request.capacity,
                                              request.constraints, request.sync));
    }
    auto made = make_plans(asked, request.params, request.current ? &*request.current : nullptr, conductor.context());
    if (auto* reason = std::get_if<Infeasible>(&made)) {
      why = std::move(*reason);
      return;
    }
    const auto timings = conductor.finish();
    auto& results = std::get<std::vector<Plan>>(made);
    for (std::size_t k = 0; k < results.size(); ++k) {
      Plan& plan = results[k];
      PlanRecord record = make_record(*asked[k], request.params, plan);
      record.timings_ms = timings;
      plans.emplace_back(std::move(record), Measured{.bounds = std::move(plan.bounds),
                                                     .joint = std::move(plan.evaluation.joint),
                                                     .because = std::move(plan.rows.because)});
    }
  });
  if (why) raise_infeasible(*why);
  return plans;
}

PlanObject plan_one(const Window& window, const Topology& topology, std::int64_t capacity, const CostModel& cost,
                    const Constraints* constraints, const PlanParams* params, nb::handle current,
                    const std::string& sync, nb::object progress, nb::object placed, std::shared_ptr<Switch> control) {
  const Request request = request_of(topology, capacity, cost, constraints, params, current, sync, std::move(progress),
                                     std::move(placed), std::move(control));
  return std::move(make({&window}, request).front());
}

std::vector<PlanObject> plan_several(const std::vector<const Window*>& windows, const Topology& topology,
                                     std::int64_t capacity, const CostModel& cost, const Constraints* constraints,
                                     const PlanParams* params, nb::handle current, const std::string& sync,
                                     nb::object progress, nb::object placed, std::shared_ptr<Switch> control) {
  if (windows.empty()) return {};
  return make(windows, request_of(topology, capacity, cost, constraints, params, current, sync, std::move(progress),
                                  std::move(placed), std::move(control)));
}

#define ROUTEPACK_PLAN_OPTIONS                                                                                 \
  ", topology: Topology, *, capacity: int, cost: CostModel, constraints: Constraints | None = None, params: "  \
  "PlanParams | None = None, current: Placement | Plan | None = None, sync: str = 'step', progress: "          \
  "collections.abc.Callable[[Progress], object] | None = None, placed: collections.abc.Callable[[Placement], " \
  "object] | None = None, control: PlanControl | None = None)"

}  // namespace

void bind_planning(nb::module_& module) {
  module.def(
      "plan", &plan_one, nb::arg("window"), nb::arg("topology"), nb::kw_only(), nb::arg("capacity"), nb::arg("cost"),
      nb::arg("constraints") = nb::none(), nb::arg("params") = nb::none(), nb::arg("current") = nb::none(),
      nb::arg("sync") = "step", nb::arg("progress") = nb::none(), nb::arg("placed") = nb::none(),
      nb::arg("control") = nb::none(), nb::sig("def plan(window: Window" ROUTEPACK_PLAN_OPTIONS " -> Plan"),
      "Plans one optimizer step: where every expert lives, and in which row and slot every sample trains.\n\n"
      "Runs without the GIL; Ctrl-C stops it, other threads go on, and several plans may run at once.\n\n"
      ":param capacity: tokens that one cell holds\n"
      ":param current: where experts are now; None: expert e in slot e\n"
      ":param progress: told when a phase begins and a temperature level ends. Returning False ends the search\n"
      "    with the best plan there is by then; an exception ends it without one and comes out of this call\n"
      ":param placed: told where experts go, before the search for a layout; final unless the placement is joint,\n"
      "    and then with params.two_batches final for the first batch of moves\n"
      ":param control: ends the plan from another thread\n"
      ":raises InfeasibleError: when no layout exists; the message says why and what would help\n"
      ":raises Cancelled: when the control said so\n\n"
      ">>> import numpy as np\n"
      ">>> counts = np.array([[[3, 1]], [[0, 4]], [[2, 2]], [[1, 3]]], dtype=np.uint16)\n"
      ">>> window = Window.from_arrays(lengths=np.array([4, 4, 4, 4], dtype=np.int32), counts=counts, top_k=1)\n"
      ">>> cost = CostModel([Stage(\"full\", alpha=1.0, beta=2.0)])\n"
      ">>> made = plan(window, Topology(dp=2, ep=2), capacity=8, cost=cost)\n"
      ">>> made.num_rows, made.verify(window)\n"
      "(1, [])");
  module.def("plan_many", &plan_several, nb::arg("windows"), nb::arg("topology"), nb::kw_only(), nb::arg("capacity"),
             nb::arg("cost"), nb::arg("constraints") = nb::none(), nb::arg("params") = nb::none(),
             nb::arg("current") = nb::none(), nb::arg("sync") = "step", nb::arg("progress") = nb::none(),
             nb::arg("placed") = nb::none(), nb::arg("control") = nb::none(),
             nb::sig("def plan_many(windows: collections.abc.Sequence[Window]" ROUTEPACK_PLAN_OPTIONS " -> list[Plan]"),
             "Plans several optimizer steps of one rollout batch that share a placement: experts move once, and each\n"
             "window gets a layout of its own. Options as those of `plan`. A cut takes effect once every window has a\n"
             "layout.\n\n"
             ">>> import numpy as np\n"
             ">>> counts = np.array([[[3, 1]], [[0, 4]]], dtype=np.uint16)\n"
             ">>> window = Window.from_arrays(lengths=np.array([4, 4], dtype=np.int32), counts=counts, top_k=1)\n"
             ">>> cost = CostModel([Stage(\"full\", alpha=1.0, beta=2.0)])\n"
             ">>> first, second = plan_many([window, window], Topology(dp=2, ep=2), capacity=8, cost=cost)\n"
             ">>> first.placement == second.placement\n"
             "True");
}

#undef ROUTEPACK_PLAN_OPTIONS

}  // namespace routepack::python
