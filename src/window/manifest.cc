// SPDX-License-Identifier: Apache-2.0
#include "window/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "core/file.h"
#include "core/in_parallel.h"
#include "core/json_file.h"
#include "core/json_text.h"
#include "routepack/error.h"
#include "routepack/window_parts.h"
#include "window/safetensors.h"

namespace routepack {
namespace {

namespace fs = std::filesystem;

bool is_fingerprint(std::string_view text) {
  constexpr std::string_view kStem = "xxh3:";
  constexpr std::size_t kDigits = 16;
  return text.starts_with(kStem) && text.size() == kStem.size() + kDigits &&
         text.find_first_not_of("0123456789abcdef", kStem.size()) == std::string_view::npos;
}

bool is_path(std::string_view text) {
  return !text.empty() && std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

/// Whether JSON can hold the text.
bool is_utf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

/// As it stands in a manifest of the folder `home`. A way up starts from where links lead to, and only then.
std::string path_in_manifest(const fs::path& path, const fs::path& home) {
  const auto goes_up = [](const fs::path& way) { return way.empty() || std::ranges::find(way, "..") != way.end(); };
  const fs::path whole = fs::absolute(path);
  fs::path way = whole.lexically_relative(home).lexically_normal();
  if (goes_up(whole) || goes_up(home) || goes_up(way)) {
    std::error_code failed;
    const fs::path folder = fs::weakly_canonical(whole.parent_path(), failed);
    way = (folder / whole.filename()).lexically_relative(fs::weakly_canonical(home, failed));
    if (failed) way.clear();
  }
  std::string text = way.empty() ? whole.string() : way.string();
  if (is_path(text) && is_utf8(text)) return text;
  throw InvalidInput(
      fmt::format("{}: found a path with control characters or not in UTF-8, wanted one that a manifest "
                  "can hold",
                  printable_name(path.string())));
}

/// Where relative paths begin: beside the file itself, also behind links to it.
fs::path folder_of(fs::path manifest) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int links = 0; links < kMostLinks && fs::is_symlink(manifest, error); ++links) {
    const fs::path target = fs::read_symlink(manifest, error);
    if (error) break;
    manifest = manifest.parent_path() / target;
  }
  return manifest.parent_path();
}

}  // namespace

fs::path path_of_part(const fs::path& manifest, const ManifestPart& part) {
  return folder_of(manifest) / fs::path(part.path);  // an absolute path stays what it is
}

bool looks_like_a_manifest(std::span<const std::byte> file) {
  constexpr std::size_t kHeaderSize = 8;
  if (file.size() < kHeaderSize) return false;
  return std::ranges::none_of(file.first(kHeaderSize), [](std::byte b) { return b == std::byte{0}; });
}

std::vector<ManifestPart> parse_manifest(std::string_view text, const std::string& where) {
  const Json document = parse_json(text, where);
  check_format(document, "routepack.manifest", 1, where);
  std::vector<ManifestPart> parts;
  for (const Json& item : json_array(json_member(document, "parts", where), where + ": parts")) {
    const std::string at = fmt::format("{}: parts[{}]", where, parts.size());
    ManifestPart part{.path = json_string(json_member(json_object(item, at), "path", at), at + ": path"),
                      .samples = json_integer(json_member(item, "samples", at), at + ": samples", 1,
                                              std::numeric_limits<std::int32_t>::max()),
                      .fingerprint = json_string(json_member(item, "fingerprint", at), at + ": fingerprint")};
    if (!is_path(part.path)) {
      throw FormatError(
          fmt::format("{}: path: found {}, wanted the path of a window file", at, describe_json(item["path"])));
    }
    if (!is_fingerprint(part.fingerprint)) {
      throw FormatError(fmt::format("{}: fingerprint: found {}, wanted \"xxh3:\" and 16 hexadecimal digits", at,
                                    describe_json(item["fingerprint"])));
    }
    parts.push_back(std::move(part));
  }
  if (parts.empty()) throw FormatError(fmt::format("{}: parts: found an empty list, wanted window files", where));
  return parts;
}

std::string manifest_text(std::span<const ManifestPart> parts) {
  std::string text = "{\n  \"format\": \"routepack.manifest/1\",\n  \"parts\": [";
  std::string_view separator = "\n    ";
  for (const ManifestPart& part : parts) {
    text += separator;
    text += line_json(Json{{"path", part.path}, {"samples", part.samples}, {"fingerprint", part.fingerprint}});
    separator = ",\n    ";
  }
  return text + "\n  ]\n}\n";
}

Window load_part(const fs::path& manifest, const ManifestPart& part) {
  const fs::path path = path_of_part(manifest, part);
  const auto file = MappedFile::open(path);
  if (looks_like_a_manifest(file->bytes())) {
    throw FormatError(
        fmt::format("{}: found a JSON text, wanted a window file as a part of {}", path.string(), manifest.string()));
  }
  const Window window = Window::load(path).with_fingerprint();
  const auto differ = [&](std::string_view what, const auto& found, const auto& wanted) {
    if (found == wanted) return;
    throw InvalidInput(
        fmt::format("{}: {}: found {}, wanted {} as {} says", path.string(), what, found, wanted, manifest.string()));
  };
  differ("samples", std::int64_t{window.samples()}, part.samples);
  differ("fingerprint", window.fingerprint(), part.fingerprint);
  return window;
}

Window load_parts(const fs::path& manifest, std::string_view text) {
  const auto parts = parse_manifest(text, manifest.string());
  std::vector<std::optional<Window>> loaded(parts.size());
  const std::size_t threads = std::min<std::size_t>(std::max(1U, std::thread::hardware_concurrency()), parts.size());
  in_parallel(static_cast<std::int64_t>(parts.size()), threads, [&](std::int64_t item, std::size_t) {
    const auto k = static_cast<std::size_t>(item);
    loaded[k] = load_part(manifest, parts[k]);
  });
  std::vector<Window> windows;
  std::vector<std::string> names;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    windows.push_back(*std::move(loaded[k]));
    names.push_back(path_of_part(manifest, parts[k]).string());
  }
  return Window::join(std::move(windows), names);
}

Window save_manifest(const fs::path& manifest, std::span<const fs::path> parts) {
  if (manifest.empty()) throw InvalidInput("manifest: found an empty path, wanted a file to write");
  const fs::path home = fs::absolute(folder_of(fs::absolute(manifest)));
  std::vector<Window> windows;
  std::vector<std::string> names;
  std::vector<ManifestPart> written;
  for (const fs::path& path : parts) {
    std::error_code ignored;
    if (fs::equivalent(path, manifest, ignored)) {
      throw InvalidInput(fmt::format("{}: found as a part and as the manifest to write", path.string()));
    }
    if (looks_like_a_manifest(MappedFile::open(path)->bytes())) {
      throw InvalidInput(fmt::format("{}: found a window in parts, wanted a window file", path.string()));
    }
    const std::string named = path_in_manifest(path, home);
    windows.push_back(Window::load(path).with_fingerprint());
    names.push_back(path.string());
    written.push_back(
        {.path = named, .samples = windows.back().samples(), .fingerprint = windows.back().fingerprint()});
  }
  Window joined = Window::join(std::move(windows), names);
  write_atomically(manifest, manifest_text(written));
  return joined;
}

}  // namespace routepack
