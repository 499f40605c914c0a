// SPDX-License-Identifier: Apache-2.0
// What `routepack plan` says about a plan: for people, and as JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "routepack/instance.h"
#include "routepack/plan.h"
#include "routepack/plan_file.h"

namespace routepack::cli {

/// What happens without RoutePack: experts stay, samples go by length alone.
struct Baseline {
  std::int32_t rows;
  Evaluation evaluation;
};

/// One planned window with all that is reported about it.
struct Planned {
  const Instance* instance;
  std::filesystem::path window_path;
  std::filesystem::path plan_path;
  PlanRecord record;
  std::string hash;
  Plan plan;
  std::optional<Baseline> before;
  /// Of a team: bytes that this process sent, per phase; else empty.
  std::vector<std::pair<std::string, std::int64_t>> sent_bytes;
};

/// Nothing when first fit finds no layout. Members of a team, if there is one, call it together.
std::optional<Baseline> baseline(const Instance& instance, const Placement& current, Communicator* team);

Json planned_json(const Planned& planned);
std::string planned_text(const Planned& planned);

}  // namespace routepack::cli
