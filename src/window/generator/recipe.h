// SPDX-License-Identifier: Apache-2.0
// The calibrated recipe: how routing of one window comes about (docs/generator.md).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "window/generator/draws.h"
#include "window/generator/lengths.h"
#include "window/generator/presets.h"

namespace routepack {

/// Changes whenever equal parameters begin to give other windows.
inline constexpr int kRecipeVersion = 1;

/// Latent factors shared by all layers, each in units of its own spread.
inline constexpr std::size_t kFactors = 8;
using Latent = std::array<double, kFactors>;

/// All random choices of one window, by name. Immutable after construction: threads share it.
class Recipe {
 public:
  Recipe(const Preset& preset, const Domain& domain, const GenerateParams& params);

  [[nodiscard]] std::size_t layers() const { return layers_; }
  [[nodiscard]] std::size_t experts() const { return experts_; }
  [[nodiscard]] std::int64_t top_k() const { return top_k_; }

  /// Lengths of a prompt group; the prompt has 0 tokens when it is left out.
  [[nodiscard]] GroupLengths lengths(std::int64_t group) const;

  /// Work space of one thread.
  struct Scratch {
    explicit Scratch(const Recipe& recipe);
    AliasTable table;
    TokenCounter counter;
    std::vector<double> noise, group_deviation, logits;
    std::vector<std::uint32_t> prompt, answer;
  };

  /// Counts of all rollouts of a group, [rollouts, L, E]. Siblings share the routes of their prompt.
  void count(std::int64_t group, const GroupLengths& lengths, Scratch& scratch, std::span<std::uint16_t> counts) const;

 private:
  [[nodiscard]] StreamName stream(Purpose purpose, std::int64_t item = 0, std::size_t layer = 0) const;
  [[nodiscard]] Latent latent(Purpose purpose, std::int64_t item) const;
  [[nodiscard]] double length_score(Purpose purpose, std::int64_t item) const;
  void follow_length(Latent& z, double score) const;
  [[nodiscard]] std::span<const double> layer_of(const std::vector<double>& values, std::size_t layer) const {
    return std::span(values).subspan(layer * experts_, experts_);
  }
  void add_deviation(const Latent& latent, double sd, std::size_t layer, RandomStream noise_stream,
                     std::span<double> noise, std::span<const double> onto, std::span<double> result) const;
  void draw_popularity(const Routing& routing);
  void drift(std::int64_t step);

  GenerateParams params_;
  Routing routing_;
  std::size_t layers_;
  std::size_t experts_;
  std::int64_t top_k_;
  std::vector<double> answer_base_, prompt_base_;  // [L, E] logits
  std::vector<double> loadings_;                   // [L, factors, E]
};

}  // namespace routepack
