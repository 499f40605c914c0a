// SPDX-License-Identifier: Apache-2.0
// Windows in parts, planned by processes that have the counts of some parts each: threads with a link of their own,
// over the network of threads.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "routepack/error.h"
#include "routepack/plan.h"
#include "routepack/plan_file.h"
#include "routepack/verify.h"
#include "routepack/window_parts.h"
#include "support/team.h"
#include "support/temporary_folder.h"
#include "support/window_parts.h"

namespace routepack {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::AllOf;
using testing::cut;
using ::testing::HasSubstr;
using testing::in_team;
using testing::make_window;
using testing::random_window;
using testing::slice;
using ::testing::StartsWith;
using testing::TemporaryFolder;
using testing::WindowSpec;
using testing::write_parts;

const CostModel kCost({{.name = "full", .alpha = 12.0, .beta = 3.0}, {.name = "linear", .alpha = 7.0}});

/// What is planned, and how.
struct Job {
  std::int64_t capacity = 1000;
  Constraints constraints = {};
  Sync sync = Sync::Step;
  PlanParams params = {.effort = Effort::Fast, .threads = 1, .seed = 5};
};

/// What a member came to: the plans as text, or what was thrown.
struct Outcome {
  std::string text;
  std::string error;
  std::string kind;
  std::int32_t lost = -1;
};

template <class Work>
Outcome outcome_of(const Work& work) {
  Outcome outcome;
  const auto failed = [&](const char* kind, const std::exception& error) {
    outcome.kind = kind;
    outcome.error = error.what();
  };
  try {
    outcome.text = work();
  } catch (const PeerLost& error) {
    failed("lost", error);
    outcome.lost = error.rank();
  } catch (const FormatError& error) {
    failed("format", error);
  } catch (const InvalidInput& error) {
    failed("input", error);
  } catch (const IoError& error) {
    failed("io", error);
  } catch (const std::exception& error) {
    failed("other", error);
  }
  return outcome;
}

Instance instance_of(const Window& window, const Job& job) {
  return Instance(window, Topology::megatron({.dp = 4, .ep = 4, .tp = 2}), kCost, job.capacity, job.constraints,
                  job.sync);
}

/// The plans of windows that share a placement, byte for byte, with their hashes.
std::string plans_of(const std::vector<Window>& windows, const Job& job, Communicator* team) {
  std::vector<Instance> instances;
  instances.reserve(windows.size());
  std::vector<const Instance*> asked;
  for (const Window& window : windows) asked.push_back(&instances.emplace_back(instance_of(window, job)));
  const auto made = make_plans(asked, job.params, nullptr, {.team = team});
  if (const auto* why = std::get_if<Infeasible>(&made)) return "infeasible: " + why->reason + "; " + why->remedy;
  std::string text;
  const auto& plans = std::get<std::vector<Plan>>(made);
  for (std::size_t k = 0; k < plans.size(); ++k) {
    const std::string json = to_json(make_record(instances[k], job.params, plans[k]));
    text += plan_hash(json) + "\n" + json;
  }
  return text;
}

/// 48 samples in six parts of different sizes.
WindowSpec spec_of(std::uint64_t seed) {
  return random_window(seed, 48, 3, 16, 2, 20, 300);
}
const std::vector<std::int64_t> kCuts = {5, 17, 18, 30, 41};

class PartsFor : public ::testing::TestWithParam<std::int32_t> {
 protected:
  /// All members plan the manifests as one process does; what that came to.
  std::string expect_as_alone(const std::vector<fs::path>& manifests, const Job& job) {
    const Outcome alone = outcome_of([&] {
      std::vector<Window> windows;
      for (const fs::path& manifest : manifests) windows.push_back(Window::load(manifest));
      return plans_of(windows, job, nullptr);
    });
    EXPECT_EQ(alone.error, "");
    for (const Outcome& outcome : in_team(GetParam(), [&](TeamLink& link) {
           return outcome_of([&] {
             std::vector<Window> windows;
             for (const fs::path& manifest : manifests) {
               windows.push_back(load_window(manifest, link));
               if (windows.back().whole() != (link.ranks() == 1)) throw Error("wrong idea of who has what");
             }
             return plans_of(windows, job, &link);
           });
         })) {
      EXPECT_EQ(outcome.error, "");
      EXPECT_EQ(outcome.text, alone.text);
    }
    return alone.text;
  }

