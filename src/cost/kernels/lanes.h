// SPDX-License-Identifier: Apache-2.0
// How the [L, P] loads of a sample or of a row-shard lie in memory: layers side by side, so that the busiest rank of
// many layers comes out of one vertical maximum, and in blocks, so that every stream is read front to back.
#pragma once

#include <cstddef>

namespace routepack {

/// Blocks of kWide layers, the last one of kNarrow when that suffices; inside a block one run of lanes per rank. The
/// same for every instruction set. Lanes past L hold zeros.
class LaneShape {
 public:
  static constexpr std::size_t kWide = 32;
  static constexpr std::size_t kNarrow = 16;

  LaneShape(std::size_t layers, std::size_t ranks)
      : layers_(layers), ranks_(ranks), wide_blocks_(layers / kWide + (layers % kWide > kNarrow ? 1 : 0)) {
    has_narrow_ = wide_blocks_ * kWide < layers;
  }

  [[nodiscard]] std::size_t layers() const { return layers_; }
  [[nodiscard]] std::size_t ranks() const { return ranks_; }
  [[nodiscard]] std::size_t wide_blocks() const { return wide_blocks_; }
  [[nodiscard]] bool has_narrow_block() const { return has_narrow_; }
  /// Layers rounded up to whole blocks: what a vector with one number per layer takes.
  [[nodiscard]] std::size_t layer_lanes() const { return wide_blocks_ * kWide + (has_narrow_ ? kNarrow : 0); }
  /// Numbers in one [L, P] load vector.
  [[nodiscard]] std::size_t lanes() const { return layer_lanes() * ranks_; }
  /// Where (layer, rank) lies.
  [[nodiscard]] std::size_t lane(std::size_t layer, std::size_t rank) const {
    const std::size_t block = layer / kWide;
    const std::size_t width = block < wide_blocks_ ? kWide : kNarrow;
    return block * kWide * ranks_ + rank * width + layer % kWide;
  }

 private:
  std::size_t layers_;
  std::size_t ranks_;
  std::size_t wide_blocks_;
  bool has_narrow_ = false;
};

}  // namespace routepack
