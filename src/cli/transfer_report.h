// SPDX-License-Identifier: Apache-2.0
// What routepack transfer says: a move before it is made, and a self-test after.
#pragma once

#include <cstdint>
#include <string>

#include "core/json.h"
#include "routepack/grid_layout.h"
#include "routepack/move_schedule.h"
#include "routepack/transfer_engine.h"
#include "transfer/self_test.h"

namespace routepack::cli {

/// A move that was looked at and not made.
struct DryRun {
  std::string from, to;  ///< files
  std::string state;     ///< what the layout describes: a preset, or a layout file
  Route route = Route::TwoHop;
  Atomic atomic = Atomic::Layer;
  bool timed = false;    ///< rates were given
  bool by_node = false;  ///< the ranks of a node were given
};
Json dry_run_json(const DryRun& run, const GridLayout& layout, const TrafficForecast& forecast);
std::string dry_run_text(const DryRun& run, const GridLayout& layout, const TrafficForecast& forecast);

/// `backend`: who carried the bytes, «threads» or «MPI».
Json self_test_json(const std::string& backend, const GridLayout& layout, const SelfTestOptions& options,
                    const SelfTestReport& report);
std::string self_test_text(const std::string& backend, const GridLayout& layout, const SelfTestOptions& options,
                           const SelfTestReport& report);

/// Bytes of one expert's state on all lanes together.
std::int64_t bytes_of_one_expert(const GridLayout& layout);

}  // namespace routepack::cli