  std::string expect_as_alone(const WindowSpec& spec, const Job& job, const std::vector<std::int64_t>& cuts = kCuts) {
    const TemporaryFolder folder;
    return expect_as_alone(std::vector{write_parts(folder.path(), cut(spec, cuts))}, job);
  }

  /// And it is a plan; which.
  template <class Windows>
  std::string expect_plan_as_alone(const Windows& windows, const Job& job) {
    const std::string text = expect_as_alone(windows, job);
    EXPECT_THAT(text, StartsWith("xxh3:"));
    return text;
  }
};
INSTANTIATE_TEST_SUITE_P(Members, PartsFor, ::testing::Values(1, 2, 3, 5));

TEST_P(PartsFor, are_planned_as_by_one_process_at_any_effort) {
  for (const Effort effort : {Effort::Paper, Effort::Fast}) {
    Job job;
    job.params.effort = effort;
    EXPECT_THAT(expect_as_alone(spec_of(1), job), HasSubstr("routepack.plan/1"));
  }
}

TEST_P(PartsFor, are_planned_as_by_one_process_with_any_placement) {
  for (const auto& [mode, moves] :
       {std::pair{PlacementMode::Keep, ""}, std::pair{PlacementMode::Lpt, ""}, std::pair{PlacementMode::Sticky, "0.2"},
        std::pair{PlacementMode::Joint, "free"}, std::pair{PlacementMode::Joint, "price:0.01"}}) {
    Job job;
    job.params.placement = mode;
    job.params.moves = moves;
    expect_plan_as_alone(spec_of(2), job);
  }
}

TEST_P(PartsFor, come_to_one_valid_plan_when_a_deadline_cuts_it) {
  const TemporaryFolder folder;
  const fs::path manifest = write_parts(folder.path(), cut(random_window(9, 400, 3, 16, 2, 20, 300), {90, 100, 350}));
  Job job;
  job.params.effort = Effort::Quality;
  job.params.deadline_ms = 60;
  const auto texts = in_team(GetParam(), [&](TeamLink& link) {
    return outcome_of([&] { return plans_of({load_window(manifest, link)}, job, &link); });
  });
  const std::string& text = texts.front().text;
  ASSERT_THAT(text, HasSubstr("\n{"));
  const PlanRecord plan = parse_plan(text.substr(text.find('\n') + 1), "plan");
  EXPECT_FALSE(plan.complete);
  for (const Violation& violation : verify(Window::load(manifest), plan).violations) ADD_FAILURE() << violation.message;
  for (const Outcome& outcome : texts) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.text, text);
  }
}

