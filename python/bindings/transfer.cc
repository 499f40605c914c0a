// SPDX-License-Identifier: Apache-2.0
// Layouts of expert state, schedules, and the engine over Python's memory and messages.
#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "bindings.h"
#include "buffer.h"
#include "routepack/error.h"
#include "routepack/grid_layout.h"
#include "routepack/move_schedule.h"
#include "routepack/transfer_engine.h"
#include "transfer/checksum.h"
#include "transfer_callbacks.h"

namespace routepack::python {
namespace {

/// @throws InvalidInput listing the spellings
template <class Enum>
Enum choice_of(const std::string& text, std::string_view what) {
  std::string names;
  for (const auto& choice : choices(Enum{})) {
    if (choice.name == text) return choice.value;
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", choice.name);
  }
  throw InvalidInput(fmt::format("{}: found '{}', wanted one of {}", what, text, names));
}

using Ranges = std::vector<std::vector<std::tuple<std::int32_t, std::int64_t, std::int64_t>>>;

ExpertParameter make_parameter(std::string name, std::vector<std::int64_t> shape) {
  return {std::move(name), std::move(shape)};
}

ExpertTensor make_tensor(std::string name, const std::string& role, const std::string& type, const std::string& spread,
                         std::int64_t elements, std::optional<std::int32_t> parameter) {
  return {std::move(name),
          choice_of<TensorRole>(role, "role"),
          choice_of<ScalarType>(type, "type"),
          choice_of<Spread>(spread, "spread"),
          elements,
          parameter};
}

MegatronBuffers make_buffers(const std::string& registration, std::optional<std::int64_t> bucket_elements,
                             bool high_bus_bandwidth, std::int64_t start_alignment,
                             const std::vector<std::vector<std::int32_t>>& chunks) {
  MegatronBuffers buffers{
      choice_of<Registration>(registration, "registration"), bucket_elements, high_bus_bandwidth, start_alignment, {}};
  for (const auto& chunk : chunks) {
    auto& layers = buffers.chunks.emplace_back();
    for (const std::int32_t l : chunk) layers.emplace_back(l);
  }
  return buffers;
}

GridLayout from_ranges(std::int32_t ep, std::int32_t edp, std::int32_t layers, std::int32_t slots,
                       std::vector<ExpertParameter> parameters, std::vector<ExpertTensor> tensors,
                       const Ranges& ranges) {
  std::vector<std::vector<LaneRange>> lanes;
  for (const auto& of_parameter : ranges) {
    auto& list = lanes.emplace_back();
    for (const auto& [lane, begin, end] : of_parameter) list.push_back({lane, begin, end});
  }
  return GridLayout::explicit_ranges({ep, edp}, layers, slots, std::move(parameters), std::move(tensors),
                                     std::move(lanes));
}

std::vector<std::tuple<std::int32_t, std::int64_t, std::int64_t>> lanes_of(const GridLayout& layout, std::int32_t layer,
                                                                           std::int32_t local_slot,
                                                                           std::int32_t parameter) {
  if (layer < 0 || layer >= layout.layers() || local_slot < 0 || local_slot >= layout.slots() || parameter < 0 ||
      parameter >= std::ssize(layout.parameters())) {
    throw InvalidInput(fmt::format("lanes_of({}, {}, {}): the layout has {} layers, {} slots, {} parameters", layer,
                                   local_slot, parameter, layout.layers(), layout.slots(), layout.parameters().size()));
  }
  std::vector<std::tuple<std::int32_t, std::int64_t, std::int64_t>> lanes;
  for (const LaneRange& range : layout.lanes_of(LayerId(layer), local_slot, parameter)) {
    lanes.emplace_back(range.lane, range.begin, range.end);
  }
  return lanes;
}

/// One row of LayerSchedule.copies.
struct CopyRow {
  std::int64_t begin, end, source_offset, target_offset, staging_offset, bytes;
  std::int32_t peer, layer, expert, tensor, from_slot, to_slot, from_lane, to_lane;
  std::uint8_t kind, hop, from_live, to_final;
  std::uint8_t unused[4];
};
constexpr const char* kCopyFields =
    "begin:i8 end:i8 source_offset:i8 target_offset:i8 staging_offset:i8 bytes:i8 peer:i4 layer:i4 expert:i4 "
    "tensor:i4 from_slot:i4 to_slot:i4 from_lane:i4 to_lane:i4 kind:u1 hop:u1 from_live:? to_final:? unused:V4";

nb::object copies_of(const LayerSchedule& schedule) {
  std::vector<CopyRow> rows;
  for (const Copy& c : schedule.copies) {
    const Piece& p = c.piece;
    rows.push_back({.begin = p.begin,
                    .end = p.end,
                    .source_offset = c.source_offset,
                    .target_offset = c.target_offset,
                    .staging_offset = c.staging_offset,
                    .bytes = c.bytes,
                    .peer = c.peer,
                    .layer = p.layer.value(),
                    .expert = p.expert.value(),
                    .tensor = p.tensor,
                    .from_slot = p.from_slot,
                    .to_slot = p.to_slot,
                    .from_lane = p.from_lane,
                    .to_lane = p.to_lane,
                    .kind = static_cast<std::uint8_t>(c.kind),
                    .hop = static_cast<std::uint8_t>(c.hop),
                    .from_live = c.from_live,
                    .to_final = c.to_final,
                    .unused = {}});
  }
  nb::list fields;
  const std::string_view all = kCopyFields;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find(' ', at), all.size());
    const std::size_t colon = all.find(':', at);
    fields.append(
        nb::make_tuple(nb::str(all.data() + at, colon - at), nb::str(all.data() + colon + 1, end - colon - 1)));
    at = end + 1;
  }
  const nb::module_ numpy = nb::module_::import_("numpy");
  return numpy.attr("frombuffer")(nb::bytes(rows.data(), rows.size() * sizeof(CopyRow)), numpy.attr("dtype")(fields));
}

