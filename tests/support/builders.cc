// SPDX-License-Identifier: Apache-2.0
#include "support/builders.h"

#include <algorithm>
#include <random>
#include <utility>

namespace routepack::testing {

Window make_window(WindowSpec spec) {
  const auto owned = std::make_shared<const WindowSpec>(std::move(spec));
  WindowArrays arrays;
  arrays.samples = owned->samples;
  arrays.layers = owned->layers;
  arrays.experts = owned->experts;
  arrays.top_k = owned->top_k;
  arrays.kind = owned->kind;
  arrays.lengths = owned->lengths;
  arrays.counts = std::span<const std::uint32_t>(owned->counts);
  arrays.recorded = owned->recorded;
  arrays.groups = owned->groups;
  arrays.atomic = owned->atomic;
  arrays.pad_counts = owned->pad_counts;
  arrays.ids = owned->ids;
  arrays.model = owned->model;
  return Window(std::move(arrays), owned);
}

WindowSpec random_window(std::uint64_t seed, std::int64_t samples, std::int64_t layers, std::int64_t experts,
                         std::int64_t top_k, std::int32_t min_length, std::int32_t max_length) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  WindowSpec spec{.samples = samples, .layers = layers, .experts = experts, .top_k = top_k};
  spec.counts.resize(static_cast<std::size_t>(samples * layers * experts));
  std::vector<std::size_t> experts_of_token(static_cast<std::size_t>(experts));
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto length =
        min_length + static_cast<std::int32_t>(below(static_cast<std::uint64_t>(max_length - min_length) + 1));
    spec.lengths.push_back(length);
    for (std::int64_t l = 0; l < layers; ++l) {
      std::uint32_t* counts = &spec.counts[static_cast<std::size_t>((i * layers + l) * experts)];
      for (std::int32_t token = 0; token < length; ++token) {
        for (std::size_t e = 0; e < experts_of_token.size(); ++e) experts_of_token[e] = e;
        for (std::int64_t pick = 0; pick < top_k; ++pick) {
          const auto at = static_cast<std::size_t>(pick) + below(static_cast<std::uint64_t>(experts - pick));
          std::swap(experts_of_token[static_cast<std::size_t>(pick)], experts_of_token[at]);
          ++counts[experts_of_token[static_cast<std::size_t>(pick)]];
        }
      }
    }
  }
  spec.recorded = spec.lengths;
  return spec;
}

}  // namespace routepack::testing
