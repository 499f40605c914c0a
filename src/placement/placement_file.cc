// SPDX-License-Identifier: Apache-2.0
// Placement files, `routepack.placement/1`, and the maps of a plan file (docs/formats.md).
#include <fmt/format.h>

#include <limits>
#include <utility>

#include "core/file.h"
#include "core/hash.h"
#include "core/json_file.h"
#include "core/json_text.h"
#include "routepack/error.h"
#include "routepack/placement.h"

namespace routepack {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

Placement read_maps(const Json& document, const Json& ep, const std::string& where_ep, const std::string& where) {
  const auto ranks = json_integer(ep, where_ep, 1, kMaxInt32);
  std::vector<std::vector<ExpertId>> maps;
  for (const auto& list :
       json_index_lists(json_member(document, "physical_to_logical", where), where + ": physical_to_logical")) {
    maps.emplace_back(list.begin(), list.end());
  }
  return Placement::from_maps(static_cast<std::int32_t>(ranks), std::move(maps), where);
}

/// What a placement file says about itself must be so: ranks rely on it before they train.
void check_statements(const Json& document, const Placement& placement, const std::string& where) {
  if (const auto layers = document.find("layers"); layers != document.end()) {
    const auto found = json_integer(*layers, where + ": layers", 0, kMaxInt32);
    if (found != placement.layers()) {
      throw FormatError(fmt::format("{}: layers: found {}, wanted {}, the length of physical_to_logical", where, found,
                                    placement.layers()));
    }
  }
  if (const auto epoch = document.find("epoch"); epoch != document.end()) {
    json_integer(*epoch, where + ": epoch", 0, std::numeric_limits<std::int64_t>::max());
  }
  if (const auto fingerprint = document.find("fingerprint"); fingerprint != document.end()) {
    json_string(*fingerprint, where + ": fingerprint");
    if (*fingerprint != placement.fingerprint()) {
      throw FormatError(fmt::format("{}: fingerprint: found {}, wanted \"{}\", as the maps give", where,
                                    describe_json(*fingerprint), placement.fingerprint()));
    }
  }
}

}  // namespace

Placement Placement::load(const std::filesystem::path& path) {
  const std::string where = path.string();
  const Json document = parse_json(read_text(path), where);
  if (format_name(document, where) == "routepack.plan") {
    check_format(document, "routepack.plan", 1, where);
    const Json& topology = json_member(document, "topology", where);
    return read_maps(document, json_member(topology, "ep", where + ": topology"), where + ": topology.ep", where);
  }
  check_format(document, "routepack.placement", 1, where);
  Placement placement = read_maps(document, json_member(document, "ep", where), where + ": ep", where);
  check_statements(document, placement, where);
  return placement;
}

std::string Placement::to_json(std::int64_t epoch) const {
  if (epoch < 0) throw InvalidInput(fmt::format("placement: epoch: found {}, wanted at least 0", epoch));
  std::string text = fmt::format(
      "{{\n  \"format\": \"routepack.placement/1\",\n  \"ep\": {},\n  \"layers\": {},\n  \"physical_to_logical\": [",
      ranks_, layers());
  std::string_view separator = "\n    ";
  for (const auto& map : physical_to_logical_) {
    Json list = Json::array();
    for (const ExpertId e : map) list.push_back(e.value());
    text += separator;
    text += line_json(list);
    separator = ",\n    ";
  }
  text += fmt::format("\n  ],\n  \"epoch\": {},\n  \"fingerprint\": \"{}\"\n}}\n", epoch, fingerprint());
  return text;
}

void Placement::save(const std::filesystem::path& path, std::int64_t epoch) const {
  write_atomically(path, to_json(epoch));
}

std::string Placement::fingerprint() const {
  Xxh3 hash;
  for (const std::int32_t size : {ranks_, layers(), experts_}) hash.value(static_cast<std::uint64_t>(size));
  std::vector<std::int32_t> values(experts_size());
  for (const auto& map : physical_to_logical_) {
    for (std::size_t slot = 0; slot < map.size(); ++slot) values[slot] = map[slot].value();
    hash.array(std::span<const std::int32_t>(values));
  }
  return hash.digest();
}

}  // namespace routepack
