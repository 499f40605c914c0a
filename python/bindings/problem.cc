// SPDX-License-Identifier: Apache-2.0
// Topology, cost model and placement.
#include <fmt/format.h>

#include <utility>

#include "bindings.h"
#include "buffer.h"
#include "routepack/cost.h"
#include "routepack/error.h"
#include "routepack/placement.h"
#include "routepack/topology.h"

namespace routepack::python {
namespace {

Topology from_shards(std::int32_t ep, const std::vector<std::vector<std::int32_t>>& shards, std::int32_t pp) {
  std::vector<std::vector<SlotId>> slots;
  for (const auto& shard : shards) {
    auto& ids = slots.emplace_back();
    for (const std::int32_t d : shard) {
      if (d < 0) throw InvalidInput(fmt::format("shards: found slot {}, wanted 0 or more", d));
      ids.emplace_back(d);
    }
  }
  return Topology::from_shards(ep, std::move(slots), pp);
}

std::vector<std::vector<std::int32_t>> shards_of(const Topology& topology) {
  std::vector<std::vector<std::int32_t>> shards;
  for (const ShardId g : topology.shard_ids()) {
    auto& slots = shards.emplace_back();
    for (const SlotId d : topology.slots_of(g)) slots.push_back(d.value());
  }
  return shards;
}

Placement from_maps(std::int32_t ranks, nb::handle maps) {
  const Buffer array(maps, "physical_to_logical");
  const auto values = array.values<std::int32_t>(2);
  const auto experts = static_cast<std::size_t>(array.size(1));
  std::vector<std::vector<ExpertId>> lists;
  for (std::size_t at = 0; at < values.size(); ++at) {
    if (at % experts == 0) lists.emplace_back();
    if (values[at] < 0) {
      throw InvalidInput(fmt::format("physical_to_logical[{}, {}]: found {}, wanted 0 to {}", at / experts,
                                     at % experts, values[at], experts - 1));
    }
    lists.back().emplace_back(values[at]);
  }
  return Placement::from_maps(ranks, std::move(lists));
}

template <class Value>
nb::object per_expert(const Placement& placement, Value value) {
  std::vector<std::int32_t> all;
  for (const LayerId l : IdRange<LayerId>(placement.layers())) {
    for (const ExpertId e : IdRange<ExpertId>(placement.experts())) all.push_back(value(l, e));
  }
  return numpy_array(std::move(all),
                     {static_cast<std::size_t>(placement.layers()), static_cast<std::size_t>(placement.experts())});
}

CostModel make_cost(const std::vector<Stage>& stages, const std::variant<double, std::vector<double>>& expert) {
  if (const auto* one = std::get_if<double>(&expert)) return CostModel(stages, *one);
  return {stages, std::get<std::vector<double>>(expert)};
}

void bind_topology(nb::module_& module) {
  nb::class_<Topology>(module, "Topology", "Which data-parallel slots meet in which expert-parallel communicator.")
      .def(nb::new_([](std::int32_t dp, std::int32_t ep, std::int32_t tp, std::int32_t cp, std::int32_t etp,
                       std::int32_t pp) {
             return Topology::megatron({.dp = dp, .ep = ep, .tp = tp, .cp = cp, .etp = etp, .pp = pp});
           }),
           nb::arg("dp"), nb::arg("ep"), nb::arg("tp") = 1, nb::arg("cp") = 1, nb::arg("etp") = 1, nb::arg("pp") = 1,
           "Sizes of Megatron's parallel groups.\n\n"
           ">>> Topology(dp=4, ep=2).shards\n"
           "[[0, 1], [2, 3]]")
      .def_static("from_shards", &from_shards, nb::arg("ep"), nb::arg("shards"), nb::arg("pp") = 1,
                  "Slots shard by shard, and the ranks of each shard's communicator.")
      .def_prop_ro("slots", &Topology::slots, "D, data-parallel slots")
      .def_prop_ro("ranks", &Topology::ranks, "P, expert-parallel ranks of a communicator")
      .def_prop_ro("pipeline_stages", &Topology::pipeline_stages)
      .def_prop_ro("shards", &shards_of, "Slots of each shard")
      .def("__repr__", [](const Topology& self) {
        return fmt::format("<routepack.Topology: {} slots in {} shards, {} ranks>", self.slots(), self.shards(),
                           self.ranks());
      });
}

void bind_cost(nb::module_& module) {
  nb::class_<Stage>(module, "Stage", "One type of attention: alpha per token, beta per pair of tokens, both per cap.")
      .def(nb::new_([](std::string name, double alpha, double beta) { return Stage{std::move(name), alpha, beta}; }),
           nb::arg("name"), nb::arg("alpha") = 0.0, nb::arg("beta") = 0.0)
      .def_ro("name", &Stage::name)
      .def_ro("alpha", &Stage::alpha)
      .def_ro("beta", &Stage::beta)
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def("__repr__", [](const Stage& self) {
        return fmt::format("Stage(name={}, alpha={}, beta={})", nb::repr(nb::cast(self.name)).c_str(), self.alpha,
                           self.beta);
      });
  nb::class_<CostModel>(module, "CostModel", "What a token costs on the dense side and on the expert side.")
      .def(nb::new_(&make_cost), nb::arg("stages"), nb::arg("expert") = 1.0,
           "Stages in order of evaluation; `expert` is one weight, or one per MoE layer.\n\n"
           ">>> CostModel([Stage(\"full\", alpha=60.0, beta=200.0)]).expert\n"
           "[1.0]")
      .def_static("load", &CostModel::load, nb::arg("path"), "Reads a cost file (TOML).")
      .def_static("parse", &CostModel::parse, nb::arg("toml"), nb::arg("where") = "cost", "The same from text.")
      .def_static("file_template", &CostModel::file_template, "A commented cost file to start from.")
      .def("to_toml", &CostModel::to_toml)
      .def_prop_ro("stages",
                   [](const CostModel& self) { return std::vector<Stage>(self.stages().begin(), self.stages().end()); })
      .def_prop_ro(
          "expert",
          [](const CostModel& self) {
            return std::vector<double>(self.expert_weights().begin(), self.expert_weights().end());
          },
          "One weight, or one per MoE layer")
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));
}

