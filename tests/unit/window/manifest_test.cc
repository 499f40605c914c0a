// SPDX-License-Identifier: Apache-2.0
// Manifests: files that name window files.
#include "window/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "routepack/error.h"
#include "routepack/window_parts.h"
#include "support/refusal.h"
#include "support/safetensors_bytes.h"
#include "support/temporary_folder.h"
#include "support/window_parts.h"

namespace routepack {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::contents_of;
using testing::counts_of;
using testing::cut;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::join_parts;
using testing::make_window;
using testing::random_window;
using testing::refusal;
using ::testing::StartsWith;
using testing::TemporaryFolder;
using testing::WindowSpec;
using testing::write_parts;

WindowSpec spec_of(std::uint64_t seed, std::int64_t samples = 6) {
  return random_window(seed, samples, 2, 4, 2, 3, 30);
}

/// Parts of two, one and three samples.
std::vector<WindowSpec> three_parts() {
  return cut(spec_of(1), {2, 3});
}

std::string text_of(std::string_view parts, std::string_view format = "routepack.manifest/1") {
  return std::string("{\"format\": \"") + std::string(format) + "\", \"parts\": " + std::string(parts) + "}";
}
constexpr std::string_view kPart = R"({"path": "a.safetensors", "samples": 2, "fingerprint": "xxh3:0123456789abcdef"})";

std::string parse_refusal(const std::string& text) {
  return refusal<FormatError>([&] { (void)parse_manifest(text, "m.json"); });
}

std::string load_refusal(const fs::path& path) {
  return refusal<InvalidInput>([&] { (void)Window::load(path); });
}

TEST(Manifest, is_read_as_the_window_joined_from_its_parts) {
  const TemporaryFolder folder;
  const Window loaded = Window::load(write_parts(folder.path(), three_parts()));
  const Window joined = join_parts(three_parts());
  EXPECT_EQ(loaded.parts().size(), 3U);
  EXPECT_EQ(loaded.fingerprint(), joined.fingerprint());
  EXPECT_EQ(counts_of(loaded), counts_of(joined));
  EXPECT_TRUE(loaded.whole());
}

TEST(Manifest, is_written_with_a_part_per_line) {
  const TemporaryFolder folder;
  const auto parts = three_parts();
  std::string wanted = "{\n  \"format\": \"routepack.manifest/1\",\n  \"parts\": [";
  for (std::size_t k = 0; k < 3; ++k) {
    wanted += std::string(k == 0 ? "" : ",") + "\n    {\"path\": \"part-" + std::to_string(k) +
              ".safetensors\", \"samples\": " + std::to_string(parts[k].samples) + ", \"fingerprint\": \"" +
              make_window(parts[k]).fingerprint() + "\"}";
  }
  EXPECT_EQ(contents_of(write_parts(folder.path(), parts)), wanted + "\n  ]\n}\n");
}

TEST(Manifest, comes_back_as_it_was_written) {
  const std::vector<ManifestPart> parts = {
      {.path = "a b/ü \"quoted\" \\ back.safetensors", .samples = 1, .fingerprint = "xxh3:0123456789abcdef"},
      {.path = "/absolute", .samples = 2147483647, .fingerprint = "xxh3:ffffffffffffffff"}};
  EXPECT_EQ(parse_manifest(manifest_text(parts), "m.json"), parts);
}

TEST(Manifest, finds_parts_beside_it_wherever_the_folder_goes) {
  const TemporaryFolder folder;
  write_parts(folder / "here", three_parts());
  fs::rename(folder / "here", folder / "there");
  EXPECT_EQ(Window::load(folder / "there" / "manifest.json").samples(), 6);
}

/// The paths that save_manifest() gives one window file.
std::string path_written(const fs::path& manifest, const fs::path& part) {
  save_manifest(manifest, std::vector{part});
  const std::string path = parse_manifest(contents_of(manifest), "m.json").at(0).path;
  EXPECT_EQ(Window::load(manifest).samples(), 6) << path;
  return path;
}

TEST(Manifest, names_parts_relative_to_itself) {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) fs::create_directories(folder / name / "deep");
  const fs::path near = folder / "a" / "w", deep = folder / "a" / "deep" / "w", far = folder / "b" / "w";
  for (const fs::path& path : {near, deep, far}) make_window(spec_of(1)).save(path);
  const fs::path manifest = folder / "a" / "m.json";
  EXPECT_EQ(path_written(manifest, near), "w");
  EXPECT_EQ(path_written(manifest, deep), "deep/w");
  EXPECT_EQ(path_written(manifest, far), "../b/w");
  EXPECT_EQ(path_written(manifest, folder / "b" / "deep" / ".." / "w"), "../b/w");
  EXPECT_EQ(path_written(folder / "b" / ".." / "a" / "." / "m.json", near), "w");
  // Also when the process is somewhere else, and says so.
  EXPECT_EQ(path_written(fs::relative(manifest), fs::relative(far)), "../b/w");
  EXPECT_EQ(path_written(fs::relative(manifest), far), "../b/w");
}