std::uint64_t checksum_of(std::int32_t layer, std::int32_t expert, std::int32_t tensor, std::int32_t from_slot,
                          std::int32_t to_slot, std::int64_t begin, nb::handle bytes) {
  const Buffer buffer(bytes, "bytes");
  const auto values = buffer.values<std::uint8_t>(1);
  PieceChecksum checksum;
  checksum.begin({LayerId(layer), ExpertId(expert), tensor, from_slot, to_slot, 0, 0, begin, 0});
  checksum.add(std::as_bytes(values));
  return checksum.digest();
}

/// The engine and what it borrows.
class Engine {
 public:
  Engine(nb::object postbox, GridLayout layout, nb::object mover, Placement placement, std::int64_t epoch,
         const std::string& route, const std::string& atomic, std::optional<std::int64_t> staging_limit,
         std::int64_t timeout_ms, bool read_back)
      : postbox_(make_python_postbox(std::move(postbox))) {
    const TransferOptions options{choice_of<Route>(route, "route"), choice_of<Atomic>(atomic, "atomic"), staging_limit,
                                  std::chrono::milliseconds(timeout_ms), read_back};
    engine_ = std::make_unique<TransferEngine>(*postbox_, std::move(layout), make_python_mover(std::move(mover)),
                                               std::move(placement), epoch, options);
  }
  TransferOutcome move(const Placement& to, std::int64_t epoch) { return engine_->move(to, epoch); }
  [[nodiscard]] const TransferEngine& get() const { return *engine_; }

 private:
  std::unique_ptr<Postbox> postbox_;
  std::unique_ptr<TransferEngine> engine_;
};

std::vector<std::string> states_of(const std::vector<LayerState>& layers) {
  std::vector<std::string> names;
  names.reserve(layers.size());
  for (const LayerState state : layers) names.emplace_back(name_of(state));
  return names;
}

