// SPDX-License-Identifier: Apache-2.0
#include "support/bin_packing_families.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

namespace routepack::testing {
namespace {

std::int64_t between(std::mt19937_64& random, std::int64_t min, std::int64_t max) {
  return min + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(max - min + 1));
}

BinProblem problem_of(std::vector<std::int64_t> sizes, std::int64_t capacity) {
  std::ranges::sort(sizes, std::greater<>());
  BinProblem problem;
  problem.capacity = capacity;
  for (const std::int64_t size : sizes) problem.units.push_back({size, 1});
  return problem;
}

}  // namespace

BinProblem uniform_class(std::uint64_t seed, std::int64_t units) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> sizes;
  for (std::int64_t n = 0; n < units; ++n) sizes.push_back(between(random, 20, 100));
  return problem_of(std::move(sizes), 150);
}

BinProblem triplet_class(std::uint64_t seed, std::int64_t units) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> sizes;
  for (std::int64_t bin = 0; bin < units / 3; ++bin) {
    const std::int64_t first = between(random, 380, 490);
    const std::int64_t second = between(random, 250, (1000 - first) / 2 - 1);
    sizes.insert(sizes.end(), {first, second, 1000 - first - second});
  }
  return problem_of(std::move(sizes), 1000);
}

DrawnWindow draw_window_lengths(std::uint64_t seed, double fewest_per_cell, double most_per_cell) {
  std::mt19937_64 random(seed);
  struct Domain {
    double median, sigma;
    std::int32_t longest;
  };
  // Medians and spreads of measured rollouts: GSM8K, short answers, mixed answers, agents, long reasoning.
  constexpr std::array<Domain, 6> kDomains = {{{280, 0.33, 1024},
                                               {94, 0.42, 512},
                                               {158, 0.86, 2048},
                                               {3309, 0.45, 16384},
                                               {1412, 0.81, 8192},
                                               {792, 1.12, 24576}}};
  const Domain& domain = kDomains[static_cast<std::size_t>(between(random, 0, 5))];
  const std::int64_t samples = between(random, 256, 2048);
  DrawnWindow window;
  window.slots = static_cast<std::int32_t>(between(random, 8, 16));
  window.fill = 0.80 + 0.19 * static_cast<double>(random() % 10000) / 9999.0;
  std::normal_distribution<double> normal;
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < samples; ++i) {
    const double length = std::exp(std::log(domain.median) + domain.sigma * normal(random));
    window.lengths.push_back(std::clamp(static_cast<std::int32_t>(length), 1, domain.longest));
    tokens += window.lengths.back();
  }
  const double per_cell = fewest_per_cell * std::exp(std::log(most_per_cell / fewest_per_cell) *
                                                     static_cast<double>(random() % 10000) / 9999.0);
  const auto rows = std::max<std::int64_t>(
      1, std::llround(static_cast<double>(samples) / per_cell / static_cast<double>(window.slots)));
  const double cells = static_cast<double>(rows * window.slots);
  window.capacity = std::llround(std::ceil(static_cast<double>(tokens) / (cells * window.fill)));
  tokens = 0;
  for (std::int32_t& length : window.lengths) {
    length = static_cast<std::int32_t>(std::min<std::int64_t>(length, window.capacity));
    tokens += length;
  }
  window.fill = static_cast<double>(tokens) / (cells * static_cast<double>(window.capacity));
  window.samples_per_cell = static_cast<double>(samples) / cells;
  return window;
}

BinProblem bins_of(const std::vector<std::int32_t>& lengths, std::int64_t capacity) {
  return problem_of(std::vector<std::int64_t>(lengths.begin(), lengths.end()), capacity);
}

std::int64_t fewest_bins_by_force(const BinProblem& problem) {
  auto best = static_cast<std::int64_t>(problem.units.size());
  std::vector<BinProblem::Unit> bins;
  const std::function<void(std::size_t)> put = [&](std::size_t u) {
    if (static_cast<std::int64_t>(bins.size()) >= best && u < problem.units.size()) return;
    if (u == problem.units.size()) {
      best = std::min(best, static_cast<std::int64_t>(bins.size()));
      return;
    }
    const auto unit = problem.units[u];
    for (std::size_t b = 0; b < bins.size(); ++b) {
      if (bins[b].size + unit.size > problem.capacity || bins[b].count + unit.count > problem.max_count) continue;
      bins[b].size += unit.size;
      bins[b].count += unit.count;
      put(u + 1);
      bins[b].size -= unit.size;
      bins[b].count -= unit.count;
    }
    bins.push_back(unit);
    put(u + 1);
    bins.pop_back();
  };
  put(0);
  return best;
}

}  // namespace routepack::testing
