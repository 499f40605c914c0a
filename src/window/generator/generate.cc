// SPDX-License-Identifier: Apache-2.0
#include "routepack/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "core/file.h"
#include "core/hash.h"
#include "core/in_parallel.h"
#include "routepack/error.h"
#include "window/fingerprint.h"
#include "window/generator/recipe.h"
#include "window/manifest.h"
#include "window/window_file.h"

namespace routepack {
namespace {

using Count = std::uint16_t;

/// Holds every field against its bounds.
struct CheckBounds {
  void text(const char*, const std::string&, const char*) const {}
  void flag(const char*, bool, const char*) const {}
  template <class Enum>
  void choice(const char*, Enum, const char*) const {}
  void integer(const char* name, std::int64_t value, std::int64_t min, std::int64_t max, const char*) const {
    if (value < min || value > max) {
      throw InvalidInput(fmt::format("{}: found {}, wanted {} to {}", name, value, min, max));
    }
  }
};

/// Prompts first … end − 1 of a window.
struct Run {
  std::int64_t first = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - first; }
};

/// Everything but the counts is drawn at once; counts() then produces those, group by group.
class Generation {
 public:
  Generation(const GenerateParams& params, const GenerateProgress& progress)
      : Generation(params, {0, params.prompts}, progress) {}

  Generation(const GenerateParams& params, Run prompts, const GenerateProgress& progress)
      : params_(checked(params)),
        preset_(find_preset(params.model)),
        domain_(find_domain(preset_, params.domain, params.lengths)),
        recipe_(preset_, domain_, params),
        prompts_(prompts),
        progress_(progress) {
    const auto samples = static_cast<std::size_t>(prompts.size() * params.rollouts);
    group_lengths_.resize(static_cast<std::size_t>(prompts.size()));
    const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
    threads_ = std::min(params.threads == 0 ? cores : static_cast<std::size_t>(params.threads), group_lengths_.size());
    in_parallel(prompts.size(), threads_, [&](std::int64_t group, std::size_t) {
      group_lengths_[static_cast<std::size_t>(group)] = recipe_.lengths(prompts.first + group);
    });
    lengths_.reserve(samples);
    groups_.reserve(samples);
    for (std::int64_t group = 0; group < prompts.size(); ++group) {
      const GroupLengths& drawn = group_lengths_[static_cast<std::size_t>(group)];
      for (const std::int32_t answer : drawn.answers) {
        lengths_.push_back(drawn.prompt + answer);
        groups_.push_back(static_cast<std::int32_t>(prompts.first + group));
      }
    }
  }

  /// All tensors but the counts, as views into this object.
  [[nodiscard]] WindowArrays arrays() const {
    WindowArrays arrays{.samples = samples(),
                        .layers = preset_.moe_layers,
                        .experts = preset_.experts,
                        .top_k = preset_.top_k,
                        .lengths = lengths_,
                        .counts = {},
                        .recorded = lengths_,
                        .groups = groups_,
                        .atomic = {},
                        .pad_counts = {},
                        .ids = {},
                        .model = std::string(preset_.name),
                        .layer_numbers = std::vector<std::int64_t>(recipe_.layers()),
                        .metadata = {}};
    std::iota(arrays.layer_numbers.begin(), arrays.layer_numbers.end(), preset_.layers - preset_.moe_layers);
    arrays.metadata = {{"note", "synthetic"},
                       {"recipe", fmt::format("routepack.generate/{}", kRecipeVersion)},
                       {"domain", domain()},
                       {"length_profile", std::string(name_of(params_.lengths))},
                       {"prompt_tokens", params_.answers_only ? "left out" : "included"},
                       {"prompts", std::to_string(params_.prompts)},
                       {"rollouts", std::to_string(params_.rollouts)},
                       {"step", std::to_string(params_.step)},
                       {"seed", std::to_string(params_.seed)}};
    if (prompts_.size() < params_.prompts) {
      arrays.metadata.emplace_back("prompts_here", fmt::format("{} to {}", prompts_.first, prompts_.end - 1));
    }
    return arrays;
  }

  [[nodiscard]] std::string domain() const {
    return fmt::format("{} ({})", domain_.name, domain_.calibrated ? "calibrated" : "uncalibrated");
  }

  /// Calls `sink` with the counts of some groups at a time, in order.
  template <class Sink>
  void counts(const Sink& sink) const {
    const auto rollouts = static_cast<std::size_t>(params_.rollouts);
    const std::size_t group_size = rollouts * recipe_.layers() * recipe_.experts();
    const std::size_t at_once = std::clamp(kChunkBytes / (group_size * sizeof(Count)), threads_, group_lengths_.size());
    std::vector<Recipe::Scratch> scratch(threads_, Recipe::Scratch(recipe_));
    std::vector<Count> chunk(at_once * group_size);
    for (std::size_t first = 0; first < group_lengths_.size(); first += at_once) {
      if (progress_) progress_(static_cast<std::int64_t>(first * rollouts), samples());
      const std::size_t groups = std::min(at_once, group_lengths_.size() - first);
      in_parallel(static_cast<std::int64_t>(groups), threads_, [&](std::int64_t item, std::size_t thread) {
        const auto at = static_cast<std::size_t>(item);
        recipe_.count(prompts_.first + static_cast<std::int64_t>(first + at), group_lengths_[first + at],
                      scratch[thread], std::span(chunk).subspan(at * group_size, group_size));
      });
      sink(std::span<const Count>(chunk).first(groups * group_size));
    }
    if (progress_) progress_(samples(), samples());
  }

