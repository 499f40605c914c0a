// SPDX-License-Identifier: Apache-2.0
// Safetensors files: a strict reader of bytes that never copies tensor data, and an atomic writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file.h"

namespace routepack {

/// One tensor inside the bytes it was read from. The bytes may lie at any address: check before casting.
struct TensorView {
  std::string dtype;  ///< as the format spells it, "U16" for instance
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;  ///< in file order, keys are unique

struct Safetensors {
  std::map<std::string, TensorView, std::less<>> tensors;
  Metadata metadata;
};

/// Reads header and ranges. Tensors cover the data from its first byte to its last without overlap or hole, so a
/// truncated or over-long file never passes. No key may occur twice, none is unknown, and a header of more than 50,000
/// JSON values is refused.
/// @throws FormatError naming `where`, the tensor, found and wanted.
Safetensors parse_safetensors(std::span<const std::byte> file, const std::string& where);

/// A tensor to be written; `bytes` are its values in C order, little-endian. With `stream` there are none: it is called
/// when their turn comes and hands them over piece by piece.
struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  std::function<void(const WriteSink&)> stream = {};
};

/// Writes a file whose tensors all start at a multiple of their item size: largest items first, otherwise in the given
/// order. Streams, no copy of tensor data. The file appears whole or not at all.
/// @throws IoError; InvalidInput for metadata that is not UTF-8
void write_safetensors(const std::filesystem::path& path, const Metadata& metadata, std::vector<TensorToWrite> tensors);

/// A tensor's (or key's) name as it stands in messages: plain when harmless, else quoted, escaped and shortened, so
/// that a hostile name cannot break the one line.
std::string printable_name(std::string_view name);

}  // namespace routepack
