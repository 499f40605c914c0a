// SPDX-License-Identifier: Apache-2.0
// JSON parsed strictly, and values taken from it with messages that name the key, what was found and what was wanted.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace routepack {

using Json = nlohmann::ordered_json;

/// @throws FormatError for invalid JSON, a key that occurs twice in one object, nesting deeper than 64, or bytes behind
///         the value. `where` goes in front.
Json parse_json(std::string_view text, const std::string& where);

/// «an array», «a string», «the number 3.5», … for messages.
std::string describe_json(const Json& value);

/// The integer in `value`. `where` names the file and the key. A float that is no integer is refused, as is a boolean.
/// @throws FormatError
std::int64_t json_integer(const Json& value, const std::string& where,
                          std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                          std::int64_t max = std::numeric_limits<std::int64_t>::max());
/// Any finite number. @throws FormatError
double json_number(const Json& value, const std::string& where);
bool json_bool(const Json& value, const std::string& where);
const std::string& json_string(const Json& value, const std::string& where);
/// `value` itself when it is an array (object). @throws FormatError
const Json& json_array(const Json& value, const std::string& where);
const Json& json_object(const Json& value, const std::string& where);
/// The member `key` of an object. @throws FormatError when it is missing
const Json& json_member(const Json& object, std::string_view key, const std::string& where);

}  // namespace routepack
