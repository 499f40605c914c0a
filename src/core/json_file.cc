// SPDX-License-Identifier: Apache-2.0
#include "core/json_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "routepack/error.h"

namespace routepack {
namespace {

constexpr std::int64_t kMaxIndex = std::numeric_limits<std::int32_t>::max();

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string at(const std::string& where, std::size_t index) {
  return fmt::format("{}[{}]", where, index);
}

template <class Element, class Read>
std::vector<Element> read_array(const Json& value, const std::string& where, Read read) {
  std::vector<Element> elements;
  elements.reserve(json_array(value, where).size());
  for (std::size_t i = 0; i < value.size(); ++i) elements.push_back(read(value[i], at(where, i)));
  return elements;
}

}  // namespace

std::string format_name(const Json& document, const std::string& where) {
  const std::string& format = json_string(json_member(document, "format", where), where + ": format");
  return format.substr(0, format.find('/'));
}

void check_format(const Json& document, std::string_view name, int version, const std::string& where) {
  const std::string& found = json_string(json_member(document, "format", where), where + ": format");
  const std::string wanted = fmt::format("{}/{}", name, version);
  if (found == wanted) return;
  const std::string prefix = fmt::format("{}/", name);
  if (found.starts_with(prefix) && is_number(std::string_view(found).substr(prefix.size()))) {
    throw FormatError(
        fmt::format("{}: format: found version {} of {}, wanted version {}: the file was written by another "
                    "major version of RoutePack",
                    where, found.substr(prefix.size()), name, version));
  }
  throw FormatError(fmt::format("{}: format: found {}, wanted \"{}\"", where, describe_json(Json(found)), wanted));
}

std::vector<std::int32_t> json_indices(const Json& value, const std::string& where) {
  std::vector<std::int32_t> indices;
  indices.reserve(json_array(value, where).size());
  for (std::size_t i = 0; i < value.size(); ++i) {
    const Json& element = value[i];
    // The place is put into words only for a bad element: plans hold hundreds of thousands of good ones.
    const bool good = element.is_number_unsigned() && element.get<std::uint64_t>() <= std::uint64_t{kMaxIndex};
    indices.push_back(static_cast<std::int32_t>(good ? element.get<std::int64_t>()
                                                     : json_integer(element, at(where, i), 0, kMaxIndex)));
  }
  return indices;
}

std::vector<std::vector<std::int32_t>> json_index_lists(const Json& value, const std::string& where) {
  return read_array<std::vector<std::int32_t>>(value, where, json_indices);
}

std::vector<std::vector<std::vector<std::int32_t>>> json_index_tables(const Json& value, const std::string& where) {
  return read_array<std::vector<std::vector<std::int32_t>>>(value, where, json_index_lists);
}

}  // namespace routepack