TEST_P(PartsFor, are_planned_as_by_one_process_with_padding) {
  WindowSpec spec = spec_of(3);
  for (std::uint32_t n = 0; n < 48; ++n) spec.pad_counts.push_back(n * 3001 % 70'000);
  expect_plan_as_alone(spec, {.constraints = {.sample_multiple = 8, .cell_multiple = 64}});
}

TEST_P(PartsFor, are_planned_as_by_one_process_with_atomic_groups) {
  WindowSpec spec = spec_of(4);
  for (int i = 0; i < 48; ++i) spec.atomic.push_back(i % 3 == 0 ? -1 : i / 6);  // some lie in two parts
  expect_plan_as_alone(spec, {.capacity = 2000});
}

TEST_P(PartsFor, are_planned_as_by_one_process_with_samples_without_routes) {
  WindowSpec spec = spec_of(5);
  for (const std::size_t i : {0U, 4U, 17U, 29U, 30U, 47U}) {  // 17 is a part of its own
    spec.recorded[i] = 0;
    std::fill_n(spec.counts.begin() + static_cast<std::ptrdiff_t>(i * 48), 48, 0U);
  }
  expect_plan_as_alone(spec, {});
}

TEST_P(PartsFor, are_planned_as_by_one_process_with_routes_recorded_per_layer) {
  auto parts = cut(spec_of(6), kCuts);
  for (const std::size_t k : {1U, 4U}) {  // the others say it per sample
    WindowSpec& part = parts[k];
    part.recorded.clear();
    for (const std::int32_t length : part.lengths) part.recorded.insert(part.recorded.end(), {length, 0, length});
    for (std::size_t i = 0; i < part.lengths.size(); ++i) {
      std::fill_n(part.counts.begin() + static_cast<std::ptrdiff_t>(i * 48 + 16), 16, 0U);
    }
  }
  const TemporaryFolder folder;
  expect_plan_as_alone(std::vector{write_parts(folder.path(), parts)}, {});
}

TEST_P(PartsFor, are_planned_as_by_one_process_with_loads_of_32_bits_in_one_part) {
  WindowSpec spec = spec_of(7);
  spec.lengths[20] = spec.recorded[20] = 70'000;  // of part 3, which would have 16-bit counts
  std::fill_n(spec.counts.begin() + std::int64_t{20} * 48, 48, 0U);
  for (std::size_t l = 0; l < 3; ++l) {
    for (std::size_t e = 0; e < 2; ++e) spec.counts[20 * 48 + l * 16 + l + e] = 70'000;
  }
  expect_plan_as_alone(spec, {.capacity = 100'000});
}

TEST_P(PartsFor, are_planned_as_by_one_process_with_dummies_and_equal_counts) {
  EXPECT_THAT(
      expect_plan_as_alone(slice(spec_of(8), 0, 45), {.constraints = {.equal_count = true, .add_dummies = true}}),
      HasSubstr("\"dummies\": 3"));
  expect_plan_as_alone(spec_of(8), {.constraints = {.equal_count = true}});
}

TEST_P(PartsFor, are_planned_as_by_one_process_in_lockstep_rows) {
  expect_plan_as_alone(spec_of(9), {.constraints = {.row_multiple = 2}, .sync = Sync::Row});
}

TEST_P(PartsFor, are_planned_as_by_one_process_under_a_limit_on_rank_tokens) {
  const std::string most = expect_as_alone(spec_of(10), {.constraints = {.max_rank_tokens = 1400}});
  EXPECT_THAT(most, HasSubstr("routepack.plan/1"));
  EXPECT_THAT(expect_as_alone(spec_of(10), {.constraints = {.max_rank_tokens = 50}}),
              AllOf(StartsWith("infeasible: max_rank_tokens 50: sample"), HasSubstr("routed tokens on rank")));
}

TEST_P(PartsFor, share_one_placement_with_other_windows_in_parts) {
  const TemporaryFolder folder;
  const std::vector<fs::path> manifests = {write_parts(folder / "a", cut(spec_of(11), kCuts)),
                                           write_parts(folder / "b", cut(spec_of(12), {1, 2, 40})),
                                           write_parts(folder / "c", {spec_of(13)})};
  expect_plan_as_alone(manifests, {});
}

TEST_P(PartsFor, one_member_alone_may_have) {
  // The others wait for it; it must not think that it is alone.
  EXPECT_THAT(expect_as_alone(spec_of(14), {}, {}), StartsWith("xxh3:"));
}

TEST_P(PartsFor, are_scored_as_by_one_process) {
  // More rows than are summed at once, uneven shards of cells.
  WindowSpec spec{.samples = 1300, .layers = 32, .experts = 64};
  std::mt19937_64 random(3);
  spec.counts.resize(1300 * 32 * 64);
  for (std::size_t i = 0; i < 1300; ++i) {
    spec.lengths.push_back(static_cast<std::int32_t>(20 + random() % 20));
    for (std::size_t row = 0; row < 32; ++row) {
      for (std::int32_t t = 0; t < spec.lengths.back(); t += 5) spec.counts[(i * 32 + row) * 64 + random() % 64] += 4;
    }
  }
  for (int n = 0; n < 32 * 64; ++n) spec.pad_counts.push_back(static_cast<std::uint32_t>(random() % 9000));
  const TemporaryFolder folder;
  const fs::path manifest = write_parts(folder.path(), cut(spec, {100, 700, 701}));
  const auto evaluated = [&](const Window& window, Communicator* team) {
    const Instance instance(window, Topology::megatron({.dp = 16, .ep = 64 / 4}), kCost, 100,
                            {.sample_multiple = 4, .cell_multiple = 8});
    std::vector<std::vector<std::vector<SampleId>>> cells(81, std::vector<std::vector<SampleId>>(16));
    for (std::int32_t i = 0; i < 1300; ++i) {
      const auto at = static_cast<std::size_t>(i * 7 % 1296);
      cells[at / 16][at % 16].push_back(SampleId(i));
    }
    for (std::int32_t d = 0; d < 4; ++d) cells[80][static_cast<std::size_t>(d)].push_back(SampleId(1300 + d));
    const Layout layout(std::move(cells), 16, 1304);
    const Placement placement = Placement::identity(32, 64, 16);
    return team == nullptr ? evaluate(instance, placement, layout) : evaluate(instance, placement, layout, *team);
  };
  const Evaluation alone = evaluated(make_window(spec), nullptr);
  for (const bool same : in_team(GetParam(), [&](TeamLink& link) {
         const Evaluation found = evaluated(load_window(manifest, link), &link);
         return found.score == alone.score && found.joint == alone.joint && found.attention == alone.attention &&
                found.expert_peak_sum == alone.expert_peak_sum && found.tail_peak == alone.tail_peak &&
                found.ep_efficiency == alone.ep_efficiency;
       })) {
    EXPECT_TRUE(same);
  }
}

TEST_P(PartsFor, are_read_by_one_member_each) {
  const TemporaryFolder folder;
  const auto parts = cut(spec_of(15), kCuts);
  const fs::path manifest = write_parts(folder.path(), parts);
  const Window whole = make_window(spec_of(15));
  const auto held = in_team(GetParam(), [&](TeamLink& link) {
    const Window window = load_window(manifest, link);
    EXPECT_EQ(window.fingerprint(), Window::load(manifest).fingerprint());
    EXPECT_TRUE(std::ranges::equal(window.arrays().lengths, whole.arrays().lengths));
    EXPECT_TRUE(std::ranges::equal(window.arrays().recorded, whole.arrays().recorded));
    std::vector<int> holds;
    for (const SampleId i : window.sample_ids()) holds.push_back(window.holds(i) ? 1 : 0);
    return holds;
  });
  std::vector<std::int64_t> samples;
  for (std::size_t i = 0; i < 48; ++i) {
    int holders = 0;
    for (const auto& member : held) holders += member[i];
    EXPECT_EQ(holders, 1) << i;
  }
  for (const auto& member : held) samples.push_back(std::ranges::count(member, 1));
  // About equal shares: a part more or less.
  const std::int64_t share = 48 / GetParam();
  for (const std::int64_t count : samples) EXPECT_LE(count, share + 13) << GetParam();
}

// Members with folders of their own: the same manifest in each, beside the parts that the member is to find.

struct Folders {
  explicit Folders(const std::vector<WindowSpec>& parts, std::int32_t members) {
    const fs::path manifest = write_parts(folder / "all", parts);
    for (std::int32_t r = 0; r < members; ++r) {
      fs::create_directory(of(r));
      fs::copy_file(manifest, of(r) / "manifest.json");
    }
  }
  [[nodiscard]] fs::path of(std::int32_t member) const { return folder / std::to_string(member); }
  [[nodiscard]] fs::path manifest(std::int32_t member) const { return of(member) / "manifest.json"; }
  void give(std::int32_t member, std::int32_t part) const {
    const std::string name = fmt::format("part-{}.safetensors", part);
    fs::copy_file(folder / "all" / name, of(member) / name);
  }
  TemporaryFolder folder;
};

Outcome loaded_by(TeamLink& link, const fs::path& path, std::vector<bool>* holds = nullptr) {
  return outcome_of([&] {
    const Window window = load_window(path, link);
    if (holds != nullptr) {
      for (const SampleId i : window.sample_ids()) holds->push_back(window.holds(i));
    }
    return window.fingerprint() + plans_of({window}, {}, &link);
  });
}

TEST(PartsInFolders, are_read_by_the_members_that_find_them) {
  const auto parts = cut(spec_of(16), kCuts);
  const Folders folders(parts, 3);
  for (const auto& [member, part] : {std::pair{2, 0}, {2, 1}, {0, 2}, {0, 3}, {2, 3}, {1, 4}, {2, 5}}) {
    folders.give(member, part);
  }
  fs::remove(folders.manifest(1));  // only member 0 needs it
  const Window joined = Window::load(folders.folder / "all" / "manifest.json");
  const std::string alone = joined.fingerprint() + plans_of({joined}, {}, nullptr);
  std::vector<std::vector<bool>> holds(3);
  for (const Outcome& outcome : in_team(3, [&](TeamLink& link) {
         return loaded_by(link, folders.manifest(link.rank()), &holds[static_cast<std::size_t>(link.rank())]);
       })) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.text, alone);
  }
  for (const auto& [member, sample] : {std::pair{2, 0}, {2, 16}, {0, 17}, {1, 30}, {1, 40}, {2, 41}, {2, 47}}) {
    EXPECT_TRUE(holds[static_cast<std::size_t>(member)][static_cast<std::size_t>(sample)]) << sample;
  }
}

TEST(PartsInFolders, may_all_lie_with_one_member) {
  const auto parts = cut(spec_of(17), kCuts);
  for (const std::int32_t owner : {0, 2}) {
    const Folders folders(parts, 3);
    for (std::int32_t k = 0; k < 6; ++k) folders.give(owner, k);
    const Window joined = Window::load(folders.folder / "all" / "manifest.json");
    const std::string alone = joined.fingerprint() + plans_of({joined}, {}, nullptr);
    for (const Outcome& outcome :
         in_team(3, [&](TeamLink& link) { return loaded_by(link, folders.manifest(link.rank())); })) {
      EXPECT_EQ(outcome.error, "");
      EXPECT_EQ(outcome.text, alone);
    }
  }
}

/// All members were refused alike; in which words and kind.
void expect_refusal(const std::vector<Outcome>& outcomes, const std::string& kind, const std::string& said) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, kind) << outcome.error << outcome.text.substr(0, 40);
    EXPECT_THAT(outcome.error, HasSubstr(said));
    EXPECT_EQ(outcome.error.find('\n'), std::string::npos);
    EXPECT_EQ(outcome.error, outcomes.front().error);
  }
}

