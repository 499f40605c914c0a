// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>

#include "routepack/error.h"
#include "routepack/generate.h"
#include "routepack/placement.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace routepack {
namespace {

using testing::contents_of;
using testing::refusal;
using testing::TemporaryFolder;

GenerateParams small(const std::string& model = "gpt-oss-20b") {
  return {.model = model, .prompts = 3, .rollouts = 2, .seed = 4};
}

std::vector<std::uint16_t> counts_of(const Window& window) {
  const auto counts = std::get<std::span<const std::uint16_t>>(window.arrays().counts);
  return {counts.begin(), counts.end()};
}

TEST(GeneratedWindow, has_the_shape_of_the_preset) {
  const Window window = generate_window(small("deepseek-v3"));
  EXPECT_EQ(window.samples(), 6);
  EXPECT_EQ(window.layers(), 58);
  EXPECT_EQ(window.experts(), 256);
  EXPECT_EQ(window.top_k(), 8);
  EXPECT_EQ(window.arrays().model, "deepseek-v3");
  EXPECT_EQ(window.arrays().layer_numbers.front(), 3);
  EXPECT_EQ(window.arrays().layer_numbers.back(), 60);
}

TEST(GeneratedWindow, records_every_token_and_names_the_prompt_groups) {
  const Window window = generate_window(small());
  EXPECT_TRUE(std::ranges::equal(window.arrays().recorded, window.arrays().lengths));
  EXPECT_THAT(window.arrays().groups, ::testing::ElementsAre(0, 0, 1, 1, 2, 2));
}

TEST(GeneratedWindow, says_that_it_is_synthetic_and_how_it_was_made) {
  const Window window = generate_window(small("ling-3.0-tiny"));
  const std::map<std::string, std::string> metadata(window.arrays().metadata.begin(), window.arrays().metadata.end());
  EXPECT_EQ(metadata.at("note"), "synthetic");
  EXPECT_EQ(metadata.at("recipe"), "routepack.generate/1");
  EXPECT_EQ(metadata.at("seed"), "4");
  EXPECT_EQ(metadata.at("domain"), "maths (uncalibrated)");
}

TEST(GeneratedWindow, the_file_is_the_window_in_memory) {
  const TemporaryFolder folder;
  const GeneratedWindow made = generate_window(small(), folder / "streamed");
  const Window in_memory = generate_window(small());
  in_memory.save(folder / "saved");
  EXPECT_EQ(contents_of(folder / "streamed"), contents_of(folder / "saved"));
  EXPECT_EQ(made.fingerprint, in_memory.fingerprint());
  EXPECT_EQ(made.fingerprint, Window::load(folder / "streamed").fingerprint());
  EXPECT_EQ(made.samples, 6);
}

TEST(GeneratedWindow, threads_do_not_matter) {
  GenerateParams params = small("qwen3-30b-a3b");
  params.prompts = 16;
  params.threads = 1;
  const std::string alone = generate_window(params).fingerprint();
  for (const std::int64_t threads : {2, 3, 16, 40}) {
    params.threads = threads;
    EXPECT_EQ(generate_window(params).fingerprint(), alone) << threads;
  }
}

TEST(GeneratedWindow, more_prompts_leave_the_first_ones_as_they_were) {
  GenerateParams params = small();
  const auto few = counts_of(generate_window(params));
  params.prompts = 5;
  const auto many = counts_of(generate_window(params));
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
}

TEST(GeneratedWindow, has_the_same_bits_on_every_machine) {
  const auto fingerprint = [](const char* model, LengthProfile lengths, std::int64_t step) {
    return generate_window({.model = model, .lengths = lengths, .prompts = 2, .rollouts = 2, .step = step, .seed = 1})
        .fingerprint();
  };
  EXPECT_EQ(fingerprint("gpt-oss-20b", LengthProfile::Gsm8k, 0), "xxh3:84d72511e769d4c4");
  EXPECT_EQ(fingerprint("gpt-oss-20b", LengthProfile::Mixed, 3), "xxh3:34bae3865a29e0e6");
  EXPECT_EQ(fingerprint("qwen3-30b-a3b", LengthProfile::Reasoning, 0), "xxh3:67ee28ff20e1cb31");
  EXPECT_EQ(fingerprint("glm-4.5", LengthProfile::Math, 0), "xxh3:05209da2d6ee780d");
  EXPECT_EQ(fingerprint("qwen1.5-moe-a2.7b", LengthProfile::Agentic, 1), "xxh3:330e4193f60922c9");
}

TEST(GeneratedWindow, siblings_share_their_prompt_and_not_their_answers) {
  GenerateParams params = small();
  const Window whole = generate_window(params);
  params.answers_only = true;
  const Window answers = generate_window(params);
  const auto with = counts_of(whole);
  const auto without = counts_of(answers);
  const std::size_t size = with.size() / 6;
  for (std::size_t group = 0; group < 3; ++group) {
    const std::size_t a = 2 * group * size, b = a + size;
    std::int64_t routes_of_prompt = 0;
    for (std::size_t at = 0; at < size; ++at) {
      ASSERT_EQ(with[a + at] - without[a + at], with[b + at] - without[b + at]);
      routes_of_prompt += with[a + at] - without[a + at];
    }
    EXPECT_GE(routes_of_prompt, 66 * 24 * 4);
    EXPECT_FALSE(std::equal(&without[a], &without[a] + size, &without[b]));
  }
}

TEST(GeneratedWindow, neighbouring_windows_differ_as_those_of_a_trained_model) {
  // A small model with 64 experts, trained on 64 prompts x 8 of several domains: ln shares of the layer's load moved by
  // sd 0.118 from step to step, nearly all of it the new prompts, and by 0.143 and 0.194 over 8 and 16 steps.
  constexpr std::size_t kExperts = 64;
  const auto log_shares = [](std::int64_t step) {
    const auto demand =
        aggregate_demand(generate_window({.model = "olmoe-1b-7b", .domain = "mixed", .step = step, .seed = 2}));
    std::vector<double> shares;
    for (auto layer = demand.begin(); layer != demand.end(); layer += kExperts) {
      const auto total = static_cast<double>(std::accumulate(layer, layer + kExperts, std::int64_t{0}));
      for (std::size_t e = 0; e < kExperts; ++e) {
        shares.push_back(std::log(static_cast<double>(layer[static_cast<std::ptrdiff_t>(e)]) / total));
      }
    }
    return shares;
  };
  const auto start = log_shares(0);
  const auto change = [&](const std::vector<double>& to) {
    double square = 0.0;
    for (std::size_t at = 0; at < start.size(); ++at) square += (to[at] - start[at]) * (to[at] - start[at]);
    return std::sqrt(square / static_cast<double>(start.size()));
  };
  EXPECT_NEAR(change(log_shares(1)), 0.12, 0.02);
  EXPECT_NEAR(change(log_shares(2)), 0.12, 0.02);
  EXPECT_NEAR(change(log_shares(16)), 0.17, 0.03);
  EXPECT_GT(change(log_shares(64)),
            0.4);  // a straight line: the prompts' part stays, the policy's grows with the steps
}

TEST(GeneratedWindow, progress_counts_up_to_all_samples_and_may_end_the_work) {
  std::vector<std::int64_t> seen;
  (void)generate_window(small(), [&](std::int64_t done, std::int64_t samples) {
    EXPECT_EQ(samples, 6);
    seen.push_back(done);
  });
  EXPECT_EQ(seen.front(), 0);
  EXPECT_EQ(seen.back(), 6);
  EXPECT_TRUE(std::ranges::is_sorted(seen));

  const TemporaryFolder folder;
  const auto stop = [](std::int64_t, std::int64_t) { throw std::runtime_error("enough"); };
  EXPECT_THROW(generate_window(small(), folder / "window", stop), std::runtime_error);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(GeneratedWindow, numbers_out_of_bounds_are_refused) {
  GenerateParams params = small();
  params.prompts = 0;
  EXPECT_EQ(refusal<InvalidInput>([&] { (void)generate_window(params); }), "prompts: found 0, wanted 1 to 2147483647");
  params.prompts = 1 << 20;
  params.rollouts = 1 << 12;
  EXPECT_EQ(refusal<InvalidInput>([&] { (void)generate_window(params); }),
            "prompts x rollouts: found 1048576 x 4096, wanted at most 2147483647 samples");
}

}  // namespace
}  // namespace routepack
