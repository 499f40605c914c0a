// SPDX-License-Identifier: Apache-2.0
// A generated window in parts is the generated window.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "routepack/error.h"
#include "routepack/generate.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "support/window_parts.h"

namespace routepack {
namespace {

using testing::contents_of;
using testing::counts_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;
using testing::TemporaryFolder;

GenerateParams small() {
  return {.model = "gpt-oss-20b", .prompts = 5, .rollouts = 2, .seed = 4};
}

TEST(GeneratedParts, together_are_the_window) {
  const Window whole = generate_window(small());
  for (const std::int64_t parts : {1, 2, 3, 5}) {
    const TemporaryFolder folder;
    const GeneratedWindow made = generate_parts(small(), folder / "w", parts);
    const Window joined = Window::load(folder / "w" / "manifest.json");
    EXPECT_EQ(joined.parts().size(), static_cast<std::size_t>(parts));
    EXPECT_EQ(counts_of(joined), counts_of(whole));
    EXPECT_TRUE(std::ranges::equal(joined.arrays().lengths, whole.arrays().lengths));
    EXPECT_TRUE(std::ranges::equal(joined.arrays().recorded, whole.arrays().recorded));
    EXPECT_TRUE(std::ranges::equal(joined.arrays().groups, whole.arrays().groups));
    EXPECT_EQ(joined.arrays().layer_numbers, whole.arrays().layer_numbers);
    EXPECT_EQ(joined.arrays().model, whole.arrays().model);
    EXPECT_EQ(made.fingerprint, joined.fingerprint());
    EXPECT_EQ(made.samples, 10);
    std::int64_t tokens = 0;
    for (const std::int32_t length : whole.arrays().lengths) tokens += length;
    EXPECT_EQ(made.tokens, tokens);
    joined.save(folder / "joined");
    EXPECT_EQ(Window::load(folder / "joined").fingerprint(), whole.fingerprint());
  }
}

TEST(GeneratedParts, lie_in_files_that_say_which_prompts_they_hold) {
  const TemporaryFolder folder;
  (void)generate_parts(small(), folder.path(), 3);
  EXPECT_THAT(folder.names(),
              ElementsAre("manifest.json", "part-0000.safetensors", "part-0001.safetensors", "part-0002.safetensors"));
  const Window window = Window::load(folder / "manifest.json");
  std::vector<std::string> prompts;
  for (const Window& part : window.parts()) {
    const std::map<std::string, std::string> metadata(part.arrays().metadata.begin(), part.arrays().metadata.end());
    prompts.push_back(metadata.at("prompts_here"));
    EXPECT_EQ(metadata.at("prompts"), "5");
    EXPECT_EQ(metadata.at("note"), "synthetic");
  }
  EXPECT_THAT(prompts, ElementsAre("0 to 0", "1 to 2", "3 to 4"));
}

TEST(GeneratedParts, are_the_same_bytes_with_any_number_of_threads) {
  const TemporaryFolder folder;
  for (const std::int64_t threads : {1, 3}) {
    GenerateParams params = small();
    params.threads = threads;
    (void)generate_parts(params, folder / std::to_string(threads), 2);
  }
  for (const char* name : {"part-0000.safetensors", "part-0001.safetensors", "manifest.json"}) {
    EXPECT_EQ(contents_of(folder / "1" / name), contents_of(folder / "3" / name)) << name;
  }
}

TEST(GeneratedParts, progress_counts_over_all_of_them_and_may_end_the_work) {
  const TemporaryFolder folder;
  std::vector<std::int64_t> seen;
  (void)generate_parts(small(), folder / "w", 3, [&](std::int64_t done, std::int64_t samples) {
    EXPECT_EQ(samples, 10);
    seen.push_back(done);
  });
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  EXPECT_EQ(seen.front(), 0);
  EXPECT_EQ(seen.back(), 10);
  EXPECT_THROW((void)generate_parts(small(), folder / "x", 3,
                                    [](std::int64_t done, std::int64_t) {
                                      if (done == 2) throw std::runtime_error("enough");
                                    }),
               std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(folder / "x" / "manifest.json"));  // written last
}

TEST(GeneratedParts, are_at_least_one_and_at_most_as_many_as_prompts) {
  const TemporaryFolder folder;
  const auto said = [&](std::int64_t prompts, std::int64_t parts) {
    GenerateParams params = small();
    params.prompts = prompts;
    return refusal<InvalidInput>([&] { (void)generate_parts(params, folder / "w", parts); });
  };
  EXPECT_EQ(said(5, 0), "parts: found 0, wanted 1 to 5, the prompts");
  EXPECT_EQ(said(5, -1), "parts: found -1, wanted 1 to 5, the prompts");
  EXPECT_EQ(said(5, 6), "parts: found 6, wanted 1 to 5, the prompts");
  EXPECT_THAT(said(0, 1), HasSubstr("prompts: found 0, wanted 1 to"));
  EXPECT_TRUE(folder.names().empty());
}

TEST(GeneratedParts, need_a_folder) {
  const TemporaryFolder folder;
  folder.file("taken", "a file");
  EXPECT_THAT(refusal<IoError>([&] { (void)generate_parts(small(), folder / "taken", 2); }),
              HasSubstr("taken: wanted a folder for 2 parts"));
  EXPECT_THAT(refusal<IoError>([&] { (void)generate_parts(small(), folder / "no" / "folder", 2); }),
              HasSubstr("wanted a folder for 2 parts: No such file"));
}

}  // namespace
}  // namespace routepack
