// SPDX-License-Identifier: Apache-2.0
#include "packing/seeding/select.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/assert.h"

namespace routepack {

std::vector<std::size_t> quality_diversity_select(std::span<const Score> scores, std::size_t wanted, double price,
                                                  const Measure& measure) {
  std::vector<std::size_t> by_score(scores.size());
  std::iota(by_score.begin(), by_score.end(), std::size_t{0});
  std::ranges::stable_sort(by_score, [&](std::size_t a, std::size_t b) { return scores[a] < scores[b]; });
  const double best = scores[by_score.front()].max_shard;
  const auto gap = [&](std::size_t candidate) { return best > 0.0 ? scores[candidate].max_shard / best - 1.0 : 0.0; };

  std::vector<std::size_t> chosen;
  std::vector<double> nearest(scores.size(), std::numeric_limits<double>::infinity());  // by place in by_score
  std::vector<bool> taken(scores.size(), false);
  wanted = std::min(wanted, scores.size());
  std::size_t next = 0;
  while (chosen.size() < wanted) {
    taken[next] = true;
    chosen.push_back(by_score[next]);
    if (chosen.size() == wanted) break;
    const std::vector<double> distance = measure(by_score, chosen.back());
    for (std::size_t n = 0; n < nearest.size(); ++n) nearest[n] = std::min(nearest[n], distance[n]);
    // At least one place beyond the chosen ones is in view: ⌈(k + 1)/wanted · candidates⌉ ≥ k + 1.
    const std::size_t in_view = ((chosen.size() + 1) * scores.size() + wanted - 1) / wanted;
    double most = -std::numeric_limits<double>::infinity();
    for (std::size_t n = 0; n < in_view; ++n) {
      if (taken[n]) continue;
      const double value = nearest[n] - price * gap(by_score[n]);
      if (value > most) {
        most = value;
        next = n;
      }
    }
  }
  return chosen;
}

std::vector<std::size_t> filled_cyclically(std::span<const std::size_t> chosen, std::size_t population) {
  ROUTEPACK_ASSERT(!chosen.empty(), "no seed was chosen");
  std::vector<std::size_t> result(population);
  for (std::size_t n = 0; n < population; ++n) result[n] = chosen[n % chosen.size()];
  return result;
}

}  // namespace routepack
