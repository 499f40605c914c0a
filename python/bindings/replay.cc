// SPDX-License-Identifier: Apache-2.0
// Counting and building; routepack._replay has the names and the documentation that users see.
#include "routepack/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bindings.h"
#include "buffer.h"
#include "exec/thread_pool.h"
#include "routepack/error.h"

namespace routepack::python {
namespace {

constexpr std::size_t kReportColumns = 7;

template <class Enum>
Enum choice(const char* name, const std::string& found, std::initializer_list<std::pair<const char*, Enum>> all) {
  std::string wanted;
  for (const auto& [spelling, value] : all) {
    if (found == spelling) return value;
    wanted += fmt::format("{}\"{}\"", wanted.empty() ? "" : " or ", spelling);
  }
  throw InvalidInput(fmt::format("{}: found \"{}\", wanted {}", name, found, wanted));
}

IdType id_type(const std::string& dtype, const char* name) {
  for (const IdType type : {IdType::U8, IdType::I8, IdType::U16, IdType::I16, IdType::I32, IdType::I64}) {
    if (dtype == name_of(type)) return type;
  }
  throw InvalidInput(fmt::format("{}: found {}, wanted uint8, int8, uint16, int16, int32 or int64", name, dtype));
}

/// The arrays of a call, held while it runs without the GIL.
struct Sample {
  Buffer ids;
  std::optional<Buffer> mask;
  SampleRoutes routes;

  Sample(nb::handle array, nb::handle mask_array, std::optional<std::int64_t> length)
      : ids(array, "ids"), mask(optional_buffer(mask_array, "mask")) {
    if (ids.dimensions() != 3) {
      throw InvalidInput(fmt::format("ids: found {} dimensions, wanted 3: [tokens, layers, top_k]", ids.dimensions()));
    }
    routes.ids = {.data = ids.data(),
                  .type = id_type(ids.dtype(), "ids"),
                  .tokens = ids.size(0),
                  .layers = ids.size(1),
                  .top_k = ids.size(2),
                  .token_stride = ids.stride(0),
                  .layer_stride = ids.stride(1),
                  .id_stride = ids.stride(2)};
    routes.length = length;
    if (mask) routes.mask = mask->values<std::uint8_t>(1);
    // No mask and a mask of nothing differ only for a sample without tokens, where neither matters.
  }
};

struct Options {
  CountOptions options;
  std::optional<Buffer> map;

  Options(std::int64_t experts, const std::string& missing, const std::string& invalid,
          std::optional<std::vector<std::int64_t>> layers, nb::handle physical_to_logical)
      : map(optional_buffer(physical_to_logical, "physical_to_logical")) {
    options.experts = experts;
    options.missing = choice<MissingRoutes>(
        "missing", missing,
        {{"leave-out", MissingRoutes::LeaveOut}, {"spread", MissingRoutes::Spread}, {"refuse", MissingRoutes::Refuse}});
    options.invalid = choice<InvalidRoutes>(
        "invalid", invalid, {{"refuse", InvalidRoutes::Refuse}, {"leave-out", InvalidRoutes::LeaveOut}});
    if (layers && layers->empty()) throw InvalidInput("layers: found none, wanted indices, or None for all layers");
    options.layers = std::move(layers).value_or(std::vector<std::int64_t>{});
    if (map) options.physical_to_logical = map->values<std::int32_t>(2);
  }

