// SPDX-License-Identifier: Apache-2.0
#include "core/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <vector>

#include "core/assert.h"

namespace routepack {
namespace {

struct Style {
  std::string_view comma;
  std::string_view colon;
  bool sorted;
};

void append_string(std::string& out, const std::string& text) {
  // Names may come from callers who did not check them; a replacement character is better than no file.
  out += Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

void append(std::string& out, const Json& value, const Style& style);

void append_object(std::string& out, const Json& object, const Style& style) {
  using Member = const Json::object_t::value_type*;
  std::vector<Member> members;
  for (const auto& member : object.get_ref<const Json::object_t&>()) members.push_back(&member);
  if (style.sorted) {
    // char_traits<char> compares as unsigned bytes, which for UTF-8 is the order of code points.
    std::sort(members.begin(), members.end(), [](Member a, Member b) { return a->first < b->first; });
  }
  std::string_view separator;
  out += '{';
  for (const Member member : members) {
    out += separator;
    append_string(out, member->first);
    out += style.colon;
    append(out, member->second, style);
    separator = style.comma;
  }
  out += '}';
}

void append(std::string& out, const Json& value, const Style& style) {
  switch (value.type()) {
    case Json::value_t::object:
      return append_object(out, value, style);
    case Json::value_t::array: {
      std::string_view separator;
      out += '[';
      for (const Json& element : value) {
        out += separator;
        append(out, element, style);
        separator = style.comma;
      }
      out += ']';
      return;
    }
    case Json::value_t::string:
      return append_string(out, value.get_ref<const std::string&>());
    case Json::value_t::number_integer:
      fmt::format_to(std::back_inserter(out), "{}", value.get<std::int64_t>());
      return;
    case Json::value_t::number_unsigned:
      fmt::format_to(std::back_inserter(out), "{}", value.get<std::uint64_t>());
      return;
    case Json::value_t::number_float:
      out += number_text(value.get<double>());
      return;
    default:
      out += value.dump();
  }
}

}  // namespace

std::string number_text(double value) {
  ROUTEPACK_ASSERT(std::isfinite(value), "a number without a JSON spelling");
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string line_json(const Json& value) {
  std::string out;
  append(out, value, Style{.comma = ", ", .colon = ": ", .sorted = false});
  return out;
}

std::string canonical_json(const Json& value) {
  std::string out;
  append(out, value, Style{.comma = ",", .colon = ":", .sorted = true});
  return out;
}

}  // namespace routepack
