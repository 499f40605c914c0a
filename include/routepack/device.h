// SPDX-License-Identifier: Apache-2.0
// What an accelerator can do: a device file (TOML, docs/model.md).
#pragma once

#include <filesystem>
#include <string>

namespace routepack {

/// One accelerator and its share of the links. Rates are those reached, in FLOP/s and bytes/s.
struct Device {
  std::string name;
  double peak_flops = 0.0;     ///< of the data sheet: dense matrix products in 16 bits, without sparsity
  double dense_flops = 0.0;    ///< reached in matrix products with weights
  double grouped_flops = 0.0;  ///< reached in grouped products of the experts
  double attention_flops = 0.0;
  double linear_flops = 0.0;  ///< reached in recurrences of linear attention
  double memory_rate = 0.0;   ///< bytes/s of device memory, of the data sheet
  double near_rate = 0.0;     ///< bytes/s that the device sends inside its node, one way
  double far_rate = 0.0;      ///< bytes/s that it sends to other nodes, one way

  /// @throws IoError, FormatError for unknown or missing keys and numbers out of range
  static Device load(const std::filesystem::path& path);
  /// The same from text; `where` stands in messages.
  static Device parse(const std::string& toml, const std::string& where);
  friend bool operator==(const Device&, const Device&) = default;
};

}  // namespace routepack
