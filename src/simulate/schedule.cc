// SPDX-License-Identifier: Apache-2.0
#include "simulate/schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "routepack/error.h"

namespace routepack {

std::vector<PassOfRow> stage_order(const PipelineShape& pipeline, std::int32_t stage, std::int32_t rows) {
  const std::int32_t stages = pipeline.stages, chunks = pipeline.chunks;
  if (chunks > 1 && rows % stages != 0) {
    throw InvalidInput(
        fmt::format("{} rows: an interleaved pipeline of {} stages wants a multiple (plan with --row-multiple {})",
                    rows, stages, stages));
  }
  // The k-th pass in one direction: rows in groups of S, each group through the stage's chunks one after the other.
  const auto pass = [&](Pass direction, std::int32_t k) -> PassOfRow {
    if (chunks == 1) return {direction, k, stage};
    const std::int32_t group = stages * chunks;
    const std::int32_t turn = k % group / stages;
    const std::int32_t v = direction == Pass::Forward ? turn : chunks - 1 - turn;
    return {direction, k / group * stages + k % stages, v * stages + stage};
  };
  const std::int32_t all = rows * chunks;
  const std::int32_t ahead =
      chunks == 1 ? stages - 1 - stage : 2 * (stages - 1 - stage) + (chunks - 1) * stages;  // forward passes
  const std::int32_t warm_up = std::min(ahead, all);
  std::vector<PassOfRow> order;
  order.reserve(2 * static_cast<std::size_t>(all));
  for (std::int32_t k = 0; k < warm_up; ++k) order.push_back(pass(Pass::Forward, k));
  for (std::int32_t k = warm_up; k < all; ++k) {
    order.push_back(pass(Pass::Forward, k));
    order.push_back(pass(Pass::Backward, k - warm_up));
  }
  for (std::int32_t k = all - warm_up; k < all; ++k) order.push_back(pass(Pass::Backward, k));
  return order;
}

}  // namespace routepack
