// SPDX-License-Identifier: Apache-2.0
// What a token costs on the dense side and on the expert side.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "routepack/ids.h"

namespace routepack {

/// Weights beyond this are refused: sums over any window then stay finite.
inline constexpr double kMaxCost = 1e100;

/// One type of attention (or other dense) stage: work α·T̄ + β·Q̄ per cell, T̄ = Σ t/C, Q̄ = Σ (t/C)².
struct Stage {
  std::string name;
  double alpha = 0.0;  ///< weight of tokens
  double beta = 0.0;   ///< weight of token pairs
  friend bool operator==(const Stage&, const Stage&) = default;
};

/// Dense stages in evaluation order, and the weight w_l of a routed token at each MoE layer. Immutable.
class CostModel {
 public:
  /// One expert weight for all layers.
  /// @throws InvalidInput when a number is negative, not finite or above kMaxCost.
  explicit CostModel(std::vector<Stage> stages, double expert = 1.0, const std::string& where = "cost");
  /// One expert weight per MoE layer; the window must have as many layers.
  CostModel(std::vector<Stage> stages, std::vector<double> expert_per_layer, const std::string& where = "cost");

  /// Reads a cost file (TOML, docs/formats.md); unknown keys are errors.
  /// @throws IoError, FormatError, InvalidInput
  static CostModel load(const std::filesystem::path& path);
  /// The same from text; `where` stands in messages.
  static CostModel parse(const std::string& toml, const std::string& where);
  /// A commented cost file to start from.
  static std::string file_template();
  /// The model as a cost file that `parse` reads back equal.
  [[nodiscard]] std::string to_toml() const;

  [[nodiscard]] std::span<const Stage> stages() const { return stages_; }
  [[nodiscard]] double expert_weight(LayerId l) const { return uniform_ ? expert_[0] : expert_[l]; }
  [[nodiscard]] bool uniform() const { return uniform_; }
  [[nodiscard]] std::span<const double> expert_weights() const { return expert_; }  ///< [1] or [L]
  friend bool operator==(const CostModel&, const CostModel&) = default;

 private:
  void check(const std::string& where) const;

  std::vector<Stage> stages_;
  std::vector<double> expert_;
  bool uniform_ = true;
};

}  // namespace routepack
