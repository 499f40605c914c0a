// SPDX-License-Identifier: Apache-2.0
// Manifests: which files a window in parts is made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "routepack/window.h"

namespace routepack {

struct ManifestPart {
  std::string path;  ///< as written
  std::int64_t samples = 0;
  std::string fingerprint;
  friend bool operator==(const ManifestPart&, const ManifestPart&) = default;
};

/// Whether a file that begins like this may be a manifest: safetensors begin with a number below 2³².
bool looks_like_a_manifest(std::span<const std::byte> file);

/// @throws FormatError, with `where` in front
std::vector<ManifestPart> parse_manifest(std::string_view text, const std::string& where);
std::string manifest_text(std::span<const ManifestPart> parts);

/// Relative to the manifest, unless it is absolute.
std::filesystem::path path_of_part(const std::filesystem::path& manifest, const ManifestPart& part);

/// The part as the manifest means it, with its fingerprint known.
/// @throws as Window::load; InvalidInput for another file than the one that the manifest was written for
Window load_part(const std::filesystem::path& manifest, const ManifestPart& part);

/// All parts, by several threads, joined.
Window load_parts(const std::filesystem::path& manifest, std::string_view text);

}  // namespace routepack