void bind_layout(nb::module_& module) {
  nb::class_<ExpertParameter>(module, "ExpertParameter", "One trainable tensor of an expert.")
      .def(nb::new_(&make_parameter), nb::arg("name"), nb::arg("shape"))
      .def_ro("name", &ExpertParameter::name)
      .def_ro("shape", &ExpertParameter::shape)
      .def_prop_ro("elements", &ExpertParameter::elements);
  nb::class_<ExpertTensor>(module, "ExpertTensor", "One tensor of expert state, contiguous per expert.")
      .def(nb::new_(&make_tensor), nb::arg("name"), nb::arg("role"), nb::arg("type"), nb::arg("spread"),
           nb::arg("elements"), nb::arg("parameter") = nb::none(),
           "`elements` of one expert over all lanes; `parameter` is an index, needed when sharded.")
      .def_ro("name", &ExpertTensor::name)
      .def_prop_ro("role", [](const ExpertTensor& self) { return name_of(self.role); })
      .def_prop_ro("type", [](const ExpertTensor& self) { return name_of(self.type); })
      .def_prop_ro("spread", [](const ExpertTensor& self) { return name_of(self.spread); })
      .def_ro("elements", &ExpertTensor::elements)
      .def_ro("parameter", &ExpertTensor::parameter)
      .def_prop_ro("bytes", &ExpertTensor::bytes);
  nb::class_<MegatronBuffers>(module, "MegatronBuffers", "How Megatron-Core lays expert parameters into flat buffers.")
      .def(nb::new_(&make_buffers), nb::kw_only(), nb::arg("registration") = "grouped",
           nb::arg("bucket_elements") = nb::none(), nb::arg("high_bus_bandwidth") = false,
           nb::arg("start_alignment") = 64, nb::arg("chunks") = std::vector<std::vector<std::int32_t>>{});
  nb::class_<TrainerFacts>(module, "TrainerFacts", "Facts about a trainer that forbid moving its experts.")
      .def(nb::new_([](bool fully_sharded, std::int32_t weight_remat, bool experts_differ, bool replay_in_flight,
                       bool offloaded, bool params_gather_pending) {
             return TrainerFacts{fully_sharded,    weight_remat, experts_differ,
                                 replay_in_flight, offloaded,    params_gather_pending};
           }),
           nb::kw_only(), nb::arg("fully_sharded") = false, nb::arg("weight_remat") = 1,
           nb::arg("experts_differ") = false, nb::arg("replay_in_flight") = false, nb::arg("offloaded") = false,
           nb::arg("params_gather_pending") = false)
      .def("refuse_unmovable", &TrainerFacts::refuse_unmovable,
           "Raises InvalidInput naming the fact and what to do, or returns.");
  nb::class_<GridLayout>(module, "GridLayout", "Where every byte of expert state lies on an EP × EDP grid.")
      .def_static(
          "megatron",
          [](std::int32_t ep, std::int32_t edp, std::int32_t layers, std::int32_t slots,
             std::vector<ExpertParameter> parameters, std::vector<ExpertTensor> tensors,
             const MegatronBuffers& buffers) {
            return GridLayout::megatron({ep, edp}, layers, slots, std::move(parameters), std::move(tensors), buffers);
          },
          nb::kw_only(), nb::arg("ep"), nb::arg("edp"), nb::arg("layers"), nb::arg("slots"), nb::arg("parameters"),
          nb::arg("tensors"), nb::arg("buffers"), "Lane ranges by Megatron's rules.")
      .def_static("explicit_ranges", &from_ranges, nb::kw_only(), nb::arg("ep"), nb::arg("edp"), nb::arg("layers"),
                  nb::arg("slots"), nb::arg("parameters"), nb::arg("tensors"), nb::arg("ranges"),
                  "Lane ranges as the trainer has them: for [layer, slot, parameter] flattened, a list of\n"
                  "(lane, begin, end) in elements.")
      .def_static(
          "adam",
          [](std::int32_t ep, std::int32_t edp, std::int32_t layers, std::int32_t slots, std::int64_t hidden,
             std::int64_t width) { return GridLayout::adam({ep, edp}, layers, slots, hidden, width); },
          nb::kw_only(), nb::arg("ep"), nb::arg("edp"), nb::arg("layers"), nb::arg("slots"), nb::arg("hidden"),
          nb::arg("width"),
          "bf16 weights, fp32 master weights and two moments of a gated FFN in one Megatron buffer.\n\n"
          ">>> layout = GridLayout.adam(ep=4, edp=2, layers=1, slots=2, hidden=16, width=12)\n"
          ">>> layout.lanes_of(0, 1, 0)\n"
          "[(0, 0, 192), (1, 192, 384)]")
      .def_static("load", &GridLayout::load, nb::arg("path"), "Reads a layout file.")
      .def("save", &GridLayout::save, nb::arg("path"))
      .def("to_json", &GridLayout::to_json)
      .def_prop_ro("ep", [](const GridLayout& self) { return self.grid().ep; })
      .def_prop_ro("edp", [](const GridLayout& self) { return self.grid().edp; })
      .def_prop_ro("layers", &GridLayout::layers)
      .def_prop_ro("slots", &GridLayout::slots, "n, local slots per rank")
      .def_prop_ro("experts", &GridLayout::experts)
      .def_prop_ro("canary", &GridLayout::canary, "Index of the canary among the tensors")
      .def_prop_ro("parameters",
                   [](const GridLayout& self) {
                     return std::vector<ExpertParameter>(self.parameters().begin(), self.parameters().end());
                   })
      .def_prop_ro(
          "tensors",
          [](const GridLayout& self) {
            return std::vector<ExpertTensor>(self.tensors().begin(), self.tensors().end());
          },
          "With the canary, which is last")
      .def("lanes_of", &lanes_of, nb::arg("layer"), nb::arg("local_slot"), nb::arg("parameter"),
           "Who owns what of a parameter: (lane, begin, end) in elements.")
      .def(
          "bytes_on",
          [](const GridLayout& self, std::int32_t layer, std::int32_t local_slot, std::int32_t tensor,
             std::int32_t lane) {
            if (layer < 0 || layer >= self.layers() || local_slot < 0 || local_slot >= self.slots() || tensor < 0 ||
                tensor >= std::ssize(self.tensors()) || lane < 0 || lane >= self.grid().edp) {
              throw InvalidInput(
                  fmt::format("bytes_on({}, {}, {}, {}): not in the layout", layer, local_slot, tensor, lane));
            }
            return self.bytes_on(LayerId(layer), local_slot, tensor, lane);
          },
          nb::arg("layer"), nb::arg("local_slot"), nb::arg("tensor"), nb::arg("lane"))
      .def_prop_ro("fingerprint", &GridLayout::fingerprint)
      .def(nb::self == nb::self, nb::sig("def __eq__(self, arg: object, /) -> bool"));
}

