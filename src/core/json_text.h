// SPDX-License-Identifier: Apache-2.0
// JSON as text: one spelling of each number, whichever library parsed it.
#pragma once

#include <string>

#include "core/json.h"

namespace routepack {

/// The shortest decimal that reads back as `value`: 1.0, 0.1, 1e-05, 1e+16. Also a valid TOML float. `value` is finite.
std::string number_text(double value);

/// On one line, keys in their order, a space behind «,» and «:».
std::string line_json(const Json& value);

/// Keys sorted by their bytes at every level, no white space, text as UTF-8: what hashes are taken over
/// (docs/formats.md).
std::string canonical_json(const Json& value);

}  // namespace routepack
