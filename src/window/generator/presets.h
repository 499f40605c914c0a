// SPDX-License-Identifier: Apache-2.0
// The table of models: structure, widths and the numbers of the recipe.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "routepack/generate.h"

namespace routepack {

/// Numbers of the recipe for one kind of text (docs/generator.md).
struct Routing {
  double popularity_sd = 0.0;  ///< s: spread of the base logits
  double hottest = 2.5;        ///< base logits are cut at this many spreads above the mean
  double group_sd = 0.0;       ///< deviation of a prompt group's logits
  double rollout_sd = 0.0;     ///< further deviation of one rollout's logits
  /// Correlation of the first three latent factors with the first three Hermite polynomials of the length score.
  std::array<double, 3> length_topic = {0.5, 0.5, 0.4};
};

struct Domain {
  std::string_view name;
  bool calibrated = false;
  Routing routing;
};

struct Preset {
  std::string_view name;
  std::int32_t layers, moe_layers, experts, top_k, shared_experts, hidden, moe_width;
  bool inferred = false;
  std::span<const Domain> domains;
};

std::span<const Preset> presets();

/// @throws InvalidInput listing the names when there is no such preset
const Preset& find_preset(std::string_view name);

/// The named domain, or the one that suits the lengths when the name is empty.
/// @throws InvalidInput listing the names when there is no such domain
const Domain& find_domain(const Preset& preset, std::string_view name, LengthProfile lengths);

}  // namespace routepack