void bind_schedule(nb::module_& module) {
  nb::class_<LayerSchedule>(module, "LayerSchedule", "What one rank does in one layer, in order.")
      .def_prop_ro("layer", [](const LayerSchedule& self) { return self.layer.value(); })
      .def_prop_ro("copies", &copies_of, nb::sig("def copies(self) -> numpy.typing.NDArray[typing.Any]"),
                   "Structured array; kind 0 is local, 1 send, 2 receive")
      .def_ro("staging_bytes", &LayerSchedule::staging_bytes)
      .def_ro("transit_bytes", &LayerSchedule::transit_bytes);
  module.def(
      "schedule_moves",
      [](const GridLayout& layout, const Placement& from, const Placement& to, std::int32_t rank,
         const std::string& route) { return schedule_moves(layout, from, to, rank, choice_of<Route>(route, "route")); },
      nb::arg("layout"), nb::arg("before"), nb::arg("after"), nb::arg("rank"), nb::arg("route") = "two-hop",
      "One rank's copies from one placement to another, layer by layer. All ranks compute theirs alone.\n\n"
      ">>> layout = GridLayout.adam(ep=2, edp=2, layers=1, slots=1, hidden=16, width=12)\n"
      ">>> before = Placement.identity(layers=1, experts=2, ranks=2)\n"
      ">>> after = Placement.from_maps(ranks=2, physical_to_logical=np.array([[1, 0]], dtype=np.int32))\n"
      ">>> (layer,) = schedule_moves(layout, before, after, rank=0)\n"
      ">>> layer.copies[[\"kind\", \"peer\", \"tensor\", \"bytes\"]][0].item()\n"
      "(1, 1, 0, 768)");
  nb::class_<LinkTraffic>(module, "LinkTraffic", "Bytes and messages by the links that they use.")
      .def_ro("local", &LinkTraffic::local)
      .def_ro("across_ep", &LinkTraffic::across_ep)
      .def_ro("within_edp", &LinkTraffic::within_edp)
      .def_ro("across_both", &LinkTraffic::across_both)
      .def_ro("between_nodes", &LinkTraffic::between_nodes)
      .def_ro("overhead", &LinkTraffic::overhead)
      .def_ro("messages", &LinkTraffic::messages);
  nb::class_<RankLoad>(module, "RankLoad", "What one rank sends, receives and stages.")
      .def_ro("out", &RankLoad::out)
      .def_ro("in_", &RankLoad::in)
      .def_ro("staging_peak", &RankLoad::staging_peak)
      .def_ro("staging_total", &RankLoad::staging_total);
  nb::class_<TrafficForecast>(module, "TrafficForecast", "A whole move, known before anything runs.")
      .def_ro("ranks", &TrafficForecast::ranks)
      .def_ro("total", &TrafficForecast::total)
      .def_ro("moved_experts", &TrafficForecast::moved_experts)
      .def_ro("local_experts", &TrafficForecast::local_experts)
      .def_ro("layers", &TrafficForecast::layers);
  module.def(
      "forecast_traffic",
      [](const GridLayout& layout, const Placement& from, const Placement& to, const std::string& route,
         std::int32_t ranks_per_node) {
        return forecast_traffic(layout, from, to, choice_of<Route>(route, "route"), ranks_per_node);
      },
      nb::arg("layout"), nb::arg("before"), nb::arg("after"), nb::arg("route") = "two-hop",
      nb::arg("ranks_per_node") = 0,
      "Bytes and messages of a whole move by links, before anything runs.\n\n"
      ">>> layout = GridLayout.adam(ep=2, edp=2, layers=1, slots=1, hidden=16, width=12)\n"
      ">>> before = Placement.identity(layers=1, experts=2, ranks=2)\n"
      ">>> after = Placement.from_maps(ranks=2, physical_to_logical=np.array([[1, 0]], dtype=np.int32))\n"
      ">>> traffic = forecast_traffic(layout, before, after)\n"
      ">>> traffic.moved_experts, traffic.total.across_ep, traffic.total.within_edp\n"
      "(2, 18432, 0)");
  module.def("piece_checksum", &checksum_of, nb::kw_only(), nb::arg("layer"), nb::arg("expert"), nb::arg("tensor"),
             nb::arg("from_slot"), nb::arg("to_slot"), nb::arg("begin"), nb::arg("bytes"),
             nb::sig("def piece_checksum(*, layer: int, expert: int, tensor: int, from_slot: int, to_slot: int, "
                     "begin: int, bytes: typing.Any) -> int"),
             "XXH3-64 of uint8 host memory, seeded by which piece it is.");
}

