// SPDX-License-Identifier: Apache-2.0
// Windows cut into parts, as tensors, as files, and as a member of a team has them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "routepack/window.h"
#include "routepack/window_parts.h"
#include "support/builders.h"

namespace routepack::testing {

/// Samples first … end − 1, with everything that a window file says of them.
inline WindowSpec slice(const WindowSpec& whole, std::int64_t first, std::int64_t end) {
  WindowSpec part = whole;
  part.samples = end - first;
  const auto samples = static_cast<std::size_t>(whole.samples);
  const auto keep = [&](auto& values) {
    const std::size_t each = values.size() / samples;
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * each);
    values = {begin, begin + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(end - first) * each)};
  };
  keep(part.lengths);
  keep(part.counts);
  keep(part.recorded);
  keep(part.groups);
  keep(part.atomic);
  keep(part.ids);
  return part;
}

/// Cut in front of the samples `at`, which rise.
inline std::vector<WindowSpec> cut(const WindowSpec& whole, std::vector<std::int64_t> at) {
  at.push_back(whole.samples);
  std::vector<WindowSpec> parts;
  std::int64_t first = 0;
  for (const std::int64_t end : at) {
    parts.push_back(slice(whole, first, end));
    first = end;
  }
  return parts;
}

/// As make_window(), but with counts in 16 bits; they must fit.
inline Window make_narrow_window(WindowSpec spec) {
  struct Owned {
    Window wide;
    std::vector<std::uint16_t> counts;
  };
  const auto owned = std::make_shared<Owned>(Owned{make_window(spec), {}});
  for (const std::uint32_t count : spec.counts) owned->counts.push_back(static_cast<std::uint16_t>(count));
  WindowArrays arrays = owned->wide.arrays();
  arrays.counts = std::span<const std::uint16_t>(owned->counts);
  return Window(std::move(arrays), owned);
}

/// In 16 bits where that is asked for and possible.
inline Window make_part(const WindowSpec& spec, bool narrow) {
  const bool fits = std::ranges::all_of(spec.counts, [](std::uint32_t count) { return count <= 0xffff; });
  return narrow && fits ? make_narrow_window(spec) : make_window(spec);
}

/// «part-0», «part-1», …
inline std::vector<std::string> names_of_parts(std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t k = 0; k < count; ++k) names.push_back("part-" + std::to_string(k));
  return names;
}

/// Every second part has its counts in 16 bits.
inline Window join_parts(const std::vector<WindowSpec>& parts) {
  std::vector<Window> windows;
  for (std::size_t k = 0; k < parts.size(); ++k) windows.push_back(make_part(parts[k], k % 2 == 1));
  return Window::join(std::move(windows), names_of_parts(parts.size()));
}

/// What load_window() gives a member of a team of which member holder[k] reads part k. No files.
inline Window join_as_member(const std::vector<WindowSpec>& parts, const std::vector<std::int32_t>& holder,
                             std::int32_t member) {
  std::vector<Window> windows;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    Window part = make_part(parts[k], k % 2 == 1);
    if (holder[k] == member) {
      windows.push_back(std::move(part));
      continue;
    }
    WindowArrays arrays = part.arrays();
    arrays.counts = std::span<const std::uint16_t>();
    const auto owner = std::make_shared<const Window>(part);
    windows.push_back(Window::without_counts(std::move(arrays), owner, part.fingerprint(), "part"));
  }
  return Window::join(std::move(windows), names_of_parts(parts.size()), true);
}

/// part-0.safetensors … and manifest.json in a folder; the path of the manifest. Every second part has counts in 16
/// bits.
inline std::filesystem::path write_parts(const std::filesystem::path& folder, const std::vector<WindowSpec>& parts) {
  std::filesystem::create_directories(folder);
  std::vector<std::filesystem::path> files;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    files.push_back(folder / ("part-" + std::to_string(k) + ".safetensors"));
    make_part(parts[k], k % 2 == 1).save(files.back());
  }
  save_manifest(folder / "manifest.json", files);
  return folder / "manifest.json";
}

/// All counts [N, L, E], widened.
inline std::vector<std::uint32_t> counts_of(const Window& window) {
  std::vector<std::uint32_t> all;
  for (const SampleId i : window.sample_ids()) {
    window.visit_counts(i, [&](auto counts) { all.insert(all.end(), counts.begin(), counts.end()); });
  }
  return all;
}

}  // namespace routepack::testing
