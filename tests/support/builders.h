// SPDX-License-Identifier: Apache-2.0
// Small windows and plans that can be checked by hand.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "routepack/window.h"

namespace routepack::testing {

/// Plain vectors that a window is made of; absent tensors are empty.
struct WindowSpec {
  std::int64_t samples = 0, layers = 0, experts = 0, top_k = 1;
  WindowKind kind = WindowKind::Samples;
  std::vector<std::int32_t> lengths = {};
  std::vector<std::uint32_t> counts = {};
  std::vector<std::int32_t> recorded = {}, groups = {}, atomic = {};
  std::vector<std::uint32_t> pad_counts = {};
  std::vector<std::int64_t> ids = {};
  std::string model = {};
};

/// A window that owns copies of the vectors.
Window make_window(WindowSpec spec);

/// Every token's k experts drawn at random, all tokens recorded; deterministic in `seed`.
WindowSpec random_window(std::uint64_t seed, std::int64_t samples, std::int64_t layers, std::int64_t experts,
                         std::int64_t top_k, std::int32_t min_length, std::int32_t max_length);

}  // namespace routepack::testing