void bind_engine(nb::module_& module) {
  nb::class_<TransferFailure>(module, "TransferFailure", "Where the first failure was; -1: does not apply.")
      .def(nb::new_(
               [](std::string what, std::int32_t rank, std::int32_t layer, std::int32_t expert, std::int32_t tensor) {
                 return TransferFailure{TransferPhase::Prepare, rank, layer, expert, tensor, std::move(what)};
               }),
           nb::arg("what"), nb::arg("rank") = -1, nb::arg("layer") = -1, nb::arg("expert") = -1, nb::arg("tensor") = -1)
      .def_prop_ro("phase", [](const TransferFailure& self) { return name_of(self.phase); })
      .def_ro("rank", &TransferFailure::rank)
      .def_ro("layer", &TransferFailure::layer)
      .def_ro("expert", &TransferFailure::expert)
      .def_ro("tensor", &TransferFailure::tensor)
      .def_ro("what", &TransferFailure::what)
      .def("__repr__", [](const TransferFailure& self) {
        return fmt::format("<routepack.TransferFailure in {}: {}>", name_of(self.phase), self.what);
      });
  nb::class_<TransferOutcome>(module, "TransferOutcome", "How a move ended on this rank.")
      .def_ro("complete", &TransferOutcome::complete, "Every layer is new on every rank, and every rank said so")
      .def_prop_ro(
          "layers", [](const TransferOutcome& self) { return states_of(self.layers); },
          "'old', 'new' or 'torn' per layer")
      .def_ro("failure", &TransferOutcome::failure)
      .def_ro("silent", &TransferOutcome::silent, "Ranks that did not answer")
      .def_ro("bytes_sent", &TransferOutcome::bytes_sent)
      .def_ro("bytes_received", &TransferOutcome::bytes_received)
      .def_ro("bytes_local", &TransferOutcome::bytes_local)
      .def_ro("staging_bytes", &TransferOutcome::staging_bytes)
      .def_prop_ro(
          "seconds",
          [](const TransferOutcome& self) {
            return std::map<std::string, double>{{"prepare", self.prepare_seconds},
                                                 {"transfer", self.transfer_seconds},
                                                 {"verify", self.verify_seconds},
                                                 {"commit", self.commit_seconds},
                                                 {"confirm", self.confirm_seconds}};
          },
          "By phase");
  nb::class_<Engine>(module, "TransferEngine", "Moves expert state exactly, or not at all. One per rank.")
      .def(nb::init<nb::object, GridLayout, nb::object, Placement, std::int64_t, const std::string&, const std::string&,
                    std::optional<std::int64_t>, std::int64_t, bool>(),
           nb::arg("postbox"), nb::arg("layout"), nb::arg("mover"), nb::arg("placement"), nb::arg("epoch"),
           nb::kw_only(), nb::arg("route") = "two-hop", nb::arg("atomic") = "layer",
           nb::arg("staging_limit") = nb::none(), nb::arg("timeout_ms") = 60'000, nb::arg("read_back") = false,
           nb::sig("def __init__(self, postbox: typing.Any, layout: GridLayout, mover: typing.Any, "
                   "placement: Placement, epoch: int, *, route: str = 'two-hop', atomic: str = 'layer', "
                   "staging_limit: int | None = None, timeout_ms: int = 60000, read_back: bool = False) -> None"),
           "`postbox` and `mover` have the methods of routepack.transfer.Postbox and TorchMover. `timeout_ms` must be\n"
           "longer than the longest layer takes (with atomic='step': the whole move).")
      .def("move", &Engine::move, nb::arg("to"), nb::arg("epoch"), nb::call_guard<nb::gil_scoped_release>(),
           "Collective: every rank calls it with the same arguments at a step boundary.")
      .def_prop_ro(
          "placement", [](const Engine& self) { return self.get().placement(); }, "What the slots hold now")
      .def_prop_ro("epoch", [](const Engine& self) { return self.get().epoch(); })
      .def_prop_ro("phase", [](const Engine& self) { return name_of(self.get().status().phase); })
      .def_prop_ro("layers", [](const Engine& self) { return states_of(self.get().status().layers); })
      .def_prop_ro("failure", [](const Engine& self) { return self.get().status().failure; });
}

}  // namespace

void bind_transfer(nb::module_& module) {
  bind_layout(module);
  bind_schedule(module);
  bind_engine(module);
}

}  // namespace routepack::python