void bind_placement(nb::module_& module) {
  nb::class_<Placement>(module, "Placement", "Which physical slot, and so which rank, holds each expert of each layer.")
      .def_static("identity", &Placement::identity, nb::arg("layers"), nb::arg("experts"), nb::arg("ranks"),
                  "Expert e in slot e.\n\n"
                  ">>> Placement.identity(layers=1, experts=4, ranks=2).physical_to_logical.tolist()\n"
                  "[[0, 1, 2, 3]]")
      .def_static("from_maps", &from_maps, nb::kw_only(), nb::arg("ranks"), nb::arg("physical_to_logical"),
                  nb::sig("def from_maps(*, ranks: int, physical_to_logical: typing.Any) -> Placement"),
                  "From int32 [L, E]: the logical expert in each slot.")
      .def_static("load", &Placement::load, nb::arg("path"), "Reads a placement file or a plan file.")
      .def("save", &Placement::save, nb::arg("path"), nb::arg("epoch") = 0, "Writes a placement file.")
      .def("to_json", &Placement::to_json, nb::arg("epoch") = 0)
      .def_prop_ro("layers", &Placement::layers)
      .def_prop_ro("experts", &Placement::experts)
      .def_prop_ro("ranks", &Placement::ranks)
      .def_prop_ro(
          "physical_to_logical",
          [](const Placement& self) {
            return per_expert(self,
                              [&](LayerId l, ExpertId slot) { return self.physical_to_logical()[l][slot].value(); });
          },
          nb::sig("def physical_to_logical(self) -> numpy.typing.NDArray[numpy.int32]"),
          "int32 [L, E]: the logical expert in each slot")
      .def_prop_ro(
          "logical_to_physical",
          [](const Placement& self) {
            return per_expert(self, [&](LayerId l, ExpertId e) { return self.slot_of(l, e); });
          },
          nb::sig("def logical_to_physical(self) -> numpy.typing.NDArray[numpy.int32]"),
          "int32 [L, E]: the slot of each expert")
      .def_prop_ro(
          "rank_of",
          [](const Placement& self) {
            return per_expert(self, [&](LayerId l, ExpertId e) { return self.rank_of(l, e).value(); });
          },
          nb::sig("def rank_of(self) -> numpy.typing.NDArray[numpy.int32]"),
          "int32 [L, E]: the rank that serves each expert")
      .def_prop_ro("fingerprint", &Placement::fingerprint)
      .def(
          "__getstate__",
          [](nb::handle_t<Placement> self) {
            return nb::make_tuple(self.attr("ranks"), self.attr("physical_to_logical"));
          },
          nb::sig("def __getstate__(self) -> tuple[int, numpy.typing.NDArray[numpy.int32]]"))
      .def("__setstate__",
           [](Placement& self, const std::pair<std::int32_t, nb::object>& state) {
             new (&self) Placement(from_maps(state.first, state.second));
           })
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"))
      .def("__repr__", [](const Placement& self) {
        return fmt::format("<routepack.Placement: {} layers, {} experts on {} ranks>", self.layers(), self.experts(),
                           self.ranks());
      });
}

}  // namespace

void bind_problem(nb::module_& module) {
  bind_topology(module);
  bind_cost(module);
  bind_placement(module);
}

}  // namespace routepack::python
