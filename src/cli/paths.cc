// SPDX-License-Identifier: Apache-2.0
#include "cli/paths.h"

#include <fmt/format.h>

#include <string_view>
#include <system_error>

#include "cli/command.h"
#include "core/file.h"
#include "routepack/error.h"
#include "window/manifest.h"

namespace routepack::cli {
namespace fs = std::filesystem;

std::vector<fs::path> files_of_window(const fs::path& window) {
  std::vector<fs::path> files{window};
  try {
    const auto file = MappedFile::open(window);
    const auto bytes = file->bytes();
    if (!looks_like_a_manifest(bytes)) return files;
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    for (const ManifestPart& part : parse_manifest(text, window.string())) files.push_back(path_of_part(window, part));
  } catch (const Error&) {  // whoever loads it will say so
  }
  return files;
}

void refuse_clashes(const std::vector<fs::path>& inputs, const std::vector<fs::path>& outputs) {
  const auto same = [](const fs::path& a, const fs::path& b) {
    std::error_code ignored;
    return fs::equivalent(a, b, ignored) || fs::weakly_canonical(a, ignored) == fs::weakly_canonical(b, ignored);
  };
  std::vector<fs::path> taken = inputs;
  for (const fs::path& output : outputs) {
    std::error_code ignored;
    if (fs::exists(output, ignored) && fs::is_other(output, ignored)) continue;
    for (std::size_t k = 0; k < taken.size(); ++k) {
      if (!same(output, taken[k])) continue;
      throw UsageError(fmt::format("{}: found as an output and as {} {}, wanted a file of its own", output.string(),
                                   k < inputs.size() ? "the input" : "another output,", taken[k].string()));
    }
    taken.push_back(output);
  }
}

}  // namespace routepack::cli