  /// A map of the right number of values may still have another shape.
  void check_map(const RouteIds& ids) const {
    if (map && map->size(0) != counted_layers(ids, options)) {
      throw InvalidInput(
          fmt::format("physical_to_logical: found {} layers, wanted {}", map->size(0), counted_layers(ids, options)));
    }
  }
};

std::vector<std::int32_t> columns(const CountReport& report) {
  std::vector<std::int32_t> all;
  for (const LayerReport& layer : report) {
    all.insert(all.end(), {layer.recorded, layer.absent, layer.sentinel, layer.zero, layer.invalid, layer.spread,
                           layer.duplicates});
  }
  return all;
}

nb::object report_array(const CountReport& report) {
  return numpy_array(columns(report), {report.size(), kReportColumns});
}

nb::tuple count_one(nb::handle ids, std::int64_t experts, nb::handle mask, const std::string& missing,
                    std::optional<std::vector<std::int64_t>> layers, nb::handle physical_to_logical,
                    std::optional<std::int64_t> length, const std::string& invalid) {
  const Sample sample(ids, mask, length);
  const Options given(experts, missing, invalid, std::move(layers), physical_to_logical);
  given.check_map(sample.routes.ids);
  if (experts < 1 || experts > kMaxCountedExperts) {
    throw InvalidInput(fmt::format("experts: found {}, wanted 1 to {}", experts, kMaxCountedExperts));
  }
  const auto n_layers = static_cast<std::size_t>(counted_layers(sample.routes.ids, given.options));
  std::vector<std::uint32_t> counts(n_layers * static_cast<std::size_t>(experts));
  CountReport report;
  {
    const nb::gil_scoped_release unlocked;
    report = count_routes(sample.routes, given.options, counts);
  }
  return nb::make_tuple(numpy_array(std::move(counts), {n_layers, static_cast<std::size_t>(experts)}),
                        report_array(report));
}

nb::tuple count_batch(const nb::list& ids, std::int64_t experts, const nb::list& masks, const std::string& missing,
                      std::optional<std::vector<std::int64_t>> layers, nb::handle physical_to_logical,
                      const std::vector<std::optional<std::int64_t>>& lengths, const std::string& invalid,
                      std::int64_t threads) {
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < ids.size(); ++i) samples.emplace_back(ids[i], masks[i], lengths[i]);
  if (samples.empty()) throw InvalidInput("ids: found no samples, wanted 1 or more");
  const Options given(experts, missing, invalid, std::move(layers), physical_to_logical);
  if (experts < 1 || experts > kMaxCountedExperts) {
    throw InvalidInput(fmt::format("experts: found {}, wanted 1 to {}", experts, kMaxCountedExperts));
  }
  if (threads < 0 || threads > 4096) {
    throw InvalidInput(fmt::format("threads: found {}, wanted 0 (one per core) to 4096", threads));
  }
  given.check_map(samples.front().routes.ids);
  std::vector<SampleRoutes> routes;
  for (const Sample& sample : samples) routes.push_back(sample.routes);
  const auto n_layers = static_cast<std::size_t>(counted_layers(routes.front().ids, given.options));
  const auto e = static_cast<std::size_t>(experts);
  std::vector<std::uint32_t> counts(routes.size() * n_layers * e);
  std::vector<std::int32_t> reports;
  {
    const nb::gil_scoped_release unlocked;
    ThreadPool pool(std::min(thread_count(static_cast<std::size_t>(threads)), routes.size()));
    const auto parallel = [&](std::size_t n, const std::function<void(std::size_t)>& body) { pool.for_each(n, body); };
    for (const CountReport& report : count_routes_batch(routes, given.options, counts, parallel)) {
      const auto values = columns(report);
      reports.insert(reports.end(), values.begin(), values.end());
    }
  }
  return nb::make_tuple(numpy_array(std::move(counts), {routes.size(), n_layers, e}),
                        numpy_array(std::move(reports), {routes.size(), n_layers, kReportColumns}));
}

SampleInfo info_of(std::int64_t length, std::optional<std::int64_t> id, std::optional<std::int32_t> group,
                   std::optional<std::int32_t> atomic) {
  return {.length = length, .id = id, .group = group, .atomic = atomic};
}

void make_builder(WindowBuilder* self, std::int64_t experts, std::int64_t top_k,
                  std::optional<std::vector<std::int64_t>> layers, std::optional<std::string> model,
                  nb::handle pad_counts, std::int64_t memory_bytes, std::optional<std::filesystem::path> spill_folder) {
  WindowBuilderOptions options{.experts = experts, .top_k = top_k};
  if (layers) {
    options.layers = static_cast<std::int64_t>(layers->size());
    options.layer_numbers = std::move(*layers);
  }
  options.model = std::move(model).value_or("");
  if (const auto pads = optional_buffer(pad_counts, "pad_counts")) {
    const auto values = pads->values<std::uint32_t>(2);
    options.pad_counts.assign(values.begin(), values.end());
  }
  if (memory_bytes < 0) throw InvalidInput(fmt::format("memory_bytes: found {}, wanted 0 or more", memory_bytes));
  options.memory_bytes = static_cast<std::size_t>(memory_bytes);
  options.spill_folder = std::move(spill_folder).value_or(std::filesystem::path());
  new (self) WindowBuilder(std::move(options));
}

nb::object add_routes(WindowBuilder& self, nb::handle ids, std::int64_t length, nb::handle mask,
                      std::optional<std::int64_t> id, std::optional<std::int32_t> group,
                      std::optional<std::int32_t> atomic, const std::string& missing, const std::string& invalid,
                      std::optional<std::vector<std::int64_t>> layers, nb::handle physical_to_logical) {
  const Sample sample(ids, mask, length);
  const Options given(0, missing, invalid, std::move(layers), physical_to_logical);
  given.check_map(sample.routes.ids);
  CountReport report;
  {
    const nb::gil_scoped_release unlocked;
    report = self.add_routes(info_of(length, id, group, atomic), sample.routes, given.options);
  }
  return report_array(report);
}

void add_counts(WindowBuilder& self, nb::handle counts, std::int64_t length, nb::handle recorded,
                std::optional<std::int64_t> id, std::optional<std::int32_t> group, std::optional<std::int32_t> atomic) {
  const Buffer array(counts, "counts");
  const auto values = array.values<std::uint32_t>(2);
  const auto rows = optional_buffer(recorded, "recorded");
  const auto row_values = rows ? rows->values<std::int32_t>(1) : std::span<const std::int32_t>();
  const nb::gil_scoped_release unlocked;
  self.add_counts(info_of(length, id, group, atomic), values, row_values);
}

}  // namespace

