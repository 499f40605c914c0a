// SPDX-License-Identifier: Apache-2.0
#include "support/routing_statistics.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <span>

#include "routepack/score.h"

namespace routepack::testing {
namespace {

std::int64_t total_tokens(const Window& window) {
  const auto lengths = window.arrays().lengths;
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

}  // namespace

double identity_cv(const Window& window, std::int32_t ranks) {
  const auto demand = aggregate_demand(window);
  return rank_demand_cv(rank_demand(demand, Placement::identity(window.layers(), window.experts(), ranks)), ranks);
}

double between_sample_variance(const Window& window) {
  const auto experts = static_cast<std::size_t>(window.experts());
  const auto layers = static_cast<std::size_t>(window.layers());
  const double n = window.samples();
  std::vector<double> sum(layers * experts), square(layers * experts), noise(layers * experts);
  for (const SampleId i : window.sample_ids()) {
    const double tokens = window.length(i);
    window.visit_counts(i, [&](auto counts) {
      for (std::size_t at = 0; at < counts.size(); ++at) {
        const double p = static_cast<double>(counts[at]) / tokens;
        sum[at] += p;
        square[at] += p * p;
        if (tokens > 1) noise[at] += p * (1.0 - p) / (tokens - 1);  // each token takes the expert or not
      }
    });
  }
  double ratios = 0.0;
  for (std::size_t l = 0; l < layers; ++l) {
    double between = 0.0;
    double possible = 0.0;
    for (std::size_t e = 0; e < experts; ++e) {
      const std::size_t at = l * experts + e;
      const double q = sum[at] / n;
      between += (square[at] - n * q * q) / (n - 1) - noise[at] / n;
      possible += q * (1.0 - q);
    }
    ratios += between / possible;
  }
  return ratios / static_cast<double>(layers);
}

std::vector<SampleId> by_falling_length(const Window& window) {
  const auto ids = window.sample_ids();
  std::vector<SampleId> order(ids.begin(), ids.end());
  std::ranges::sort(order, [&](SampleId a, SampleId b) {
    return std::pair(-window.length(a), a.value()) < std::pair(-window.length(b), b.value());
  });
  return order;
}

std::vector<SampleId> shuffled(const Window& window, std::uint64_t seed) {
  auto order = by_falling_length(window);
  std::mt19937_64 random(seed);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

Rows decreasing_fit(const Window& window, std::int32_t slots, std::int64_t capacity) {
  std::vector<std::int64_t> filled;
  Rows rows;
  for (const SampleId i : by_falling_length(window)) {
    const std::int64_t tokens = window.length(i);
    const auto room = std::ranges::find_if(filled, [&](std::int64_t used) { return used + tokens <= capacity; });
    const auto cell = static_cast<std::size_t>(room - filled.begin());
    if (cell == filled.size()) filled.push_back(0);
    filled[cell] += tokens;
    const std::size_t row = cell / static_cast<std::size_t>(slots);
    if (row == rows.size()) rows.emplace_back();
    rows[row].push_back(i);
  }
  return rows;
}

Rows cut_into_rows(const Window& window, std::vector<SampleId> order, std::int32_t slots, std::int64_t capacity) {
  const std::int64_t tokens = total_tokens(window);
  const std::int64_t count = (tokens + slots * capacity - 1) / (slots * capacity);
  Rows rows(static_cast<std::size_t>(count));
  std::int64_t before = 0;
  for (const SampleId i : order) {
    rows[static_cast<std::size_t>(before * count / tokens)].push_back(i);
    before += window.length(i);
  }
  return rows;
}

double efficiency(const Window& window, const Placement& placement, const Rows& rows) {
  const auto experts = static_cast<std::size_t>(window.experts());
  const auto ranks = static_cast<std::size_t>(placement.ranks());
  double mean = 0.0;
  double busiest = 0.0;
  for (const auto& row : rows) {
    std::vector<std::int64_t> demand(static_cast<std::size_t>(window.layers()) * experts);
    for (const SampleId i : row) {
      window.visit_counts(i, [&](auto counts) {
        for (std::size_t at = 0; at < counts.size(); ++at) demand[at] += counts[at];
      });
    }
    const auto loads = rank_demand(demand, placement);
    for (std::size_t at = 0; at < loads.size(); at += ranks) {
      const auto layer = std::span(loads).subspan(at, ranks);
      mean += static_cast<double>(std::accumulate(layer.begin(), layer.end(), std::int64_t{0})) /
              static_cast<double>(ranks);
      busiest += static_cast<double>(*std::ranges::max_element(layer));
    }
  }
  return mean / busiest;
}

Placement lpt(const Window& window, std::int32_t ranks) {
  return place_lpt(aggregate_demand(window), Placement::identity(window.layers(), window.experts(), ranks));
}

}  // namespace routepack::testing