TEST(Manifest, names_parts_so_that_links_on_the_way_do_not_mislead) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "data" / "deep");
  fs::create_directories(folder / "elsewhere");
  fs::create_directory_symlink(folder / "data" / "deep", folder / "link");
  fs::create_directory_symlink(folder / "elsewhere", folder / "data" / "hosts");
  make_window(spec_of(1)).save(folder / "w");
  make_window(spec_of(1)).save(folder / "elsewhere" / "w");
  // «link/..» is «data».
  EXPECT_EQ(path_written(folder / "link" / "m.json", folder / "w"), "../../w");
  EXPECT_EQ(path_written(folder / "data" / "m.json", folder / "link" / ".." / ".." / "w"), "../w");
  // What lies below stays below: other machines may have another folder under that name.
  EXPECT_EQ(path_written(folder / "data" / "m.json", folder / "data" / "hosts" / "w"), "hosts/w");
}

TEST(Manifest, may_name_parts_by_absolute_paths) {
  const TemporaryFolder folder;
  const fs::path path = folder / "w";
  make_window(spec_of(1)).save(path);
  fs::create_directory(folder / "other");
  const std::vector<ManifestPart> parts = {
      {.path = path.string(), .samples = 6, .fingerprint = make_window(spec_of(1)).fingerprint()}};
  EXPECT_EQ(path_of_part("anywhere/m.json", parts[0]), path);
  EXPECT_EQ(Window::load(folder.file("other/m.json", manifest_text(parts))).samples(), 6);
}

TEST(Manifest, refuses_another_file_under_the_name_of_a_part) {
  const TemporaryFolder folder;
  const fs::path manifest = write_parts(folder.path(), three_parts());
  const fs::path second = folder / "part-1.safetensors";
  const std::string was = make_window(three_parts()[1]).fingerprint();
  const WindowSpec same_size = testing::slice(spec_of(2), 0, 1);
  make_window(same_size).save(second);
  EXPECT_EQ(load_refusal(manifest), second.string() + ": fingerprint: found " + make_window(same_size).fingerprint() +
                                        ", wanted " + was + " as " + manifest.string() + " says");
  make_window(testing::slice(spec_of(2), 0, 2)).save(second);
  EXPECT_EQ(load_refusal(manifest), second.string() + ": samples: found 2, wanted 1 as " + manifest.string() + " says");
}

TEST(Manifest, refuses_parts_that_do_not_fit_each_other) {
  const TemporaryFolder folder;
  make_window(spec_of(1)).save(folder / "a");
  make_window(random_window(1, 2, 3, 4, 2, 3, 9)).save(folder / "b");
  std::vector<ManifestPart> parts;
  for (const char* name : {"a", "b"}) {
    const Window window = Window::load(folder / name);
    parts.push_back({.path = name, .samples = window.samples(), .fingerprint = window.fingerprint()});
  }
  const fs::path manifest = folder.file("m.json", manifest_text(parts));
  EXPECT_EQ(load_refusal(manifest),
            (folder / "b").string() + ": layers (L): found 3, wanted 2 as in " + (folder / "a").string());
  EXPECT_THAT(refusal<InvalidInput>([&] { save_manifest(manifest, std::vector{folder / "a", folder / "b"}); }),
              HasSubstr("layers (L): found 3, wanted 2"));
}

