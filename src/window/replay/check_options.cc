// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "routepack/error.h"
#include "window/replay/counter.h"

namespace routepack::replay {

std::int64_t slots_of(const RouteIds& ids, const CountOptions& options) {
  if (options.physical_to_logical.empty()) return options.experts;
  return static_cast<std::int64_t>(options.physical_to_logical.size()) / counted_layers(ids, options);
}

/// One more than the largest id that the type can hold.
std::int64_t values_of(IdType type) {
  constexpr std::array<std::int64_t, 6> kValues = {1 << 8, 1 << 7, 1 << 16, 1 << 15, 1LL << 31, 1LL << 62};
  return kValues[static_cast<std::size_t>(type)];
}

void check_options(const SampleRoutes& sample, const CountOptions& options, const std::string& where) {
  const RouteIds& ids = sample.ids;
  const auto fail = [&](const std::string& what) { throw InvalidInput(where + ": " + what); };
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (options.experts < 1 || options.experts > kMaxCountedExperts) {
    fail(fmt::format("experts: found {}, wanted 1 to {}", options.experts, kMaxCountedExperts));
  }
  if (ids.tokens < 0 || ids.tokens > kMost) fail(fmt::format("tokens: found {}, wanted 0 to {}", ids.tokens, kMost));
  if (ids.layers < 1 || ids.layers > kMost) fail(fmt::format("layers: found {}, wanted 1 to {}", ids.layers, kMost));
  if (ids.top_k < 1 || ids.top_k > options.experts) {
    fail(fmt::format("ids of a row (top_k): found {}, wanted 1 to {}, the number of experts", ids.top_k,
                     options.experts));
  }
  std::vector<std::int64_t> sorted = options.layers;
  std::ranges::sort(sorted);
  if (!sorted.empty() && (sorted.front() < 0 || sorted.back() >= ids.layers)) {
    fail(fmt::format("layers: found index {}, wanted 0 to {}: the ids have {} layers",
                     sorted.front() < 0 ? sorted.front() : sorted.back(), ids.layers - 1, ids.layers));
  }
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    fail(fmt::format("layers: found index {} twice, wanted each once", *twice));
  }
  const std::int64_t layers = counted_layers(ids, options);
  const auto mapped = static_cast<std::int64_t>(options.physical_to_logical.size());
  if (mapped % layers != 0 || mapped / layers > kMaxCountedExperts || (mapped > 0 && mapped / layers < ids.top_k)) {
    fail(fmt::format("physical_to_logical: found {} values, wanted {} layers of {} to {} slots", mapped, layers,
                     ids.top_k, kMaxCountedExperts));
  }
  for (std::size_t at = 0; at < options.physical_to_logical.size(); ++at) {
    const std::int32_t expert = options.physical_to_logical[at];
    if (expert >= 0 && expert < options.experts) continue;
    const auto slots = static_cast<std::size_t>(mapped / layers);
    fail(fmt::format("physical_to_logical[{}, {}]: found {}, wanted 0 to {}", at / slots, at % slots, expert,
                     options.experts - 1));
  }
  const std::int64_t slots = slots_of(ids, options);
  if (slots > values_of(ids.type)) {
    fail(fmt::format("found ids of type {}, which ends at {}, wanted a type that holds {} experts", name_of(ids.type),
                     values_of(ids.type) - 1, slots));
  }
  if (sample.length && (*sample.length < ids.tokens || *sample.length > kMost)) {
    fail(fmt::format("found {} rows of ids and a length of {}, wanted no more rows than tokens", ids.tokens,
                     *sample.length));
  }
  const std::int64_t tokens = sample.length.value_or(ids.tokens);
  if (!sample.mask.empty() && static_cast<std::int64_t>(sample.mask.size()) != tokens) {
    fail(fmt::format("mask: found {} values, wanted {}, one per token", sample.mask.size(), tokens));
  }
  if (tokens * ids.top_k > std::numeric_limits<std::uint32_t>::max()) {
    fail(fmt::format("found {} tokens with {} ids each, wanted fewer than 2^32 ids per layer", tokens, ids.top_k));
  }
}

}  // namespace routepack::replay
