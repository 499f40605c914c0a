// SPDX-License-Identifier: Apache-2.0
// Grid layout files, `routepack.grid-layout/1` (docs/formats.md).
#include <fmt/format.h>

#include <limits>
#include <string_view>
#include <utility>

#include "core/file.h"
#include "core/json_file.h"
#include "core/json_text.h"
#include "routepack/error.h"
#include "routepack/grid_layout.h"
#include "transfer/layout_rules.h"

namespace routepack {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kMostFileBytes = std::size_t{1} << 26;

/// An object, and what to call it in messages.
struct Reader {
  const Json& object;
  std::string where;

  Reader(const Json& value, std::string name) : object(json_object(value, name)), where(std::move(name)) {}

  [[nodiscard]] std::string at(std::string_view key) const { return fmt::format("{}: {}", where, key); }
  [[nodiscard]] const Json& needed(std::string_view key) const { return json_member(object, key, where); }
  [[nodiscard]] const Json* find(std::string_view key) const {
    const auto found = object.find(std::string(key));
    return found == object.end() ? nullptr : &*found;
  }
  [[nodiscard]] std::int32_t size(std::string_view key) const {
    return static_cast<std::int32_t>(json_integer(needed(key), at(key), 1, kMaxInt32));
  }
  void flag(std::string_view key, bool& value) const {
    if (const Json* found = find(key)) value = json_bool(*found, at(key));
  }
  template <class Enum>
  [[nodiscard]] Enum choice(std::string_view key) const {
    const Json& value = needed(key);
    const std::string& name = json_string(value, at(key));
    std::string names;
    for (const auto& known : choices(Enum{})) {
      if (known.name == name) return known.value;
      names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
    }
    throw FormatError(fmt::format("{}: found {}, wanted one of {}", at(key), describe_json(value), names));
  }
};

std::vector<ExpertParameter> read_parameters(const Reader& document) {
  const Json& list = json_array(document.needed("parameters"), document.at("parameters"));
  std::vector<ExpertParameter> parameters;
  parameters.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Reader reader(list[i], fmt::format("{}: parameters[{}]", document.where, i));
    ExpertParameter parameter{.name = json_string(reader.needed("name"), reader.at("name")), .shape = {}};
    const Json& shape = json_array(reader.needed("shape"), reader.at("shape"));
    for (std::size_t d = 0; d < shape.size(); ++d) {
      parameter.shape.push_back(json_integer(shape[d], fmt::format("{}[{}]", reader.at("shape"), d), 1, kMaxInt64));
    }
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

std::int32_t index_of(const std::string& name, std::span<const ExpertParameter> parameters, const std::string& where) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name == name) return static_cast<std::int32_t>(i);
  }
  throw FormatError(fmt::format("{}: found {}, wanted the name of a parameter", where, describe_json(Json(name))));
}