TEST(Manifest, says_which_part_is_missing_or_no_file) {
  const TemporaryFolder folder;
  const fs::path manifest = write_parts(folder.path(), three_parts());
  const fs::path part = folder / "part-2.safetensors";
  fs::remove(part);
  EXPECT_THAT(refusal<IoError>([&] { (void)Window::load(manifest); }),
              StartsWith(part.string() + ": cannot open for reading"));
  fs::create_directory(part);
  EXPECT_THAT(refusal<IoError>([&] { (void)Window::load(manifest); }), HasSubstr("found a directory"));
  fs::remove(part);
  folder.file("part-2.safetensors", "\x08");
  EXPECT_THAT(load_refusal(manifest), StartsWith(part.string() + ": "));
}

TEST(Manifest, does_not_name_manifests) {
  const TemporaryFolder folder;
  const fs::path inner = write_parts(folder.path(), {spec_of(1)});
  const std::vector<ManifestPart> parts = {
      {.path = "manifest.json", .samples = 6, .fingerprint = Window::load(inner).fingerprint()}};
  const fs::path outer = folder.file("outer.json", manifest_text(parts));
  EXPECT_EQ(load_refusal(outer),
            inner.string() + ": found a JSON text, wanted a window file as a part of " + outer.string());
  // Not even of one part, nor itself.
  const std::string said = ": found a window in parts, wanted a window file";
  EXPECT_EQ(refusal<InvalidInput>([&] { save_manifest(outer, std::vector{inner}); }), inner.string() + said);
  const std::string before = contents_of(inner);
  EXPECT_THAT(refusal<InvalidInput>([&] { save_manifest(inner, std::vector{inner}); }), HasSubstr("as the manifest"));
  EXPECT_EQ(contents_of(inner), before);
}

TEST(SavedManifest, never_takes_the_place_of_a_part) {
  const TemporaryFolder folder;
  const fs::path part = folder / "w";
  make_window(spec_of(1)).save(part);
  const std::string before = contents_of(part);
  fs::create_symlink(part, folder / "link");
  for (const fs::path& manifest : {part, folder / "." / "w", folder / "link"}) {
    EXPECT_EQ(refusal<InvalidInput>([&] { save_manifest(manifest, std::vector{part}); }),
              part.string() + ": found as a part and as the manifest to write");
  }
  EXPECT_EQ(contents_of(part), before);
}

TEST(SavedManifest, refuses_paths_that_json_cannot_hold) {
  const TemporaryFolder folder;
  for (const std::string name : {"not \xff UTF-8", "cut \xc3", "two\nlines", "a\tb"}) {
    const fs::path part = folder / name;
    make_window(spec_of(1)).save(part);
    EXPECT_THAT(refusal<InvalidInput>([&] { save_manifest(folder / "m.json", std::vector{part}); }),
                HasSubstr("found a path with control characters or not in UTF-8"))
        << name;
    EXPECT_FALSE(fs::exists(folder / "m.json"));
  }
  // The folder of both does not stand in the manifest.
  const fs::path home = folder / "home \xff";
  fs::create_directory(home);
  make_window(spec_of(1)).save(home / "w");
  EXPECT_EQ(path_written(home / "m.json", home / "w"), "w");
}

TEST(SavedManifest, refuses_no_parts_and_parts_that_cannot_be_read) {
  const TemporaryFolder folder;
  const fs::path manifest = folder.file("m.json", "as before");
  EXPECT_THAT(refusal<InvalidInput>([&] { save_manifest(manifest, {}); }), HasSubstr("parts: found none"));
  EXPECT_THAT(refusal<IoError>([&] { save_manifest(manifest, std::vector{folder / "nothing"}); }),
              HasSubstr("nothing: cannot open"));
  const fs::path broken = folder.file("broken", std::string("\x10\0\0\0\0\0\0\0{}", 10));
  EXPECT_THAT(refusal<FormatError>([&] { save_manifest(manifest, std::vector{broken}); }),
              StartsWith(broken.string() + ": "));
  EXPECT_EQ(contents_of(manifest), "as before");
}

