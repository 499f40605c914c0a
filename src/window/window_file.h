// SPDX-License-Identifier: Apache-2.0
// Window files in memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/file.h"
#include "routepack/window.h"

namespace routepack {

/// The window in the bytes of a `routepack.window/1` file. Tensors are used in place when they are aligned for their
/// type and copied otherwise; `owner` keeps the bytes alive. Tensors and metadata that windows do not know are ignored,
/// but metadata is kept.
/// @throws FormatError, InvalidInput, with `where` in front
Window parse_window(std::span<const std::byte> file, std::shared_ptr<const void> owner, const std::string& where);

/// Writes what Window::save writes. With `stream` the counts are not in `arrays`, only their type: it hands them over
/// in C order, piece by piece.
/// @throws IoError; InvalidInput for metadata that is not UTF-8
void write_window(const std::filesystem::path& path, const WindowArrays& arrays,
                  std::function<void(const WriteSink&)> stream = {});

}  // namespace routepack
