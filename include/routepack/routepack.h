// SPDX-License-Identifier: Apache-2.0
// The whole public interface.
#pragma once

#include "routepack/bounds.h"           // IWYU pragma: export
#include "routepack/cost.h"             // IWYU pragma: export
#include "routepack/device.h"           // IWYU pragma: export
#include "routepack/error.h"            // IWYU pragma: export
#include "routepack/generate.h"         // IWYU pragma: export
#include "routepack/grid_layout.h"      // IWYU pragma: export
#include "routepack/ids.h"              // IWYU pragma: export
#include "routepack/instance.h"         // IWYU pragma: export
#include "routepack/layout.h"           // IWYU pragma: export
#include "routepack/model_cost.h"       // IWYU pragma: export
#include "routepack/move_schedule.h"    // IWYU pragma: export
#include "routepack/moves.h"            // IWYU pragma: export
#include "routepack/params.h"           // IWYU pragma: export
#include "routepack/placement.h"        // IWYU pragma: export
#include "routepack/plan.h"             // IWYU pragma: export
#include "routepack/plan_file.h"        // IWYU pragma: export
#include "routepack/replay.h"           // IWYU pragma: export
#include "routepack/score.h"            // IWYU pragma: export
#include "routepack/simulate.h"         // IWYU pragma: export
#include "routepack/topology.h"         // IWYU pragma: export
#include "routepack/transfer_engine.h"  // IWYU pragma: export
#include "routepack/transport.h"        // IWYU pragma: export
#include "routepack/verify.h"           // IWYU pragma: export
#include "routepack/version.h"          // IWYU pragma: export
#include "routepack/window.h"           // IWYU pragma: export