TEST(PartsInFolders, that_no_member_finds_are_named) {
  const Folders folders(cut(spec_of(18), kCuts), 3);
  for (const std::int32_t k : {0, 1, 2, 4, 5}) folders.give(k % 3, k);
  fs::create_directory(folders.of(1) / "part-3.safetensors");  // a folder is none
  // Each member says it of the path that it was given; the words behind are the same.
  const auto outcomes = in_team(3, [&](TeamLink& link) {
    Outcome outcome = loaded_by(link, folders.manifest(link.rank()));
    const std::string path = folders.manifest(link.rank()).string();
    if (outcome.error.starts_with(path)) outcome.error.erase(0, path.size());
    return outcome;
  });
  expect_refusal(outcomes, "input",
                 ": parts[3]: path: found \"part-3.safetensors\" on none of the 3 ranks, wanted it on one");
}

TEST(PartsInFolders, that_are_broken_end_all_members_with_one_message) {
  const auto parts = cut(spec_of(19), kCuts);
  const auto refused = [&](const std::function<void(const fs::path&)>& damage) {
    const Folders folders(parts, 3);
    for (std::int32_t k = 0; k < 6; ++k) folders.give(k / 2, k);
    damage(folders.of(1) / "part-2.safetensors");
    return in_team(3, [&](TeamLink& link) { return loaded_by(link, folders.manifest(link.rank())); });
  };
  expect_refusal(refused([](const fs::path& path) { fs::resize_file(path, fs::file_size(path) - 1); }), "format",
                 "rank 1: ");
  expect_refusal(refused([](const fs::path& path) { make_window(slice(spec_of(3), 0, 1)).save(path); }), "input",
                 "part-2.safetensors: fingerprint: found xxh3:");
  expect_refusal(refused([](const fs::path& path) { make_window(slice(spec_of(3), 0, 2)).save(path); }), "input",
                 "part-2.safetensors: samples: found 2, wanted 1");
  expect_refusal(refused([&](const fs::path& path) {
                   fs::copy_file(path.parent_path() / "manifest.json", path, fs::copy_options::overwrite_existing);
                 }),
                 "format", "rank 1: ");
}

