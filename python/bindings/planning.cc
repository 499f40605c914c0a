// SPDX-License-Identifier: Apache-2.0
// plan and plan_many.
#include <fmt/format.h>

#include <algorithm>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "bindings.h"
#include "core/hash.h"
#include "plan_object.h"
#include "routepack/error.h"
#include "routepack/plan.h"
#include "routepack/version.h"
#include "routepack/window.h"
#include "run.h"
#include "team.h"

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
  nb::object team;
  bool alone_when_lost;
};

bool alone_when_lost(const std::string& on_lost) {
  if (on_lost != "raise" && on_lost != "alone") {
    throw InvalidInput(fmt::format("on_lost: found \"{}\", wanted \"raise\" or \"alone\"", on_lost));
  }
  return on_lost == "alone";
}

Request request_of(const Topology& topology, std::int64_t capacity, const CostModel& cost,
                   const Constraints* constraints, const PlanParams* params, nb::handle current,
                   const std::string& sync, nb::object progress, nb::object placed, std::shared_ptr<Switch> control,
                   nb::object team, const std::string& on_lost) {
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
          control ? std::move(control) : std::make_shared<Switch>(),
          std::move(team),
          alone_when_lost(on_lost)};
}

/// Visitor that writes what must be equal in a team.
struct Lines {
  std::string& all;

  template <class Value>
  void line(const char* name, const Value& value) {
    all += fmt::format("{}={}\n", name, value);
  }
  template <class Help>
  void integer(const char* name, std::int64_t value, std::int64_t, std::int64_t, Help) {
    if (std::string_view(name) != "threads") line(name, value);
  }
  template <class Help>
  void number(const char* name, double value, double, double, Help) {
    line(name, value);
  }
  template <class Help>
  void flag(const char* name, bool value, Help) {
    line(name, value);
  }
  template <class Help>
  void bytes(const char* name, std::int64_t value, std::int64_t, Help) {
    line(name, value);
  }
  template <class Help>
  void text(const char* name, const std::string& value, Help) {
    line(name, value);
  }
  template <class Help>
  void texts(const char* name, const std::string& value, Help) {
    line(name, value);
  }
  template <class Enum, class Help>
  void choice(const char* name, Enum value, Help) {
    line(name, name_of(value));
  }
};

/// Whatever decides what plan comes out, but for what is in the windows: the planner itself compares that.
std::string options_of(const std::vector<const Window*>& windows, const Request& request) {
  std::string text;
  Lines lines{text};
  lines.line("version", kVersion);
  lines.line("windows", windows.size());
  for (const Window* window : windows) {
    lines.line("window", fmt::format("of {} samples, {} layers, {} experts", window->samples(), window->layers(),
                                     window->experts()));
  }
  lines.line("topology", fmt::format("of {} slots in {} shards of {} ranks", request.topology.slots(),
                                     request.topology.shards(), request.topology.ranks()));
  std::string slots;
  for (const ShardId shard : request.topology.shard_ids()) {
    for (const SlotId slot : request.topology.slots_of(shard)) slots += fmt::format(" {}", slot.value());
  }
  lines.line("slots of the shards", slots);
  lines.line("capacity", request.capacity);
  Xxh3 cost;
  cost.text(request.cost.to_toml());
  lines.line("cost", cost.digest());
  lines.line("current", request.current ? request.current->fingerprint() : "none");
  lines.choice("sync", request.sync, "");
  describe(request.constraints, lines);
  describe(request.params, lines);
  const SearchParams search = request.params.effective_search();
  describe(search, lines);
  return text;
}

/// What the ranks of a team must have in common in the end.
std::string digest_of(const std::vector<PlanObject>& plans, const std::optional<Infeasible>& why) {
  if (why) return why->reason;
  Xxh3 hash;
  for (const PlanObject& plan : plans) {
    for (const auto& layer : plan.physical_to_logical) hash.array(std::span(layer));
    for (const auto& row : plan.layout) {
      for (const auto& cell : row) {
        hash.value(cell.size());
        hash.array(std::span(cell));
      }
    }
  }
  return hash.digest();
}

/// With the time that is left.
PlanParams rest_of(PlanParams params, std::chrono::milliseconds passed) {
  if (params.deadline_ms > 0) params.deadline_ms = std::max<std::int64_t>(1, params.deadline_ms - passed.count());
  return params;
}

void warn(const std::string& text) {
  const nb::object kind = nb::module_::import_("routepack._errors").attr("RoutePackWarning");
  if (PyErr_WarnEx(kind.ptr(), text.c_str(), 1) != 0) throw nb::python_error();
}

/// One call of plan or plan_many.
class Run {
 public:
  Run(const std::vector<const Window*>& windows, const Request& request)
      : windows_(windows),
        request_(request),
        conductor_(request.control, static_cast<std::int64_t>(windows.size()), request.progress, request.placed) {
    if (!request.team.is_none()) team_.emplace(request.team, conductor_);
  }

  std::vector<PlanObject> plans() {
    conductor_.conduct([this] { team_ ? in_team() : alone(); });
    if (why_) raise_infeasible(*why_);
    return std::move(plans_);
  }

 private:
  void alone() {
    conductor_.leave_if_cancelled();
    plan(nullptr, request_.params);
  }

  void in_team() {
    try {
      conductor_.leave_if_cancelled();
      team_->require_same(options_of(windows_, request_));
      plan(&*team_, request_.params);
    } catch (...) {
      const std::exception_ptr failure = std::current_exception();
      const auto loss = team_->leave(failure);
      if (!loss || !request_.alone_when_lost) throw;
      conductor_.in_python([&] { warn(loss->what + "; this rank plans alone"); });
      conductor_.begin_again();
      conductor_.leave_if_cancelled();
      plan(nullptr, rest_of(request_.params, conductor_.since_begin()));
      return;
    }
    if (const auto loss = team_->finish(digest_of(plans_, why_))) {
      conductor_.in_python([&] { warn(loss->what + "; the plan was there already"); });
    }
  }