void bind_replay(nb::module_& module) {
  module.def("count_routes", &count_one, nb::arg("ids"), nb::arg("experts"), nb::arg("mask").none(), nb::arg("missing"),
             nb::arg("layers").none(), nb::arg("physical_to_logical").none(), nb::arg("length").none(),
             nb::arg("invalid"),
             nb::sig("def count_routes(ids: typing.Any, experts: int, mask: typing.Any, missing: str, layers: "
                     "collections.abc.Sequence[int] | None, physical_to_logical: typing.Any, length: int | None, "
                     "invalid: str) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int32]]"));
  module.def("count_routes_batch", &count_batch, nb::arg("ids"), nb::arg("experts"), nb::arg("masks"),
             nb::arg("missing"), nb::arg("layers").none(), nb::arg("physical_to_logical").none(), nb::arg("lengths"),
             nb::arg("invalid"), nb::arg("threads"),
             nb::sig("def count_routes_batch(ids: list[typing.Any], experts: int, masks: list[typing.Any], missing: "
                     "str, layers: collections.abc.Sequence[int] | None, physical_to_logical: typing.Any, lengths: "
                     "collections.abc.Sequence[int | None], invalid: str, threads: int) -> "
                     "tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int32]]"));
  nb::class_<WindowBuilder>(module, "WindowBuilder")
      .def("__init__", &make_builder, nb::arg("experts"), nb::arg("top_k"), nb::arg("layers").none(),
           nb::arg("model").none(), nb::arg("pad_counts").none(), nb::arg("memory_bytes"),
           nb::arg("spill_folder").none())
      .def("add_routes", &add_routes, nb::arg("ids"), nb::arg("length"), nb::arg("mask").none(), nb::arg("id").none(),
           nb::arg("group").none(), nb::arg("atomic").none(), nb::arg("missing"), nb::arg("invalid"),
           nb::arg("layers").none(), nb::arg("physical_to_logical").none(),
           nb::sig("def add_routes(self, ids: typing.Any, length: int, mask: typing.Any, id: int | None, group: int | "
                   "None, atomic: int | None, missing: str, invalid: str, layers: collections.abc.Sequence[int] | "
                   "None, physical_to_logical: typing.Any) -> numpy.typing.NDArray[numpy.int32]"))
      .def("add_counts", &add_counts, nb::arg("counts"), nb::arg("length"), nb::arg("recorded").none(),
           nb::arg("id").none(), nb::arg("group").none(), nb::arg("atomic").none(),
           nb::sig("def add_counts(self, counts: typing.Any, length: int, recorded: typing.Any, id: int | None, group: "
                   "int | None, atomic: int | None) -> None"))
      .def("merge", &WindowBuilder::merge, nb::arg("part"), nb::arg("where"), nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("samples", &WindowBuilder::samples)
      .def("window", &WindowBuilder::window, nb::call_guard<nb::gil_scoped_release>())
      .def("seal", &WindowBuilder::seal, nb::arg("path"), nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "join_windows",
      [](const std::vector<Window>& parts) {
        const nb::gil_scoped_release unlocked;
        return join_windows(parts);
      },
      nb::arg("parts"));
}

}  // namespace routepack::python