TEST(LoadedByATeam, parts_that_differ_in_kind_are_refused_by_all) {
  auto parts = cut(spec_of(20), {24});
  const TemporaryFolder folder;
  const fs::path manifest = write_parts(folder.path(), parts);
  std::string text = testing::contents_of(manifest);
  parts[1].groups.assign(24, 1);
  const std::string before = make_window(cut(spec_of(20), {24})[1]).fingerprint();
  make_window(parts[1]).save(folder / "part-1.safetensors");  // groups are not in the fingerprint
  ASSERT_THAT(text, HasSubstr(before));
  expect_refusal(in_team(3, [&](TeamLink& link) { return loaded_by(link, manifest); }), "input",
                 "part-1.safetensors: groups: found given, wanted absent as in");
}

TEST(LoadedByATeam, a_manifest_that_is_missing_or_wrong_is_refused_by_all) {
  const TemporaryFolder folder;
  const auto loaded = [&](const fs::path& path) {
    return in_team(3, [&](TeamLink& link) { return loaded_by(link, path); });
  };
  expect_refusal(loaded(folder / "nothing"), "io", "rank 0: " + (folder / "nothing").string() + ": cannot open");
  expect_refusal(loaded(folder.file("short", "{}")), "format", "rank 0: ");
  expect_refusal(loaded(folder.file("m.json", "{\"format\": \"routepack.manifest/2\"}")), "format",
                 "found version 2 of routepack.manifest");
}

