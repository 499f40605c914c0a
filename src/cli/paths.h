// SPDX-License-Identifier: Apache-2.0
// Files that a subcommand reads and writes.
#pragma once

#include <filesystem>
#include <vector>

namespace routepack::cli {

/// A window file; of a manifest also the files that it names, as far as it can be read.
std::vector<std::filesystem::path> files_of_window(const std::filesystem::path& window);

/// An output that is also an input, or that another output would replace, is a slip of the keyboard. A device may be
/// written twice. @throws UsageError
void refuse_clashes(const std::vector<std::filesystem::path>& inputs,
                    const std::vector<std::filesystem::path>& outputs);

}  // namespace routepack::cli
