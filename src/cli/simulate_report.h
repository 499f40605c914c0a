// SPDX-License-Identifier: Apache-2.0
// A simulated step for people and for programs.
#pragma once

#include <optional>
#include <string>

#include "core/json.h"
#include "routepack/simulate.h"

namespace routepack::cli {

struct SimulateReport {
  const StepTimes& times;
  const StepTiming& timing;
  std::string on;  ///< name of the device, or the timing file
  const Instance& instance;
  std::int32_t rows = 0;
  PipelineShape pipeline;
  std::optional<Admission> admission;

  [[nodiscard]] std::string text() const;
  /// `routepack.simulate/1` (docs/formats.md)
  [[nodiscard]] Json json() const;
};

}  // namespace routepack::cli
