// SPDX-License-Identifier: Apache-2.0
// The rules that every window keeps, whatever it was made from.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "routepack/window.h"

namespace routepack {

/// Keys of a window file's metadata that are fields of WindowArrays, not free text.
inline constexpr std::array<std::string_view, 5> kReservedMetadata = {"format", "top_k", "model", "layers", "kind"};

/// One pass over the counts, O(N·L·E).
/// @throws InvalidInput naming `where`, the tensor, the index, found and wanted.
void validate(const WindowArrays& arrays, const std::string& where);

/// What can be said without the counts, which must be empty.
/// @throws as validate
void validate_without_counts(const WindowArrays& arrays, const std::string& where);

}  // namespace routepack
