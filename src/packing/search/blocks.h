// SPDX-License-Identifier: Apache-2.0
// One layout annealed in blocks: walks over disjoint row-shards run side by side and the blocks are drawn anew every
// round, so that one long chain uses all threads.
#pragma once

#include <cstdint>

#include "exec/deadline.h"
#include "exec/executor.h"
#include "packing/search/anneal.h"

namespace routepack::search {

/// Like anneal(), with one seed. Shards that meet once per step couple only through sums, so blocks are sets of
/// row-shards there; where shards meet in every row they are sets of rows.
Found anneal_in_blocks(const Problem& problem, const Arrangement& start, const SearchParams& params, std::int64_t seed,
                       double bound, Executor& executor, const Deadline& deadline, const LevelObserver& observer);

}  // namespace routepack::search
