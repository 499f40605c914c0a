// SPDX-License-Identifier: Apache-2.0
// The terms of J[r, g], each written once: the scorer and the packer price a row through these.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/integer.h"
#include "routepack/cost.h"
#include "routepack/instance.h"
#include "routepack/placement.h"
#include "routepack/score.h"
#include "routepack/window.h"

namespace routepack {

/// Exact sums over the samples of one cell.
struct CellTotals {
  std::int64_t tokens = 0;   ///< S1 = Σ t
  std::int64_t squares = 0;  ///< S2 = Σ t², below 2⁵³
  std::int64_t aligned = 0;  ///< Σ ceil_m(t)
};

/// α·T̄ + β·Q̄ of one cell at one stage (equation 11).
inline double stage_work(const Stage& stage, const CellTotals& cell, std::int64_t capacity) {
  const auto c = static_cast<double>(capacity);
  const double tokens = static_cast<double>(cell.tokens) / c;
  const double pairs = static_cast<double>(cell.squares) / (c * c);
  return stage.alpha * tokens + stage.beta * pairs;
}

/// Adds q[i, l, p] of one sample to loads [L, P] (equation 5). A dummy adds nothing.
inline void add_rank_loads(const Window& window, const Placement& placement, SampleId i,
                           std::span<std::int64_t> loads) {
  if (i.value() >= window.samples()) return;
  const auto experts = static_cast<std::size_t>(window.experts());
  const auto ranks = static_cast<std::size_t>(placement.ranks());
  window.visit_counts(i, [&](auto counts) {
    for (const LayerId l : window.layer_ids()) {
      const std::int32_t* rank_of = placement.ranks_of_layer(l).data();
      const auto* layer_counts = counts.data() + l * experts;
      std::int64_t* layer_loads = loads.data() + l * ranks;
      for (std::size_t e = 0; e < experts; ++e) layer_loads[rank_of[e]] += static_cast<std::int64_t>(layer_counts[e]);
    }
  });
}

/// Adds the load of a row-shard's padding tokens: (pads · Σ_{e on p} pad_counts[l, e] + 2¹⁵) >> 16.
/// `pad_rates` is Σ_{e on p} pad_counts[l, e], [L, P], as from pad_rank_rates.
inline void add_pad_loads(std::span<const std::int64_t> pad_rates, std::int64_t pads, std::span<std::int64_t> loads) {
  for (std::size_t lp = 0; lp < pad_rates.size(); ++lp) loads[lp] += (pads * pad_rates[lp] + 32768) >> 16;
}

/// Σ_{e on p} pad_counts[l, e], [L, P]; empty when the window has no pad_counts.
std::vector<std::int64_t> pad_rank_rates(const Window& window, const Placement& placement);

/// E[r, g] from the loads W[r, g, ·, ·], [L, P] (equation 14).
inline double expert_work(const CostModel& cost, std::span<const std::int64_t> loads, std::int32_t ranks,
                          std::int64_t capacity) {
  const auto width = static_cast<std::size_t>(ranks);
  double sum = 0.0;
  for (std::size_t l = 0; l * width < loads.size(); ++l) {
    const auto layer = loads.subspan(l * width, width);
    sum += cost.expert_weight(LayerId(l)) * static_cast<double>(*std::ranges::max_element(layer));
  }
  return sum / static_cast<double>(capacity);
}

/// The score (equation 15) from J [R, G].
Score combine_rows(std::span<const double> joint, std::int32_t rows, std::int32_t shards, Sync sync);

}  // namespace routepack