  void plan(Communicator* team, const PlanParams& params) {
    std::list<Instance> instances;
    std::vector<const Instance*> asked;
    for (const Window* window : windows_) {
      asked.push_back(&instances.emplace_back(*window, request_.topology, request_.cost, request_.capacity,
                                              request_.constraints, request_.sync));
    }
    if (asked.empty()) return;
    auto made = make_plans(asked, params, request_.current ? &*request_.current : nullptr, conductor_.context(team));
    if (auto* reason = std::get_if<Infeasible>(&made)) {
      why_ = std::move(*reason);
      return;
    }
    const auto timings = conductor_.finish();
    auto& results = std::get<std::vector<Plan>>(made);
    for (std::size_t k = 0; k < results.size(); ++k) {
      Plan& plan = results[k];
      PlanRecord record = make_record(*asked[k], request_.params, plan);
      record.timings_ms = timings;
      plans_.emplace_back(std::move(record), Measured{.bounds = std::move(plan.bounds),
                                                      .joint = std::move(plan.evaluation.joint),
                                                      .because = std::move(plan.rows.because)});
    }
  }

  const std::vector<const Window*>& windows_;
  const Request& request_;
  Conductor conductor_;
  std::optional<PythonTeam> team_;
  std::optional<Infeasible> why_;
  std::vector<PlanObject> plans_;
};

PlanObject plan_one(const Window& window, const Topology& topology, std::int64_t capacity, const CostModel& cost,
                    const Constraints* constraints, const PlanParams* params, nb::handle current,
                    const std::string& sync, nb::object progress, nb::object placed, std::shared_ptr<Switch> control,
                    nb::object team, const std::string& on_lost) {
  const Request request = request_of(topology, capacity, cost, constraints, params, current, sync, std::move(progress),
                                     std::move(placed), std::move(control), std::move(team), on_lost);
  const std::vector<const Window*> windows{&window};
  return std::move(Run(windows, request).plans().front());
}

std::vector<PlanObject> plan_several(const std::vector<const Window*>& windows, const Topology& topology,
                                     std::int64_t capacity, const CostModel& cost, const Constraints* constraints,
                                     const PlanParams* params, nb::handle current, const std::string& sync,
                                     nb::object progress, nb::object placed, std::shared_ptr<Switch> control,
                                     nb::object team, const std::string& on_lost) {
  if (windows.empty() && team.is_none()) return {};
  const Request request = request_of(topology, capacity, cost, constraints, params, current, sync, std::move(progress),
                                     std::move(placed), std::move(control), std::move(team), on_lost);
  return Run(windows, request).plans();
}

#define ROUTEPACK_PLAN_OPTIONS                                                                                 \
  ", topology: Topology, *, capacity: int, cost: CostModel, constraints: Constraints | None = None, params: "  \
  "PlanParams | None = None, current: Placement | Plan | None = None, sync: str = 'step', progress: "          \
  "collections.abc.Callable[[Progress], object] | None = None, placed: collections.abc.Callable[[Placement], " \
  "object] | None = None, control: PlanControl | None = None, team: "                                          \
  "routepack.team.communicator.Communicator | None = None, on_lost: str = 'raise')"

}  // namespace

void bind_planning(nb::module_& module) {
  module.def(
      "plan", &plan_one, nb::arg("window"), nb::arg("topology"), nb::kw_only(), nb::arg("capacity"), nb::arg("cost"),
      nb::arg("constraints") = nb::none(), nb::arg("params") = nb::none(), nb::arg("current") = nb::none(),
      nb::arg("sync") = "step", nb::arg("progress") = nb::none(), nb::arg("placed") = nb::none(),
      nb::arg("control") = nb::none(), nb::arg("team") = nb::none(), nb::arg("on_lost") = "raise",
      nb::sig("def plan(window: Window" ROUTEPACK_PLAN_OPTIONS " -> Plan"),
      "Plans one optimizer step: where every expert lives, and in which row and slot every sample trains.\n\n"
      "Runs without the GIL; Ctrl-C stops it, other threads go on, and several plans may run at once.\n\n"
      ":param capacity: tokens that one cell holds\n"
      ":param current: where experts are now; None: expert e in slot e\n"
      ":param progress: told when a phase begins and a temperature level ends. Returning False ends the search\n"
      "    with the best plan there is by then; an exception ends it without one and comes out of this call\n"
      ":param placed: told where experts go, before the search for a layout; final unless the placement is joint,\n"
      "    and then with params.two_batches final for the first batch of moves\n"
      ":param control: ends the plan from another thread\n"
      ":param team: processes that plan this together, each with the same arguments: a `routepack.team.Communicator`.\n"
      "    All get the plan of one process alone. A cut in one of them ends the search of all, a cancel all planning\n"
      ":param on_lost: when a rank of the team is lost: 'raise' PeerLost, or plan 'alone', with a warning, in what "
      "time\n"
      "    is left of the deadline; without a deadline that is the team's plan\n"
      ":raises InfeasibleError: when no layout exists; the message says why and what would help\n"
      ":raises Cancelled: when the control said so, here or in another rank of the team\n"
      ":raises PeerLost: naming a rank of the team that is gone, silent, or has left with an exception of its own\n\n"
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
             nb::arg("placed") = nb::none(), nb::arg("control") = nb::none(), nb::arg("team") = nb::none(),
             nb::arg("on_lost") = "raise",
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
