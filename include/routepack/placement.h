// SPDX-License-Identifier: Apache-2.0
// Which physical slot, and so which EP rank, holds each expert of each layer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "routepack/ids.h"

namespace routepack {

class Window;

/// One permutation per MoE layer, kept as physical_to_logical (π_l⁻¹): expert in slot 0, in slot 1, …; rank p owns the
/// slots p·S … p·S + S − 1 with S = slots_per_rank(). Immutable. Who serves an expert is asked here and nowhere else.
class Placement {
 public:
  /// Expert e in slot e.
  /// @throws InvalidInput when `ranks` does not divide `experts`.
  static Placement identity(std::int32_t layers, std::int32_t experts, std::int32_t ranks);

  /// @throws InvalidInput unless every list is a permutation of 0 … E − 1, all equally long, and `ranks` divides E;
  ///         `where` goes in front of the message.
  static Placement from_maps(std::int32_t ranks, std::vector<std::vector<ExpertId>> physical_to_logical,
                             const std::string& where = "placement");

  /// Reads ep and physical_to_logical of a placement file or of a plan file (docs/formats.md).
  /// @throws IoError, FormatError, InvalidInput
  static Placement load(const std::filesystem::path& path);
  /// The text of a `routepack.placement/1` file. @throws InvalidInput for a negative epoch
  [[nodiscard]] std::string to_json(std::int64_t epoch = 0) const;
  /// Writes that file whole or not at all. @throws IoError
  void save(const std::filesystem::path& path, std::int64_t epoch = 0) const;

  [[nodiscard]] std::int32_t layers() const { return static_cast<std::int32_t>(physical_to_logical_.size()); }
  [[nodiscard]] std::int32_t experts() const { return experts_; }
  [[nodiscard]] std::int32_t ranks() const { return ranks_; }
  [[nodiscard]] std::int32_t slots_per_rank() const { return experts_ / ranks_; }

  [[nodiscard]] const std::vector<std::vector<ExpertId>>& physical_to_logical() const { return physical_to_logical_; }
  /// The slot that holds an expert, π_l(e).
  [[nodiscard]] std::int32_t slot_of(LayerId l, ExpertId e) const { return slot_of_[l * experts_size() + e]; }
  /// The rank that serves an expert, owner(π_l(e)).
  [[nodiscard]] RankId rank_of(LayerId l, ExpertId e) const { return RankId(rank_of_[l * experts_size() + e]); }
  /// rank_of for all experts of a layer, [E]: for loops that stream over counts.
  [[nodiscard]] std::span<const std::int32_t> ranks_of_layer(LayerId l) const {
    return std::span(rank_of_).subspan(l * experts_size(), experts_size());
  }

  /// «xxh3:» and 16 hex digits over ranks, layers, experts and the maps (docs/formats.md).
  [[nodiscard]] std::string fingerprint() const;
  friend bool operator==(const Placement&, const Placement&) = default;

 private:
  Placement() = default;
  [[nodiscard]] std::size_t experts_size() const { return static_cast<std::size_t>(experts_); }

  std::int32_t ranks_ = 0;
  std::int32_t experts_ = 0;
  std::vector<std::vector<ExpertId>> physical_to_logical_;
  std::vector<std::int32_t> slot_of_;  // [L, E]
  std::vector<std::int32_t> rank_of_;  // [L, E]
};

/// How far a placement is from the one before it.
struct Moves {
  std::int64_t experts = 0;  ///< (layer, expert) pairs whose owner rank differs
  std::int64_t local = 0;    ///< pairs that only changed slot inside their rank
  double fraction = 0.0;     ///< experts / (L·E)
};

/// @throws InvalidInput when the two placements differ in shape.
Moves count_moves(const Placement& from, const Placement& to);

/// Aggregate demand of a window, Σ_i a[i, l, e], [L, E]: what placement looks at. Only of the counts that are in this
/// process.
std::vector<std::int64_t> aggregate_demand(const Window& window);

/// Algorithm 1 of the paper per layer: experts by falling load, each to the least loaded rank with a free slot, ties by
/// index. Inside a rank an expert that was there in `current` keeps its slot and the others fill the gaps in order.
/// `demand` is [L, E] as from aggregate_demand.
Placement place_lpt(std::span<const std::int64_t> demand, const Placement& current);

}  // namespace routepack
