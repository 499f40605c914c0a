// SPDX-License-Identifier: Apache-2.0
// From seeds to the best layout that an effort finds.
#pragma once

#include <cstdint>

#include "exec/deadline.h"
#include "exec/executor.h"
#include "packing/search/anneal.h"
#include "packing/search/problem.h"
#include "packing/seeding/seeds.h"
#include "routepack/params.h"
#include "routepack/plan.h"

namespace routepack::search {

/// What an effort spends on seeds.
SeedBudget seed_budget(const SearchParams& params);

/// Anneals in blocks from the best seed, or with params.block_rows = 0 a population of all of them as the paper does.
/// `observer` may be null. See anneal() for what holds of the result.
Found find_layout(const Problem& problem, const Seeds& seeds, const SearchParams& params, std::int64_t seed,
                  double bound, Executor& executor, const Deadline& deadline, Observer* observer);

/// Anneals on from a layout that is good already, colder and shorter (params.repack_hot, params.repack_share).
Found improve_layout(const Problem& problem, const Arrangement& start, const SearchParams& params, std::int64_t seed,
                     double bound, Executor& executor, const Deadline& deadline, Observer* observer);

/// What a plan says about its search.
SearchReport report(const Seeds& seeds, const Found& found);

}  // namespace routepack::search
