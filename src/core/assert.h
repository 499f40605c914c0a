// SPDX-License-Identifier: Apache-2.0
// Broken invariants. The cheap kind is always on; the heavy kind may recompute everything and is on in the dev preset.
#pragma once

#include <string>

#include "routepack/error.h"

#define ROUTEPACK_STRINGIFY_(x) #x
#define ROUTEPACK_STRINGIFY(x) ROUTEPACK_STRINGIFY_(x)

/// Throws InternalError naming the place when `condition` does not hold.
#define ROUTEPACK_ASSERT(condition, what)                                                              \
  do {                                                                                                 \
    if (!(condition)) [[unlikely]]                                                                     \
      throw ::routepack::InternalError(                                                                \
          std::string("internal error at " __FILE__ ":" ROUTEPACK_STRINGIFY(__LINE__) ": ") + (what)); \
  } while (false)

#ifdef ROUTEPACK_HEAVY_ASSERTS
#define ROUTEPACK_HEAVY_ASSERT(condition, what) ROUTEPACK_ASSERT(condition, what)
#else
#define ROUTEPACK_HEAVY_ASSERT(condition, what) static_cast<void>(0)
#endif