TEST(LoadedByATeam, a_window_file_is_read_whole_by_every_member) {
  const TemporaryFolder folder;
  const fs::path path = folder / "w";
  make_window(spec_of(21)).save(path);
  for (const Outcome& outcome : in_team(3, [&](TeamLink& link) {
         return outcome_of([&] {
           const Window window = load_window(path, link);
           return std::string(window.whole() && window.counts_here() ? "whole " : "in parts ") + window.fingerprint();
         });
       })) {
    EXPECT_EQ(outcome.text, "whole " + make_window(spec_of(21)).fingerprint());
  }
  expect_refusal(in_team(3, [&](TeamLink& link) { return loaded_by(link, link.rank() == 1 ? folder / "x" : path); }),
                 "io", "rank 1: " + (folder / "x").string() + ": cannot open");
}

TEST(LoadedByATeam, a_member_that_is_lost_is_named_by_the_others) {
  const TemporaryFolder folder;
  const fs::path manifest = write_parts(folder.path(), cut(spec_of(22), kCuts));
  for (const int last : {1, 2, 3}) {  // the manifest, who finds what, the parts
    InProcessNetwork network(3);
    std::vector<Outcome> outcomes(3);
    std::vector<std::thread> threads;
    for (std::int32_t r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        TeamLink link(network.end(r), milliseconds(1500));
        testing::DyingMember dying(network, link, last);
        Communicator& team = r == 1 ? static_cast<Communicator&>(dying) : link;
        outcomes[static_cast<std::size_t>(r)] = outcome_of([&] { return load_window(manifest, team).fingerprint(); });
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.kind, "lost") << "call " << last;
      EXPECT_EQ(outcome.lost, 1) << outcome.error;
    }
  }
}

