// SPDX-License-Identifier: Apache-2.0
// In which order a pipeline stage works on rows and chunks: 1F1B and its interleaved form.
#pragma once

#include <cstdint>
#include <vector>

#include "routepack/simulate.h"

namespace routepack {

/// One row through one chunk, one way. Chunk c = v·S + s is the v-th of stage s; rows pass the chunks in order of c.
struct PassOfRow {
  Pass pass = Pass::Forward;
  std::int32_t row = 0;
  std::int32_t chunk = 0;
  friend bool operator==(const PassOfRow&, const PassOfRow&) = default;
};

/// What stage `stage` does, in order, every row once through each of its chunks both ways. 1F1B: Narayanan et al.,
/// PipeDream-2BW (arXiv 2006.09503); interleaved: Narayanan et al. (arXiv 2104.04473), section 2.2.
/// @throws InvalidInput for an interleaved pipeline unless the stages divide the rows
std::vector<PassOfRow> stage_order(const PipelineShape& pipeline, std::int32_t stage, std::int32_t rows);

}  // namespace routepack