TEST(ManifestText, needs_its_keys_in_their_types) {
  const auto part = [](std::string_view key, std::string_view value) {
    std::string text = "[{";
    for (const auto& [name, good] : {std::pair{"path", "\"a\""}, std::pair{"samples", "2"},
                                     std::pair{"fingerprint", "\"xxh3:0123456789abcdef\""}}) {
      const std::string_view shown = name == key ? value : std::string_view(good);
      if (shown.empty()) continue;
      if (text.size() > 2) text += ", ";
      text += "\"" + std::string(name) + "\": " + std::string(shown);
    }
    return text_of(text + "}]");
  };
  const auto refuse_part = [&](std::string_view key, std::string_view value) {
    const std::string message = parse_refusal(part(key, value));
    EXPECT_THAT(message, AllOf(StartsWith("m.json: parts[0]: "), HasSubstr(std::string(key))));
    return message;
  };
  EXPECT_EQ(parse_manifest(part("", ""), "m.json").size(), 1U);
  for (const char* key : {"path", "samples", "fingerprint"}) {
    EXPECT_THAT(refuse_part(key, ""), HasSubstr("is missing"));
    EXPECT_THAT(refuse_part(key, "null"), HasSubstr("found null"));
    EXPECT_THAT(refuse_part(key, "[]"), HasSubstr("found an array of 0"));
  }
  EXPECT_THAT(refuse_part("path", "7"), HasSubstr("found the number 7, wanted a string"));
  EXPECT_THAT(refuse_part("path", "\"\""), HasSubstr("wanted the path of a window file"));
  EXPECT_THAT(refuse_part("path", "\"a\\u0000b\""), HasSubstr("wanted the path of a window file"));
  EXPECT_THAT(refuse_part("path", "\"a\\nb\""), HasSubstr("wanted the path of a window file"));
  for (const char* samples : {"0", "-1", "2147483648", "18446744073709551615", "2.0", "\"2\"", "true"}) {
    EXPECT_THAT(refuse_part("samples", samples), HasSubstr("wanted an integer from 1 to 2147483647")) << samples;
  }
  for (const char* fingerprint :
       {"\"\"", "\"xxh3:\"", "\"xxh3:0123456789abcde\"", "\"xxh3:0123456789abcdef0\"", "\"xxh3:0123456789ABCDEF\"",
        "\"md5x:0123456789abcdef\"", "\"xxh3:0123456789abcdeg\""}) {
    EXPECT_THAT(refuse_part("fingerprint", fingerprint), HasSubstr("wanted \"xxh3:\" and 16 hexadecimal digits"));
  }
  EXPECT_THAT(parse_refusal(text_of("{}")), AllOf(HasSubstr("parts: found an object"), HasSubstr("wanted an array")));
  EXPECT_THAT(parse_refusal(text_of("[]")), HasSubstr("parts: found an empty list, wanted window files"));
  EXPECT_THAT(parse_refusal(text_of("[3]")), HasSubstr("parts[0]: found the number 3, wanted an object"));
  EXPECT_THAT(parse_refusal(text_of("[" + std::string(kPart) + ", {}]")), StartsWith("m.json: parts[1]: "));
  EXPECT_THAT(parse_refusal("{\"format\": \"routepack.manifest/1\"}"), HasSubstr("key \"parts\" is missing"));
  EXPECT_THAT(parse_refusal("[]"), HasSubstr("found an array of 0, wanted an object"));
}

TEST(ManifestText, ignores_keys_that_it_does_not_know) {
  const auto parts = parse_manifest(
      R"({"made": {"by": 1}, "parts": [{"host": "a", "path": "a", "samples": 2, "fingerprint": "xxh3:0123456789abcdef"}],
          "format": "routepack.manifest/1"})",
      "m.json");
  EXPECT_EQ(parts, (std::vector<ManifestPart>{{"a", 2, "xxh3:0123456789abcdef"}}));
}