 private:
  static constexpr std::size_t kChunkBytes = std::size_t{16} << 20;

  static const GenerateParams& checked(const GenerateParams& params) {
    describe(params, CheckBounds{});
    if (params.prompts * params.rollouts > std::numeric_limits<std::int32_t>::max()) {
      throw InvalidInput(fmt::format("prompts x rollouts: found {} x {}, wanted at most {} samples", params.prompts,
                                     params.rollouts, std::numeric_limits<std::int32_t>::max()));
    }
    return params;
  }

  [[nodiscard]] std::int64_t samples() const { return static_cast<std::int64_t>(lengths_.size()); }

  const GenerateParams params_;
  const Preset& preset_;
  const Domain& domain_;
  const Recipe recipe_;
  const Run prompts_;
  const GenerateProgress progress_;
  std::size_t threads_ = 1;
  std::vector<GroupLengths> group_lengths_;
  std::vector<std::int32_t> lengths_, groups_;
};

/// What a window in memory points into.
struct Owned {
  explicit Owned(const GenerateParams& params, const GenerateProgress& progress) : generation(params, progress) {}
  Generation generation;
  std::vector<Count> counts;
};

/// Streams what was drawn to a file.
GeneratedWindow write_generated(const Generation& generation, const std::filesystem::path& path) {
  const WindowArrays arrays = generation.arrays();
  FingerprintBuilder fingerprint(arrays);
  write_window(path, arrays, [&](const WriteSink& sink) {
    generation.counts([&](std::span<const Count> chunk) {
      fingerprint.add_counts(chunk);
      sink(std::as_bytes(chunk));
    });
  });
  return {.samples = arrays.samples,
          .layers = arrays.layers,
          .experts = arrays.experts,
          .top_k = arrays.top_k,
          .tokens = std::accumulate(arrays.lengths.begin(), arrays.lengths.end(), std::int64_t{0}),
          .domain = generation.domain(),
          .fingerprint = fingerprint.digest()};
}

}  // namespace

GeneratedWindow generate_window(const GenerateParams& params, const std::filesystem::path& path,
                                const GenerateProgress& progress) {
  return write_generated(Generation(params, progress), path);
}

GeneratedWindow generate_parts(const GenerateParams& params, const std::filesystem::path& folder, std::int64_t parts,
                               const GenerateProgress& progress) {
  describe(params, CheckBounds{});
  if (parts < 1 || parts > params.prompts) {
    throw InvalidInput(fmt::format("parts: found {}, wanted 1 to {}, the prompts", parts, params.prompts));
  }
  std::error_code error;
  std::filesystem::create_directory(folder, error);
  if (error || !std::filesystem::is_directory(folder)) {
    throw IoError(fmt::format("{}: wanted a folder for {} parts: {}", folder.string(), parts,
                              error ? error.message() : "found a file"));
  }
  GeneratedWindow all;
  Xxh3 fingerprint;
  fingerprint.value(static_cast<std::uint64_t>(parts));
  std::vector<ManifestPart> written;
  for (std::int64_t k = 0; k < parts; ++k) {
    const Run prompts{params.prompts * k / parts, params.prompts * (k + 1) / parts};
    const std::int64_t before = all.samples;
    const Generation generation(params, prompts, [&](std::int64_t done, std::int64_t) {
      if (progress) progress(before + done, params.prompts * params.rollouts);
    });
    const std::string name = fmt::format("part-{:04}.safetensors", k);
    GeneratedWindow made = write_generated(generation, folder / name);
    written.push_back({.path = name, .samples = made.samples, .fingerprint = made.fingerprint});
    fingerprint.text(made.fingerprint);
    made.samples += all.samples;
    made.tokens += all.tokens;
    all = std::move(made);
  }
  write_atomically(folder / "manifest.json", manifest_text(written));
  all.fingerprint = fingerprint.digest();
  return all;
}

Window generate_window(const GenerateParams& params, const GenerateProgress& progress) {
  const auto owned = std::make_shared<Owned>(params, progress);
  WindowArrays arrays = owned->generation.arrays();
  owned->counts.reserve(static_cast<std::size_t>(arrays.samples * arrays.layers * arrays.experts));
  owned->generation.counts(
      [&](std::span<const Count> chunk) { owned->counts.insert(owned->counts.end(), chunk.begin(), chunk.end()); });
  arrays.counts = std::span<const Count>(owned->counts);
  return Window(std::move(arrays), owned, "generated window");
}

}  // namespace routepack
