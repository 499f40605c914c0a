// SPDX-License-Identifier: Apache-2.0
#include "placement/row_score.h"

#include <algorithm>

#include "cost/row_cost.h"

namespace routepack {
namespace {

template <class Load>
std::vector<std::int64_t> peaks_from_scratch(const RowLoads& rows, std::span<const std::int32_t> rank_of) {
  const auto& loads = std::get<std::vector<Load>>(rows.loads);
  const std::size_t width = rows.row_shards();
  const auto experts = static_cast<std::size_t>(rows.experts);
  const auto ranks = static_cast<std::size_t>(rows.ranks);
  std::vector<std::int64_t> peaks;
  std::vector<std::int64_t> on_rank(ranks * width), rate(ranks);
  for (std::size_t l = 0; l < rows.weights.size(); ++l) {
    std::ranges::fill(on_rank, 0);
    std::ranges::fill(rate, 0);
    for (std::size_t e = 0; e < experts; ++e) {
      const auto p = static_cast<std::size_t>(rank_of[l * experts + e]);
      if (!rows.pads.empty()) rate[p] += rows.pad_counts[l * experts + e];
      for (std::size_t i = 0; i < width; ++i) on_rank[p * width + i] += loads[(l * experts + e) * width + i];
    }
    for (std::size_t i = 0; i < width; ++i) {
      std::int64_t peak = 0;
      for (std::size_t p = 0; p < ranks; ++p) {
        const std::int64_t padding = rows.pads.empty() ? 0 : (rows.pads[i] * rate[p] + 32768) >> 16;
        peak = std::max(peak, on_rank[p * width + i] + padding);
      }
      peaks.push_back(peak);
    }
  }
  return peaks;
}

}  // namespace

std::vector<double> joint_cost(const RowLoads& rows, std::span<const std::int64_t> peaks) {
  const std::size_t width = rows.row_shards();
  std::vector<double> joint(width);
  for (std::size_t i = 0; i < width; ++i) {
    double sum = 0.0;
    for (std::size_t l = 0; l < rows.weights.size(); ++l)
      sum += rows.weights[l] * static_cast<double>(peaks[l * width + i]);
    joint[i] = rows.dense[i] + sum / static_cast<double>(rows.capacity);
  }
  return joint;
}

Score score_rows(const RowLoads& rows, std::span<const std::int32_t> rank_of) {
  const auto peaks = std::holds_alternative<std::vector<std::int32_t>>(rows.loads)
                         ? peaks_from_scratch<std::int32_t>(rows, rank_of)
                         : peaks_from_scratch<std::int64_t>(rows, rank_of);
  return combine_rows(joint_cost(rows, peaks), rows.rows, rows.shards, rows.sync);
}

}  // namespace routepack
