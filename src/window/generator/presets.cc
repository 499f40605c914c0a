// SPDX-License-Identifier: Apache-2.0
#include "window/generator/presets.h"

#include <fmt/format.h>

#include <algorithm>

#include "routepack/error.h"

namespace routepack {
namespace {

constexpr bool kCalibrated = true;
constexpr bool kBorrowed = false;

// The spread is fitted to the measured expert-load CV, the deviations to the measured variance between samples
// (docs/generator.md has the table). The first domain is the default of task-like lengths.
constexpr Domain kGptOss[] = {
    {"maths", kCalibrated, {1.52, 1.3, 0.62, 0.40}},
    {"mixed", kCalibrated, {0.98, 1.3, 0.90, 0.45, {0.37, 0.5, 0.5}}},
};
constexpr Domain kMixtral[] = {
    {"mmlu", kCalibrated, {0.20, 1.3, 0.18, 0.11}},
};
constexpr Domain kGlm52[] = {
    {"maths", kCalibrated, {1.310, 2.5, 0.6, 0.4}},   {"mixed", kCalibrated, {0.34, 2.5, 0.72, 0.4}},
    {"books", kCalibrated, {1.320, 2.5, 0.6, 0.4}},   {"chat", kCalibrated, {0.700, 2.5, 0.6, 0.4}},
    {"code", kCalibrated, {0.614, 2.5, 0.6, 0.4}},    {"code-raw", kCalibrated, {0.812, 2.5, 0.6, 0.4}},
    {"news", kCalibrated, {0.958, 2.5, 0.6, 0.4}},    {"reasoning", kCalibrated, {1.027, 2.5, 0.6, 0.4}},
    {"science", kCalibrated, {0.650, 2.5, 0.6, 0.4}}, {"web", kCalibrated, {0.470, 2.5, 0.6, 0.4}},
    {"wiki", kCalibrated, {0.918, 2.5, 0.6, 0.4}},
};
constexpr Domain kQwen3[] = {
    {"mgsm-en", kCalibrated, {1.566, 2.5, 0.6, 0.4}},
    {"mgsm-zh", kCalibrated, {1.740, 2.5, 0.6, 0.4}},
    {"mgsm-sw", kCalibrated, {2.409, 2.5, 0.6, 0.4}},
    {"mixed", kBorrowed, {1.05, 2.5, 0.9, 0.45}},
};
constexpr Domain kOlmoe[] = {
    {"maths", kCalibrated, {1.363, 2.5, 0.6, 0.4}},      {"code", kCalibrated, {1.447, 2.5, 0.6, 0.4}},
    {"biomedical", kCalibrated, {1.145, 2.5, 0.6, 0.4}}, {"legal", kCalibrated, {1.118, 2.5, 0.6, 0.4}},
    {"creative", kCalibrated, {1.331, 2.5, 0.6, 0.4}},   {"conversation", kCalibrated, {1.145, 2.5, 0.6, 0.4}},
    {"mixed", kBorrowed, {0.95, 2.5, 0.9, 0.45}},
};
constexpr Domain kQwen15[] = {
    {"gsm8k", kCalibrated, {0.295, 2.5, 0.33, 0.15}},
};
// What models without a recording borrow, by number of experts.
constexpr Domain kLike64[] = {
    {"maths", kBorrowed, {1.363, 2.5, 0.6, 0.4}},
    {"mixed", kBorrowed, {0.95, 2.5, 0.9, 0.45}},
};
constexpr Domain kLike128[] = {
    {"maths", kBorrowed, {1.566, 2.5, 0.6, 0.4}},
    {"mixed", kBorrowed, {1.05, 2.5, 0.9, 0.45}},
};
constexpr Domain kLike256[] = {
    {"maths", kBorrowed, {1.310, 2.5, 0.6, 0.4}},
    {"mixed", kBorrowed, {0.65, 2.5, 0.9, 0.45}},
};

constexpr bool kInferred = true;

constexpr Preset kPresets[] = {
    // name, layers, MoE layers, E, k, shared, hidden, MoE width, inferred, domains
    {"deepseek-v3", 61, 58, 256, 8, 1, 7168, 2048, false, kLike256},
    {"glm-4.5", 92, 89, 160, 8, 1, 5120, 1536, false, kLike256},
    {"glm-4.5-air", 46, 45, 128, 8, 1, 4096, 1408, false, kLike128},
    {"glm-4.7-flash", 47, 46, 64, 4, 1, 2048, 1536, false, kLike64},
    {"glm-5.2", 78, 75, 256, 8, 1, 6144, 2048, false, kGlm52},
    {"gpt-oss-120b", 36, 36, 128, 4, 0, 2880, 2880, false, kLike128},
    {"gpt-oss-20b", 24, 24, 32, 4, 0, 2880, 2880, false, kGptOss},
    {"kimi-k2", 61, 60, 384, 8, 1, 7168, 2048, false, kLike256},
    {"ling-3.0-flash", 42, 40, 512, 8, 1, 2560, 768, kInferred, kLike256},
    {"ling-3.0-tiny", 24, 23, 128, 8, 1, 1536, 512, false, kLike128},
    {"ling-flash-2.0", 32, 31, 256, 8, 1, 4096, 1024, kInferred, kLike256},
    {"ling-mini-2.0", 20, 19, 256, 8, 1, 2048, 512, false, kLike256},
    {"minimax-m2.5", 62, 62, 256, 8, 0, 3072, 1536, false, kLike256},
    {"mixtral-8x7b", 32, 32, 8, 2, 0, 4096, 14336, false, kMixtral},
    {"moonlight-16b", 27, 26, 64, 6, 2, 2048, 1408, false, kLike64},
    {"olmoe-1b-7b", 16, 16, 64, 8, 0, 2048, 1024, false, kOlmoe},
    {"qwen1.5-moe-a2.7b", 24, 24, 60, 4, 4, 2048, 1408, false, kQwen15},
    {"qwen3-235b-a22b", 94, 94, 128, 8, 0, 4096, 1536, false, kLike128},
    {"qwen3-30b-a3b", 48, 48, 128, 8, 0, 2048, 768, false, kQwen3},
    {"qwen3-next-80b-a3b", 48, 48, 512, 10, 1, 2048, 512, false, kLike256},
    {"qwen3.5-35b-a3b", 40, 40, 256, 8, 1, 2048, 512, false, kLike256},
};

template <class Range>
std::string names_of(const Range& range) {
  std::string names;
  for (const auto& item : range) names += fmt::format("{}{}", names.empty() ? "" : ", ", item.name);
  return names;
}

}  // namespace

std::span<const Preset> presets() {
  return kPresets;
}

const Preset& find_preset(std::string_view name) {
  const auto* found = std::ranges::find(kPresets, name, &Preset::name);
  if (found == std::end(kPresets)) {
    throw InvalidInput(fmt::format("model: found \"{}\", wanted one of {}", name, names_of(kPresets)));
  }
  return *found;
}

const Domain& find_domain(const Preset& preset, std::string_view name, LengthProfile lengths) {
  if (name.empty()) {
    const std::string_view suited = lengths == LengthProfile::Mixed ? "mixed" : preset.domains.front().name;
    const auto found = std::ranges::find(preset.domains, suited, &Domain::name);
    return found == preset.domains.end() ? preset.domains.front() : *found;
  }
  const auto found = std::ranges::find(preset.domains, name, &Domain::name);
  if (found == preset.domains.end()) {
    throw InvalidInput(
        fmt::format("domain: found \"{}\", wanted for {} one of {}", name, preset.name, names_of(preset.domains)));
  }
  return *found;
}

bool ModelInfo::calibrated() const {
  return std::ranges::any_of(domains, &DomainInfo::calibrated);
}

std::vector<ModelInfo> list_models() {
  std::vector<ModelInfo> models;
  for (const Preset& p : kPresets) {
    ModelInfo info{.name = std::string(p.name),
                   .layers = p.layers,
                   .moe_layers = p.moe_layers,
                   .experts = p.experts,
                   .top_k = p.top_k,
                   .shared_experts = p.shared_experts,
                   .hidden = p.hidden,
                   .moe_width = p.moe_width,
                   .inferred = p.inferred,
                   .domains = {}};
    for (const Domain& d : p.domains) info.domains.push_back({std::string(d.name), d.calibrated});
    models.push_back(std::move(info));
  }
  return models;
}

}  // namespace routepack
