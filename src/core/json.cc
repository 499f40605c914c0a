// SPDX-License-Identifier: Apache-2.0
#include "core/json.h"

#include <fmt/format.h>

#include <cmath>
#include <set>
#include <vector>

#include "routepack/error.h"

namespace routepack {
namespace {

constexpr int kMaxDepth = 64;

[[noreturn]] void wrong(const Json& value, const std::string& where, std::string_view wanted) {
  throw FormatError(fmt::format("{}: found {}, wanted {}", where, describe_json(value), wanted));
}

/// The library's text without its bracketed id, its line numbers and the bytes of the input that it repeats.
std::string cause_of(std::string text) {
  if (const auto column = text.find("column "); column != std::string::npos) {
    if (const auto colon = text.find(": ", column); colon != std::string::npos) text = text.substr(colon + 2);
  }
  if (const auto repeated = text.find("; last read: "); repeated != std::string::npos) {
    const auto rest = text.rfind("'; expected ");
    text = text.substr(0, repeated) + (rest == std::string::npos ? "" : text.substr(rest + 1));
  }
  return text;
}

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  // The parser takes a zero byte for the end of its input and would not look behind it.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) {
    throw FormatError(fmt::format("{}: invalid JSON at byte {}: a zero byte", where, zero + 1));
  }
  std::vector<std::set<std::string>> keys_of_open_objects;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    using enum Json::parse_event_t;
    if (depth > kMaxDepth) throw FormatError(fmt::format("{}: JSON is nested deeper than {}", where, kMaxDepth));
    if (event == object_start) keys_of_open_objects.emplace_back();
    if (event == object_end) keys_of_open_objects.pop_back();
    if (event == key && !keys_of_open_objects.back().insert(parsed.get<std::string>()).second) {
      throw FormatError(fmt::format("{}: key {} occurs twice in one object", where, quoted(parsed.get<std::string>())));
    }
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    throw FormatError(fmt::format("{}: invalid JSON at byte {}: {}", where, error.byte, cause_of(error.what())));
  } catch (const Json::exception& error) {
    throw FormatError(fmt::format("{}: invalid JSON: {}", where, error.what()));
  }
}

std::string describe_json(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return fmt::format("an array of {}", value.size());
    case Json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      return "the string " + quoted(text.size() > 40 ? text.substr(0, 40) + "…" : text);
    }
    case Json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    default:
      return "the number " + value.dump();
  }
}

std::int64_t json_integer(const Json& value, const std::string& where, std::int64_t min, std::int64_t max) {
  const auto wanted = [&] {
    return min == std::numeric_limits<std::int64_t>::min() ? std::string("an integer")
                                                           : fmt::format("an integer from {} to {}", min, max);
  };
  if (!value.is_number_integer()) wrong(value, where, wanted());
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    wrong(value, where, wanted());
  }
  const auto number = value.get<std::int64_t>();
  if (number < min || number > max) wrong(value, where, wanted());
  return number;
}

double json_number(const Json& value, const std::string& where) {
  if (!value.is_number()) wrong(value, where, "a number");
  const auto number = value.get<double>();
  if (!std::isfinite(number)) wrong(value, where, "a finite number");
  return number;
}

bool json_bool(const Json& value, const std::string& where) {
  if (!value.is_boolean()) wrong(value, where, "true or false");
  return value.get<bool>();
}

const std::string& json_string(const Json& value, const std::string& where) {
  if (!value.is_string()) wrong(value, where, "a string");
  return value.get_ref<const std::string&>();
}

const Json& json_array(const Json& value, const std::string& where) {
  if (!value.is_array()) wrong(value, where, "an array");
  return value;
}

const Json& json_object(const Json& value, const std::string& where) {
  if (!value.is_object()) wrong(value, where, "an object");
  return value;
}

const Json& json_member(const Json& object, std::string_view key, const std::string& where) {
  const auto found = json_object(object, where).find(std::string(key));
  if (found == object.end()) throw FormatError(fmt::format("{}: key \"{}\" is missing", where, key));
  return *found;
}

}  // namespace routepack
