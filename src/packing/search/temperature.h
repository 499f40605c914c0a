// SPDX-License-Identifier: Apache-2.0
// How hot each level of an annealing is, and what is minimised.
#pragma once

#include <cstdint>
#include <vector>

#include "packing/search/state.h"
#include "routepack/params.h"

namespace routepack::search {

/// What energies weigh: the paper's weights (equation 16), or the slowest shard and the mean shard mixed, so that no
/// shard drifts while another is the slowest.
EnergyWeights energy_weights(const Problem& problem, const SearchParams& params);

/// Random moves that temperatures() prices.
inline constexpr std::int64_t kProbes = 512;

/// T_0 > … > T_{N−1}, geometric from params.hot to params.cold, relative to the energy; in units of what a random move
/// from `state` costs when params.adaptive_temperatures. Empty when no random move costs anything.
std::vector<double> temperatures(const State& state, const SearchParams& params, std::int64_t seed);

}  // namespace routepack::search
