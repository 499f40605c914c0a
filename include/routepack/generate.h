// SPDX-License-Identifier: Apache-2.0
// Synthetic windows that look like recorded ones: routing calibrated against public recordings (docs/generator.md).
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "routepack/params.h"
#include "routepack/window.h"

namespace routepack {

/// What kind of answers fills the window: how long they are, and how much longer than each other.
enum class LengthProfile { Gsm8k, Math, Reasoning, Agentic, Mixed };

constexpr auto choices(LengthProfile) {
  using enum LengthProfile;
  return std::array{Choice<LengthProfile>{"gsm8k", Gsm8k}, Choice<LengthProfile>{"math", Math},
                    Choice<LengthProfile>{"reasoning", Reasoning}, Choice<LengthProfile>{"agentic", Agentic},
                    Choice<LengthProfile>{"mixed", Mixed}};
}

/// One window of a run. Equal parameters give the same bytes on every machine, with any number of threads.
struct GenerateParams {
  std::string model = {};   ///< a preset, as list_models() names it
  std::string domain = {};  ///< what the text is about; empty: the preset's own choice for these lengths
  LengthProfile lengths = LengthProfile::Gsm8k;
  std::int64_t prompts = 64;
  std::int64_t rollouts = 8;
  bool answers_only = false;
  std::int64_t step = 0;
  std::int64_t seed = 0;
  std::int64_t threads = 0;
  friend bool operator==(const GenerateParams&, const GenerateParams&) = default;
};

/// Visits every field as describe() of params.h does; texts through `text(name, field, help)`.
template <class P, class Visitor>
  requires std::same_as<std::remove_const_t<P>, GenerateParams>
void describe(P& p, Visitor&& v) {
  constexpr std::int64_t kMany = std::numeric_limits<std::int32_t>::max();
  v.text("model", p.model, "preset: structure of the model and skew of its routing");
  v.text("domain", p.domain, "what the text is about, which decides the skew (default: as the lengths suggest)");
  v.choice("lengths", p.lengths, "how long answers are");
  v.integer("prompts", p.prompts, 1, kMany, "prompts of a window");
  v.integer("rollouts", p.rollouts, 1, 1 << 16, "answers to each prompt");
  v.flag("answers_only", p.answers_only, "leave the prompt tokens out of the samples");
  v.integer("step", p.step, 0, kMany, "which window of the run: new prompts, popularity drifted that far");
  v.integer("seed", p.seed, 0, std::numeric_limits<std::int64_t>::max(), "names the random streams");
  v.integer("threads", p.threads, 0, 4096, "worker threads (0 = one per core)");
}

/// Routing of one kind of text. Domains of one model differ in skew.
struct DomainInfo {
  std::string name;
  bool calibrated = false;  ///< fitted to a recording; otherwise borrowed from a model of similar size
};

struct ModelInfo {
  std::string name;
  std::int64_t layers = 0;      ///< all decoder layers
  std::int64_t moe_layers = 0;  ///< the last ones: L
  std::int64_t experts = 0;     ///< E, routed
  std::int64_t top_k = 0;
  std::int64_t shared_experts = 0;
  std::int64_t hidden = 0;     ///< width of a token
  std::int64_t moe_width = 0;  ///< inner width of one expert
  bool inferred = false;       ///< widths are concluded from totals, not read from a configuration
  std::vector<DomainInfo> domains;
  [[nodiscard]] bool calibrated() const;
};

/// All presets, by name.
std::vector<ModelInfo> list_models();

/// Called by the calling thread as samples are finished. What it throws ends the work and comes out unchanged.
using GenerateProgress = std::function<void(std::int64_t samples_done, std::int64_t samples)>;

/// What was made.
struct GeneratedWindow {
  std::int64_t samples = 0, layers = 0, experts = 0, top_k = 0;
  std::int64_t tokens = 0;
  std::string domain;  ///< «maths (calibrated)»: the routing that was imitated, and whether a recording backs it
  std::string fingerprint;
};

/// Streams a window to a file, in memory that does not grow with the number of prompts beyond a few bytes a sample.
/// The file appears whole or not at all. About 13 ns per routed token on one core.
/// @throws InvalidInput for an unknown preset or domain, or a number outside its bounds; IoError.
GeneratedWindow generate_window(const GenerateParams& params, const std::filesystem::path& path,
                                const GenerateProgress& progress = {});

/// The same samples in `parts` files with runs of prompts, and a manifest of them (routepack/window_parts.h):
/// part-0000.safetensors … and manifest.json in `folder`, which is made when it is missing. The manifest is written
/// last.
/// @throws as generate_window; InvalidInput for fewer than one part or more than prompts
GeneratedWindow generate_parts(const GenerateParams& params, const std::filesystem::path& folder, std::int64_t parts,
                               const GenerateProgress& progress = {});

/// The same window in memory.
Window generate_window(const GenerateParams& params, const GenerateProgress& progress = {});

}  // namespace routepack