TEST(ManifestText, is_refused_in_another_version_or_format) {
  const std::string list = "[" + std::string(kPart) + "]";
  EXPECT_EQ(parse_manifest(text_of(list), "m.json").size(), 1U);
  EXPECT_THAT(parse_refusal(text_of(list, "routepack.manifest/2")),
              HasSubstr("found version 2 of routepack.manifest, wanted version 1"));
  EXPECT_THAT(parse_refusal(text_of(list, "routepack.plan/1")), HasSubstr("wanted \"routepack.manifest/1\""));
  EXPECT_THAT(parse_refusal("{\"parts\": " + list + "}"), HasSubstr("key \"format\" is missing"));
}

TEST(ManifestText, is_refused_with_a_key_given_twice) {
  EXPECT_THAT(parse_refusal(R"({"format": "routepack.manifest/1", "parts": [], "parts": []})"),
              HasSubstr("key \"parts\" occurs twice in one object"));
  EXPECT_THAT(parse_refusal(text_of(R"([{"path": "a", "path": "b"}])")), HasSubstr("key \"path\" occurs twice"));
}

TEST(ManifestText, is_refused_in_one_line_when_it_is_no_json) {
  for (const std::string text : {"{\"format\": ", "{\"a\n\": 1}", "not json at all", "{\"format\": \"\xff\"}"}) {
    (void)parse_refusal(text);
    const TemporaryFolder folder;
    const fs::path path = folder.file("m.json", text);
    EXPECT_THAT(load_refusal(path), StartsWith(path.string() + ": "));
  }
}

TEST(WindowFile, too_short_for_either_kind_is_refused) {
  const TemporaryFolder folder;
  for (const std::string text : {"", "{}", "{\"a\":1}"}) {
    EXPECT_THAT(load_refusal(folder.file("w", text)), StartsWith((folder / "w").string() + ": "));
  }
}

TEST(WindowFile, that_is_a_plan_is_named_as_such) {
  const TemporaryFolder folder;
  EXPECT_THAT(load_refusal(folder.file("plan.json", R"({"format": "routepack.plan/1", "rows": 3})")),
              HasSubstr("format: found the string \"routepack.plan/1\", wanted \"routepack.manifest/1\""));
}

TEST(WindowFile, whose_header_length_begins_like_json_is_no_manifest) {
  // 0x7b is «{»; lengths of up to three bytes that are not 0.
  for (const std::uint64_t length : {0x17bU, 0x227bU, 0x10227bU}) {
    std::string bytes;
    for (std::size_t padding = 0; padding < length; ++padding) {
      bytes = testing::SafetensorsText()
                  .metadata("format", "routepack.window/1")
                  .metadata("top_k", "1")
                  .tensor("lengths", "I32", "[2]", testing::raw<std::int32_t>({5, 6}))
                  .tensor("counts", "U16", "[2, 1, 3]", testing::raw<std::uint16_t>({1, 2, 2, 0, 6, 0}))
                  .bytes(padding);
      std::uint64_t found = 0;
      std::memcpy(&found, bytes.data(), sizeof found);
      ASSERT_LE(found, length);
      if (found == length) break;
      padding += static_cast<std::size_t>(length - found) - 1;
    }
    ASSERT_EQ(bytes[0], '{');
    EXPECT_FALSE(looks_like_a_manifest(std::as_bytes(std::span(bytes))));
    const TemporaryFolder folder;
    const Window window = Window::load(folder.file("w", bytes));
    EXPECT_THAT(counts_of(window), ElementsAre(1, 2, 2, 0, 6, 0));
    save_manifest(folder / "m.json", std::vector{folder / "w"});
    EXPECT_EQ(counts_of(Window::load(folder / "m.json")), counts_of(window));
  }
}

TEST(Manifest, beginning_with_white_space_or_a_byte_order_mark_is_one) {
  const TemporaryFolder folder;
  const std::string text = contents_of(write_parts(folder.path(), three_parts()));
  for (const std::string front : {"\n\n\n\n\n\n\n\n\n", "  \t\r\n   ", "\xef\xbb\xbf"}) {
    EXPECT_EQ(Window::load(folder.file("m.json", front + text)).samples(), 6);
  }
}

}  // namespace
}  // namespace routepack
