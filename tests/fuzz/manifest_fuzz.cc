// SPDX-License-Identifier: Apache-2.0
// Any text is a manifest or a refusal of one line; a manifest survives being written and read, and what it names are
// paths that the system takes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "routepack/error.h"
#include "window/manifest.h"

namespace {

using namespace routepack;

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)looks_like_a_manifest(std::as_bytes(std::span(data, size)));
  try {
    const auto parts = parse_manifest(std::string_view(reinterpret_cast<const char*>(data), size), "m.json");
    require(!parts.empty());
    for (const ManifestPart& part : parts) {
      require(part.samples >= 1 && part.path.find_first_of(std::string_view("\0\n\r", 3)) == std::string::npos);
      const auto path = path_of_part("folder/m.json", part);
      require(path.is_absolute() || path.string() == "folder/" + part.path);
    }
    const std::string written = manifest_text(parts);
    require(looks_like_a_manifest(std::as_bytes(std::span(written))));
    require(parse_manifest(written, "m.json") == parts);
  } catch (const InvalidInput& error) {
    require(std::string_view(error.what()).find_first_of("\n\r") == std::string_view::npos);
  }
  return 0;
}