std::vector<ExpertTensor> read_tensors(const Reader& document, std::span<const ExpertParameter> parameters) {
  const Json& list = json_array(document.needed("tensors"), document.at("tensors"));
  std::vector<ExpertTensor> tensors;
  tensors.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Reader reader(list[i], fmt::format("{}: tensors[{}]", document.where, i));
    ExpertTensor tensor{.name = json_string(reader.needed("name"), reader.at("name")),
                        .role = reader.choice<TensorRole>("role"),
                        .type = reader.choice<ScalarType>("type"),
                        .spread = reader.choice<Spread>("spread"),
                        .elements = 0,
                        .parameter = std::nullopt};
    if (const Json* parameter = reader.find("parameter"); parameter != nullptr) {
      tensor.parameter = index_of(json_string(*parameter, reader.at("parameter")), parameters, reader.at("parameter"));
    }
    if (tensor.parameter && reader.find("elements") == nullptr) {
      tensor.elements = parameters[static_cast<std::size_t>(*tensor.parameter)].elements();
    } else {
      tensor.elements = json_integer(reader.needed("elements"), reader.at("elements"), 1, kMaxInt64);
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

MegatronBuffers read_buffers(const Reader& reader) {
  MegatronBuffers buffers;
  if (reader.find("registration") != nullptr) buffers.registration = reader.choice<Registration>("registration");
  if (const Json* elements = reader.find("bucket_elements"); elements != nullptr) {
    buffers.bucket_elements = json_integer(*elements, reader.at("bucket_elements"), 1, kMaxInt64);
  }
  reader.flag("high_bus_bandwidth", buffers.high_bus_bandwidth);
  if (const Json* alignment = reader.find("start_alignment")) {
    buffers.start_alignment = json_integer(*alignment, reader.at("start_alignment"), 1, kMaxInt64);
  }
  if (const Json* chunks = reader.find("chunks")) {
    for (const auto& chunk : json_index_lists(*chunks, reader.at("chunks"))) {
      buffers.chunks.emplace_back(chunk.begin(), chunk.end());
    }
  }
  return buffers;
}

LaneRange read_range(const Json& value, const std::string& where) {
  if (json_array(value, where).size() != 3) {
    throw FormatError(fmt::format("{}: found {}, wanted [lane, begin, end]", where, describe_json(value)));
  }
  return {.lane = static_cast<std::int32_t>(json_integer(value[0], where + "[0]", 0, kMaxInt32)),
          .begin = json_integer(value[1], where + "[1]", 0, kMaxInt64),
          .end = json_integer(value[2], where + "[2]", 0, kMaxInt64)};
}

const Json& array_of(const Json& value, std::size_t size, std::string_view what, const std::string& where) {
  if (json_array(value, where).size() != size) {
    throw FormatError(fmt::format("{}: found {}, wanted an array of {}, one element per {}", where,
                                  describe_json(value), size, what));
  }
  return value;
}

/// [L, n, parameters]
std::vector<std::vector<LaneRange>> read_ranges(const Json& value, std::size_t layers, std::size_t slots,
                                                std::size_t parameters, const std::string& where) {
  std::vector<std::vector<LaneRange>> all;
  array_of(value, layers, "layer", where);
  for (std::size_t l = 0; l < layers; ++l) {
    const std::string where_layer = fmt::format("{}[{}]", where, l);
    const Json& of_layer = array_of(value[l], slots, "slot", where_layer);
    for (std::size_t i = 0; i < slots; ++i) {
      const std::string where_slot = fmt::format("{}[{}]", where_layer, i);
      const Json& of_slot = array_of(of_layer[i], parameters, "parameter", where_slot);
      for (std::size_t p = 0; p < parameters; ++p) {
        const std::string where_list = fmt::format("{}[{}]", where_slot, p);
        const Json& list = json_array(of_slot[p], where_list);
        std::vector<LaneRange>& ranges = all.emplace_back();
        for (std::size_t k = 0; k < list.size(); ++k) {
          ranges.push_back(read_range(list[k], fmt::format("{}[{}]", where_list, k)));
        }
      }
    }
  }
  return all;
}

void refuse_trainer(const Reader& reader) {
  TrainerFacts facts;
  reader.flag("fully_sharded", facts.fully_sharded);
  if (const Json* remat = reader.find("weight_remat")) {
    facts.weight_remat = static_cast<std::int32_t>(json_integer(*remat, reader.at("weight_remat"), 1, kMaxInt32));
  }
  reader.flag("experts_differ", facts.experts_differ);
  reader.flag("replay_in_flight", facts.replay_in_flight);
  reader.flag("offloaded", facts.offloaded);
  reader.flag("params_gather_pending", facts.params_gather_pending);
  facts.refuse_unmovable();
}

void check_fingerprint(const Reader& document, const GridLayout& layout) {
  const Json* found = document.find("fingerprint");
  if (found == nullptr || json_string(*found, document.at("fingerprint")) == layout.fingerprint()) return;
  throw FormatError(fmt::format("{}: found {}, wanted \"{}\", as the layout gives", document.at("fingerprint"),
                                describe_json(*found), layout.fingerprint()));
}

/// «key: [», the elements a line each, «]».
template <class Elements, class Line>
void append_list(std::string& text, std::string_view key, const Elements& elements, Line line) {
  text += fmt::format("  \"{}\": [", key);
  std::string_view separator = "\n    ";
  for (const auto& element : elements) {
    text += separator;
    text += line_json(line(element));
    separator = ",\n    ";
  }
  text += "\n  ],\n";
}

}  // namespace

GridLayout GridLayout::load(const std::filesystem::path& path) {
  return from_json(read_text(path, kMostFileBytes), path.string());
}

GridLayout GridLayout::from_json(std::string_view text, const std::string& where) {
  const Json parsed = parse_json(text, where);
  check_format(parsed, "routepack.grid-layout", 1, where);
  const Reader document(parsed, where);
  const ExpertGrid grid{.ep = document.size("ep"), .edp = document.size("edp")};
  const std::int32_t layers = document.size("layers");
  const std::int32_t slots = document.size("slots");
  std::vector<ExpertParameter> parameters = read_parameters(document);
  std::vector<ExpertTensor> tensors = read_tensors(document, parameters);
  const Json* const buffers = document.find("megatron");
  const Json* const ranges = document.find("ranges");
  if ((buffers == nullptr) == (ranges == nullptr)) {
    throw FormatError(fmt::format("{}: found {}, wanted either \"megatron\" or \"ranges\"", where,
                                  buffers == nullptr ? "neither" : "both"));
  }
  // What follows speaks of values and knows no file.
  const auto named = [&](const auto& step) {
    try {
      return step();
    } catch (const FormatError&) {
      throw;
    } catch (const InvalidInput& error) {
      throw InvalidInput(fmt::format("{}: {}", where, error.what()));
    }
  };
  const GridLayout layout = named([&] {
    if (const Json* trainer = document.find("trainer")) refuse_trainer({*trainer, document.at("trainer")});
    if (buffers != nullptr) {
      return megatron(grid, layers, slots, std::move(parameters), std::move(tensors),
                      read_buffers({*buffers, document.at("megatron")}));
    }
    check_shape(grid, layers, slots, parameters);
    auto lists = read_ranges(*ranges, static_cast<std::size_t>(layers), static_cast<std::size_t>(slots),
                             parameters.size(), document.at("ranges"));
    return explicit_ranges(grid, layers, slots, std::move(parameters), std::move(tensors), std::move(lists));
  });
  check_fingerprint(document, layout);
  return layout;
}

std::string GridLayout::to_json() const {
  std::string text = fmt::format(
      "{{\n  \"format\": \"routepack.grid-layout/1\",\n  \"ep\": {},\n  \"edp\": {},\n  \"layers\": {},\n  \"slots\": "
      "{},\n",
      grid_.ep, grid_.edp, layers_, slots_);
  append_list(text, "parameters", parameters_, [](const ExpertParameter& parameter) {
    Json object{{"name", parameter.name}, {"shape", Json::array()}};
    for (const std::int64_t size : parameter.shape) object["shape"].push_back(size);
    return object;
  });
  append_list(text, "tensors", std::span(tensors_).first(static_cast<std::size_t>(canary())),
              [&](const ExpertTensor& tensor) {
                Json object{{"name", tensor.name},
                            {"role", name_of(tensor.role)},
                            {"type", name_of(tensor.type)},
                            {"spread", name_of(tensor.spread)}};
                if (tensor.parameter) {
                  object["parameter"] = parameters_[static_cast<std::size_t>(*tensor.parameter)].name;
                }
                object["elements"] = tensor.elements;
                return object;
              });
  append_list(text, "ranges", IdRange<LayerId>(layers_), [&](LayerId l) {
    Json of_layer = Json::array();
    for (std::int32_t i = 0; i < slots_; ++i) {
      Json& of_slot = of_layer.emplace_back(Json::array());
      for (std::int32_t p = 0; std::cmp_less(p, parameters_.size()); ++p) {
        Json& list = of_slot.emplace_back(Json::array());
        for (const LaneRange& range : lanes_of(l, i, p)) list.push_back({range.lane, range.begin, range.end});
      }
    }
    return of_layer;
  });
  text += fmt::format("  \"fingerprint\": \"{}\"\n}}\n", fingerprint());
  return text;
}

void GridLayout::save(const std::filesystem::path& path) const {
  write_atomically(path, to_json());
}

}  // namespace routepack
