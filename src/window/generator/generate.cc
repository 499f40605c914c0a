// SPDX-License-Identifier: Apache-2.0
#include "routepack/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "routepack/error.h"
#include "window/fingerprint.h"
#include "window/generator/recipe.h"
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

/// Calls `work(item, thread)` for every item below `items`; the first exception ends the rest and is thrown here.
template <class Work>
void in_parallel(std::int64_t items, std::size_t threads, const Work& work) {
  std::atomic<std::int64_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  const auto run = [&](std::size_t thread) {
    try {
      for (std::int64_t item = next++; item < items; item = next++) work(item, thread);
    } catch (...) {
      next = items;
      const std::scoped_lock lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
    run(0);
  }
  if (error) std::rethrow_exception(error);
}

/// Everything but the counts is drawn at once; counts() then produces those, group by group.
class Generation {
 public:
  Generation(const GenerateParams& params, const GenerateProgress& progress)
      : params_(checked(params)),
        preset_(find_preset(params.model)),
        domain_(find_domain(preset_, params.domain, params.lengths)),
        recipe_(preset_, domain_, params),
        progress_(progress) {
    const auto samples = static_cast<std::size_t>(params.prompts * params.rollouts);
    group_lengths_.resize(static_cast<std::size_t>(params.prompts));
    const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
    threads_ = std::min(params.threads == 0 ? cores : static_cast<std::size_t>(params.threads), group_lengths_.size());
    in_parallel(params.prompts, threads_, [&](std::int64_t group, std::size_t) {
      group_lengths_[static_cast<std::size_t>(group)] = recipe_.lengths(group);
    });
    lengths_.reserve(samples);
    groups_.reserve(samples);
    for (std::int64_t group = 0; group < params.prompts; ++group) {
      const GroupLengths& drawn = group_lengths_[static_cast<std::size_t>(group)];
      for (const std::int32_t answer : drawn.answers) {
        lengths_.push_back(drawn.prompt + answer);
        groups_.push_back(static_cast<std::int32_t>(group));
      }
    }
  }

  /// All tensors but the counts, as views into this object.
  [[nodiscard]] WindowArrays arrays() const {
    WindowArrays arrays{.samples = params_.prompts * params_.rollouts,
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
        recipe_.count(static_cast<std::int64_t>(first + at), group_lengths_[first + at], scratch[thread],
                      std::span(chunk).subspan(at * group_size, group_size));
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

}  // namespace

GeneratedWindow generate_window(const GenerateParams& params, const std::filesystem::path& path,
                                const GenerateProgress& progress) {
  const Generation generation(params, progress);
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
