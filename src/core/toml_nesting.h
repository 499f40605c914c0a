// SPDX-License-Identifier: Apache-2.0
// A guard in front of the TOML parser, which recurses over nested values and whose tables free each other recursively:
// a line of a hundred thousand dots would end the process.
#pragma once

#include <string>
#include <string_view>

namespace routepack {

/// @throws FormatError with line and column for a key of more than 16 parts or brackets more than 16 deep. Text that is
///         not TOML passes as far as it is followed; the parser refuses it.
void refuse_deep_toml(std::string_view text, const std::string& where);

}  // namespace routepack