/// What each member of three has counted: a part, two parts, and a part.
Window counted_by(std::int32_t rank, const std::vector<WindowSpec>& parts) {
  if (rank == 1) return testing::join_parts({parts[1], parts[2]});
  return make_window(parts[rank == 0 ? 0 : 3]);
}

TEST(SharedByATeam, windows_are_planned_as_one_by_all_members) {
  const auto parts = cut(spec_of(25), {5, 17, 30});
  const Window joined = testing::join_parts(parts);
  const std::string alone = joined.fingerprint() + plans_of({joined}, {}, nullptr);
  for (const Outcome& outcome : in_team(3, [&](TeamLink& link) {
         return outcome_of([&] {
           const Window window = share_window(counted_by(link.rank(), parts), link);
           for (const SampleId i : window.sample_ids()) {
             const std::int32_t holder = i.value() < 5 ? 0 : i.value() < 30 ? 1 : 2;
             if (window.holds(i) != (holder == link.rank())) throw Error("wrong idea of who has what");
           }
           return window.fingerprint() + plans_of({window}, {}, &link);
         });
       })) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.text, alone);
  }
}

TEST(SharedByATeam, windows_that_differ_are_refused_by_all) {
  const auto shared = [&](const std::function<Window(std::int32_t)>& window) {
    return in_team(3, [&](TeamLink& link) {
      return outcome_of([&] { return share_window(window(link.rank()), link).fingerprint(); });
    });
  };
  const auto parts = cut(spec_of(26), {5, 17, 30});
  expect_refusal(shared([&](std::int32_t rank) {
                   WindowSpec spec = parts[0];
                   if (rank == 1) spec.ids.assign(5, 1);
                   return make_window(spec);
                 }),
                 "input", "window of rank 1: ids: found given, wanted absent as in window of rank 0");
  expect_refusal(shared([&](std::int32_t rank) {
                   return rank == 2 ? testing::join_as_member(parts, {0, 0, 1, 1}, 0) : make_window(parts[0]);
                 }),
                 "input", "rank 2: window: found counts in another process");
}

TEST(PlannedByATeam, a_window_is_refused_when_one_member_has_all_of_it_and_another_a_part) {
  const TemporaryFolder folder;
  const fs::path manifest = write_parts(folder.path(), cut(spec_of(23), kCuts));
  for (const Outcome& outcome : in_team(2, [&](TeamLink& link) {
         return outcome_of([&] {
           Window window = load_window(manifest, link);
           if (link.rank() == 1) window = Window::load(manifest);
           return plans_of({window}, {}, &link);
         });
       })) {
    EXPECT_THAT(outcome.error, HasSubstr("rank 1: found another window"));
  }
}

TEST(PlannedByATeam, a_window_is_refused_by_members_that_did_not_load_it_together) {
  const TemporaryFolder folder;
  const fs::path manifest = write_parts(folder.path(), cut(spec_of(24), kCuts));
  // Ranks 0 and 2 of three go on without the third, which has parts of its own.
  std::vector<Window> windows;
  for (const auto& window :
       in_team(3, [&](TeamLink& link) { return std::vector<Window>{load_window(manifest, link)}; })) {
    windows.push_back(window.front());
  }
  for (const Outcome& outcome : in_team(2, [&](TeamLink& link) {
         return outcome_of([&] { return plans_of({windows[link.rank() == 0 ? 0 : 2]}, {}, &link); });
       })) {
    EXPECT_THAT(outcome.error, AllOf(HasSubstr("found the counts of"), HasSubstr("of its 48 samples")));
  }
}

}  // namespace
}  // namespace routepack
