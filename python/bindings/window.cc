// SPDX-License-Identifier: Apache-2.0
#include "routepack/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bindings.h"
#include "buffer.h"
#include "routepack/error.h"

namespace routepack::python {
namespace {

/// Every array that a window made from Python points into.
using Owners = std::vector<std::shared_ptr<const void>>;

/// U32 by another name, as torch has no U32: allowed while no value is negative.
std::span<const std::uint32_t> as_unsigned(std::span<const std::int32_t> values, std::int64_t experts,
                                           std::int64_t layers) {
  const auto negative = std::ranges::find_if(values, [](std::int32_t value) { return value < 0; });
  if (negative != values.end()) {
    const std::int64_t at = negative - values.begin();
    throw InvalidInput(fmt::format("counts[{}, {}, {}]: found {}, wanted 0 or more", at / experts / layers,
                                   at / experts % layers, at % experts, *negative));
  }
  return {reinterpret_cast<const std::uint32_t*>(values.data()), values.size()};
}

CountArray count_array(const Buffer& counts, std::int64_t experts, std::int64_t layers) {
  if (counts.dtype() == "uint16") return counts.values<std::uint16_t>(3);
  if (counts.dtype() == "int32") return as_unsigned(counts.values<std::int32_t>(3), experts, layers);
  if (counts.dtype() == "uint32") return counts.values<std::uint32_t>(3);
  throw InvalidInput(fmt::format("counts: found {}, wanted uint16, uint32 or int32; array.astype(\"uint32\") converts",
                                 counts.dtype()));
}

WindowKind kind_of(const std::string& kind) {
  if (kind == "samples") return WindowKind::Samples;
  if (kind == "aggregate") return WindowKind::Aggregate;
  throw InvalidInput(fmt::format("kind: found \"{}\", wanted \"samples\" or \"aggregate\"", kind));
}

Window from_arrays(nb::handle lengths, nb::handle counts, std::int64_t top_k, nb::handle recorded, nb::handle groups,
                   nb::handle atomic, nb::handle pad_counts, nb::handle ids,
                   std::optional<std::vector<std::int64_t>> layers, std::optional<std::string> model,
                   const std::string& kind) {
  WindowArrays arrays;
  auto owners = std::make_shared<Owners>();
  const auto keep = [&]<class T>(nb::handle array, const char* name, std::size_t dimensions, std::span<const T>& into) {
    if (const auto buffer = optional_buffer(array, name)) {
      into = buffer->values<T>(dimensions);
      owners->push_back(buffer->owner());
      if (into.empty()) throw InvalidInput(fmt::format("{}: found an empty array, wanted values or None", name));
    }
  };
  const Buffer all(counts, "counts");
  if (all.dimensions() != 3) {
    throw InvalidInput(
        fmt::format("counts: found {} dimensions, wanted 3: [samples, layers, experts]", all.dimensions()));
  }
  arrays.samples = all.size(0);
  arrays.layers = all.size(1);
  arrays.experts = all.size(2);
  arrays.top_k = top_k;
  arrays.kind = kind_of(kind);
  arrays.counts = count_array(all, arrays.experts, arrays.layers);
  owners->push_back(all.owner());
  keep(lengths, "lengths", 1, arrays.lengths);
  if (const auto rows = optional_buffer(recorded, "recorded")) {
    arrays.recorded = rows->values<std::int32_t>(rows->dimensions() == 2 ? 2 : 1);
    owners->push_back(rows->owner());
    const bool right = rows->size(0) == arrays.samples && (rows->dimensions() == 1 || rows->size(1) == arrays.layers);
    if (!right) throw InvalidInput("recorded: found another shape, wanted [samples] or [samples, layers]");
  }
  keep(groups, "groups", 1, arrays.groups);
  keep(atomic, "atomic", 1, arrays.atomic);
  keep(pad_counts, "pad_counts", 2, arrays.pad_counts);
  keep(ids, "ids", 1, arrays.ids);
  arrays.layer_numbers = std::move(layers).value_or(std::vector<std::int64_t>{});
  arrays.model = std::move(model).value_or("");
  const nb::gil_scoped_release unlocked;
  return {std::move(arrays), std::move(owners)};
}

/// The counts of a window that was not joined from parts.
nb::object view_of_counts(nb::handle self, const WindowArrays& arrays) {
  const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  return std::visit(
      [&](auto counts) {
        return numpy_view(counts.data(), {size(arrays.samples), size(arrays.layers), size(arrays.experts)}, self);
      },
      arrays.counts);
}

template <class T>
nb::object view_or_none(nb::handle self, std::span<const T> values, std::vector<std::size_t> shape) {
  if (values.empty()) return nb::none();
  return numpy_view(values.data(), std::move(shape), self);
}

}  // namespace

void bind_window(nb::module_& module) {
  using Self = nb::handle_t<Window>;
  const auto window = [](Self self) -> const Window& { return *nb::inst_ptr<Window>(self); };
  const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };

  nb::class_<Window>(module, "Window",
                     "What one optimizer step trains on: lengths, and how many tokens of each sample every expert of "
                     "every layer gets.\n\nImmutable; arrays are read-only views.")
      .def_static(
          "from_arrays", &from_arrays, nb::kw_only(), nb::arg("lengths").none(), nb::arg("counts"), nb::arg("top_k"),
          nb::arg("recorded") = nb::none(), nb::arg("groups") = nb::none(), nb::arg("atomic") = nb::none(),
          nb::arg("pad_counts") = nb::none(), nb::arg("ids") = nb::none(), nb::arg("layers") = nb::none(),
          nb::arg("model") = nb::none(), nb::arg("kind") = "samples",
          nb::sig("def from_arrays(*, lengths: typing.Any, counts: typing.Any, top_k: int, recorded: typing.Any "
                  "= None, groups: typing.Any = None, atomic: typing.Any = None, pad_counts: typing.Any = None, "
                  "ids: typing.Any = None, layers: collections.abc.Sequence[int] | None = None, model: str | "
                  "None = None, kind: str = 'samples') -> Window"),
          "A window over arrays of numpy, CPU torch, or anything with DLPack or the buffer protocol, without a "
          "copy.\n\n"
          "lengths int32 [N], counts uint16, uint32 or int32 [N, L, E], recorded int32 [N] or [N, L], groups and\n"
          "atomic int32 [N], pad_counts uint32 [L, E], ids int64 [N]. The arrays must not change afterwards.\n\n"
          ">>> import numpy as np\n"
          ">>> counts = np.array([[[3, 1]], [[0, 2]]], dtype=np.uint16)\n"
          ">>> window = Window.from_arrays(lengths=np.array([4, 2], dtype=np.int32), counts=counts, top_k=1)\n"
          ">>> window.samples, window.layers, window.experts\n"
          "(2, 1, 2)")
      .def_static(
          "load", [](const std::filesystem::path& path) { return Window::load(path); }, nb::arg("path"),
          nb::call_guard<nb::gil_scoped_release>(),
          "Maps a window file, or the files that a manifest names. Counts are used in place.")
      .def("save", &Window::save, nb::arg("path"), nb::call_guard<nb::gil_scoped_release>(),
           "Writes a window file, whole or not at all.")
      .def_prop_ro("samples", &Window::samples, "N")
      .def_prop_ro("layers", &Window::layers, "L, MoE layers")
      .def_prop_ro("experts", &Window::experts, "E, routed experts per layer")
      .def_prop_ro("top_k", &Window::top_k, "Experts chosen per token")
      .def_prop_ro(
          "kind", [](const Window& self) { return self.kind() == WindowKind::Samples ? "samples" : "aggregate"; },
          "'samples', or 'aggregate' for demand without sample identity")
      .def_prop_ro(
          "model", [](const Window& self) { return self.arrays().model; }, "Free text, may be empty")
      .def_prop_ro(
          "layer_numbers", [](const Window& self) { return self.arrays().layer_numbers; },
          "Global numbers of the layers, or empty")
      .def_prop_ro(
          "metadata",
          [](const Window& self) {
            nb::dict all;
            for (const auto& [key, value] : self.arrays().metadata) all[nb::str(key.c_str())] = value;
            return all;
          },
          nb::sig("def metadata(self) -> dict[str, str]"), "Other metadata of the file")
      .def_prop_ro(
          "counts",
          [=](Self self) {
            // A copy of all of them might not fit into memory.
            if (const auto parts = window(self).parts(); parts.data() != &window(self)) {
              throw InvalidInput(
                  fmt::format("counts: found a window in {} parts, wanted one in one piece; part_counts "
                              "lists an array per part",
                              parts.size()));
            }
            return view_of_counts(self, window(self).arrays());
          },
          nb::sig("def counts(self) -> numpy.typing.NDArray[typing.Any]"),
          "uint16 or uint32 [N, L, E]; InvalidInput for a window in parts, which has part_counts")
      .def_prop_ro(
          "part_counts",
          [=](Self self) {
            if (!window(self).counts_here()) throw InvalidInput("part_counts: some counts are in another process");
            nb::list all;
            for (const Window& part : window(self).parts()) all.append(view_of_counts(self, part.arrays()));
            return all;
          },
          nb::sig("def part_counts(self) -> list[numpy.typing.NDArray[typing.Any]]"),
          "uint16 or uint32 [N_k, L, E] of each part, in the order of the samples; of a window that is not in parts, "
          "its counts alone")
      .def_prop_ro(
          "lengths",
          [=](Self self) {
            const WindowArrays& a = window(self).arrays();
            return view_or_none(self, a.lengths, {size(a.samples)});
          },
          nb::sig("def lengths(self) -> typing.Any"), "int32 [N]; None in an aggregate without lengths")
      .def_prop_ro(
          "recorded",
          [=](Self self) {
            const WindowArrays& a = window(self).arrays();
            std::vector<std::size_t> shape{size(a.samples)};
            if (a.recorded.size() != size(a.samples)) shape.push_back(size(a.layers));
            return view_or_none(self, a.recorded, shape);
          },
          nb::sig("def recorded(self) -> numpy.typing.NDArray[numpy.int32] | None"), "int32 [N] or [N, L]")
      .def_prop_ro(
          "groups",
          [=](Self self) {
            const WindowArrays& a = window(self).arrays();
            return view_or_none(self, a.groups, {size(a.samples)});
          },
          nb::sig("def groups(self) -> numpy.typing.NDArray[numpy.int32] | None"), "int32 [N]")
      .def_prop_ro(
          "atomic",
          [=](Self self) {
            const WindowArrays& a = window(self).arrays();
            return view_or_none(self, a.atomic, {size(a.samples)});
          },
          nb::sig("def atomic(self) -> numpy.typing.NDArray[numpy.int32] | None"), "int32 [N]")
      .def_prop_ro(
          "pad_counts",
          [=](Self self) {
            const WindowArrays& a = window(self).arrays();
            return view_or_none(self, a.pad_counts, {size(a.layers), size(a.experts)});
          },
          nb::sig("def pad_counts(self) -> numpy.typing.NDArray[numpy.uint32] | None"), "uint32 [L, E]")
      .def_prop_ro(
          "ids",
          [=](Self self) {
            const WindowArrays& a = window(self).arrays();
            return view_or_none(self, a.ids, {size(a.samples)});
          },
          nb::sig("def ids(self) -> numpy.typing.NDArray[numpy.int64] | None"), "int64 [N]")
      .def_prop_ro(
          "fingerprint",
          [](const Window& self) {
            const nb::gil_scoped_release unlocked;
            return self.fingerprint();
          },
          "«xxh3:» and 16 hex digits over the content; streams over the counts")
      .def("__repr__", [](const Window& self) {
        return fmt::format("<routepack.Window: {} samples, {} layers, {} experts, top {}>", self.samples(),
                           self.layers(), self.experts(), self.top_k());
      });
}

}  // namespace routepack::python
