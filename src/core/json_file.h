// SPDX-License-Identifier: Apache-2.0
// What the JSON files of this project share: the format key, and lists of indices with messages that name the element.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace routepack {

/// The name before the «/» of the key `format`.
/// @throws FormatError when the key is missing or no such text
std::string format_name(const Json& document, const std::string& where);

/// Requires `format` to be `name`/`version`. @throws FormatError that tells another format from another version
void check_format(const Json& document, std::string_view name, int version, const std::string& where);

/// Integers 0 … 2³¹ − 1. `where` names file and key; messages add the index, as in «plan.json: layout[3][1][0]: …».
/// @throws FormatError
std::vector<std::int32_t> json_indices(const Json& value, const std::string& where);
std::vector<std::vector<std::int32_t>> json_index_lists(const Json& value, const std::string& where);
std::vector<std::vector<std::vector<std::int32_t>>> json_index_tables(const Json& value, const std::string& where);

}  // namespace routepack
