// SPDX-License-Identifier: Apache-2.0
// Which candidates the search starts from (paper Algorithm 2: QualityDiversitySelect and the cyclic fill).
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "routepack/score.h"

namespace routepack {

/// At most `wanted` different candidates, the one of the best score first (ties to the first candidate). Each next one
/// maximises min over the chosen of distance(candidate, chosen) − price · gap, where gap = primary score / best
/// primary score − 1; ties to the better score. The n-th choice looks only at the best n/wanted of the candidates:
/// quality decides early choices, diversity later ones.
/// `measure` computes the distances from all candidates named in its first argument to the one in its second; called
/// once per choice. O(candidates · wanted) beside it.
using Measure = std::function<std::vector<double>(std::span<const std::size_t>, std::size_t)>;
std::vector<std::size_t> quality_diversity_select(std::span<const Score> scores, std::size_t wanted, double price,
                                                  const Measure& measure);

/// `population` entries, the chosen ones over and over.
std::vector<std::size_t> filled_cyclically(std::span<const std::size_t> chosen, std::size_t population);

}  // namespace routepack
