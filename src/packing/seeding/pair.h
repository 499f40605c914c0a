// SPDX-License-Identifier: Apache-2.0
// Completed cells to empty places (paper Algorithm 2: EDPAwarePair).
#pragma once

#include <cstddef>
#include <stop_token>

#include "packing/row_table.h"
#include "packing/seeding/draws.h"
#include "routepack/instance.h"

namespace routepack {

/// What makes a place cheap for a cell.
enum class PairKey {
  Peaks,  ///< the paper's: least increase of Σ_l w_l · max_p W, then the lowest max over l, p of W
  Joint,  ///< least increase of J, then the same
};

struct Pairing {
  PairKey key = PairKey::Peaks;
  std::size_t choice = 1;  ///< draw among so many cheapest row-shards, each half as likely as the one before
};

enum class PairOutcome { Paired, OverRankLimit, Stopped };

/// Gives every cell of an empty table a place: cells by falling routed-token peak, each to one of the row-shards with a
/// free slot (its own slot, when it has one) that it makes least busy without breaking max_rank_tokens, as long as
/// there is one. The slots of a row-shard are alike, so the first free one serves.
///
/// The paper looks at every pair of a cell and a place, O(B² · L·P). Here one of a row-shard's slots stands for all,
/// and cells meet only the row-shards of their band (row_bands): 32 rows of up to 8 shards at once, which is everything
/// in windows up to that size, and O(B · 256 · L·P) time with O(B · L·P) memory in larger ones. `draws` may be null
/// when choice is 1. A stop request is obeyed between bands.
PairOutcome edp_aware_pair(const Instance& instance, RowTable& table, const Pairing& pairing, Draws* draws,
                           const std::stop_token& stop = {});

}  // namespace routepack
