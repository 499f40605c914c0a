// SPDX-License-Identifier: Apache-2.0
// The inner loops of the search: what the busiest ranks of two row-shards become when two items change places.
//
// Row-shard `a` gives item `i` and takes item `j`; row-shard `b` the other way round. Loads lie as LaneShape says.
// Every function exists once in scalar code (namespace scalar, the definition) and once per instruction set through
// Highway; results are equal to the last bit, because all of it is integer arithmetic without overflow.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cost/kernels/lanes.h"

namespace routepack::kernels {

/// Item loads up to here are kept in 16 bits.
inline constexpr std::int32_t kNarrowLimit = 16383;
/// Loads of a row-shard stay below this.
inline constexpr std::int32_t kLoadLimit = std::int32_t{1} << 30;

/// Σ over layers of the busiest rank's load, for both row-shards.
struct PeakSums {
  std::int64_t a = 0;
  std::int64_t b = 0;
};

/// 16-bit form. Row-shard loads come relative to the layer's peak: max(W − peak + kNarrowLimit, −32768); then sums
/// saturate only where they cannot be the maximum, as no item exceeds kNarrowLimit. Sums are relative likewise: each
/// layer counts its new peak − old peak + kNarrowLimit. Reads 4 · lanes · 2 bytes.
PeakSums exchange_sums(const LaneShape& shape, const std::int16_t* i, const std::int16_t* j, const std::int16_t* a,
                       const std::int16_t* b);
/// 32-bit form; row-shard loads are absolute and so are the sums.
PeakSums exchange_sums(const LaneShape& shape, const std::int32_t* i, const std::int32_t* j, const std::int32_t* a,
                       const std::int32_t* b);

/// The same, layer by layer into peaks [layer_lanes]; for weights per layer and caps on a rank.
void exchange_peaks(const LaneShape& shape, const std::int16_t* i, const std::int16_t* j, const std::int16_t* a,
                    const std::int16_t* b, std::int16_t* peaks_a, std::int16_t* peaks_b);
void exchange_peaks(const LaneShape& shape, const std::int32_t* i, const std::int32_t* j, const std::int32_t* a,
                    const std::int32_t* b, std::int32_t* peaks_a, std::int32_t* peaks_b);

/// loads += plus − minus; peaks [layer_lanes] become each layer's busiest rank.
void apply(const LaneShape& shape, const std::int16_t* minus, const std::int16_t* plus, std::int32_t* loads,
           std::int32_t* peaks);
void apply(const LaneShape& shape, const std::int32_t* minus, const std::int32_t* plus, std::int32_t* loads,
           std::int32_t* peaks);
/// The 16-bit form of a row-shard from its loads and peaks. Lanes past L become 0.
void relative_loads(const LaneShape& shape, const std::int32_t* loads, const std::int32_t* peaks,
                    std::int16_t* relative);

/// Reads the operands of exchange_sums and nothing else (an exclusive or of all): the yardstick of the benchmark.
std::int64_t stream_operands(const LaneShape& shape, const std::int16_t* i, const std::int16_t* j,
                             const std::int16_t* a, const std::int16_t* b);

namespace scalar {
PeakSums exchange_sums(const LaneShape& shape, const std::int16_t* i, const std::int16_t* j, const std::int16_t* a,
                       const std::int16_t* b);
PeakSums exchange_sums(const LaneShape& shape, const std::int32_t* i, const std::int32_t* j, const std::int32_t* a,
                       const std::int32_t* b);
void exchange_peaks(const LaneShape& shape, const std::int16_t* i, const std::int16_t* j, const std::int16_t* a,
                    const std::int16_t* b, std::int16_t* peaks_a, std::int16_t* peaks_b);
void exchange_peaks(const LaneShape& shape, const std::int32_t* i, const std::int32_t* j, const std::int32_t* a,
                    const std::int32_t* b, std::int32_t* peaks_a, std::int32_t* peaks_b);
void apply(const LaneShape& shape, const std::int16_t* minus, const std::int16_t* plus, std::int32_t* loads,
           std::int32_t* peaks);
void apply(const LaneShape& shape, const std::int32_t* minus, const std::int32_t* plus, std::int32_t* loads,
           std::int32_t* peaks);
void relative_loads(const LaneShape& shape, const std::int32_t* loads, const std::int32_t* peaks,
                    std::int16_t* relative);
}  // namespace scalar

}  // namespace routepack::kernels
