// SPDX-License-Identifier: Apache-2.0
#include "packing/seeding/profile.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "packing/seeding/draws.h"

namespace routepack {
namespace {

constexpr std::size_t kMoments = 4;

std::int64_t pairs(std::int64_t of) {
  return of * (of - 1) / 2;
}

}  // namespace

RowFeatures row_features(const Instance& instance, RowTable& full_table) {
  const auto layers = static_cast<std::size_t>(instance.window.layers());
  const std::size_t shards = full_table.shards();
  RowFeatures features;
  features.rows = static_cast<std::size_t>(full_table.rows());
  features.width = kMoments + layers * (shards > 1 ? 2 : 1);
  features.values.resize(features.rows * features.width);
  std::vector<std::int64_t> peaks(layers);
  for (std::size_t r = 0; r < features.rows; ++r) {
    const auto row = std::span(features.values).subspan(r * features.width, features.width);
    for (const SlotId d : instance.topology.slot_ids()) {
      const Cell& cell = full_table.cells()[full_table.cell_at(static_cast<std::int64_t>(r), d)];
      const auto tokens = static_cast<double>(cell.totals.tokens);
      row[0] += tokens;
      row[1] += tokens * tokens;
      row[2] = std::max(row[2], tokens);
      row[3] += static_cast<double>(cell.totals.squares);
    }
    for (std::size_t g = 0; g < shards; ++g) {
      full_table.layer_peaks(r * shards + g, peaks);
      for (std::size_t l = 0; l < layers; ++l) {
        const auto peak = static_cast<double>(peaks[l]);
        row[kMoments + l] += peak;
        if (shards > 1) row[kMoments + layers + l] = std::max(row[kMoments + layers + l], peak);
      }
    }
  }
  return features;
}

SlicedWasserstein::SlicedWasserstein(const RowFeatures& reference, std::size_t projections) : width_(reference.width) {
  std::vector<double> scale(width_, 0.0);
  for (std::size_t n = 0; n < reference.values.size(); ++n) scale[n % width_] += reference.values[n];
  const double norm = std::sqrt(static_cast<double>(width_));
  for (double& sum : scale) sum = sum > 0.0 ? static_cast<double>(reference.rows) / (sum * norm) : 0.0;
  directions_.reserve(projections * width_);
  for (std::size_t k = 0; k < projections; ++k) {
    // The same directions in every plan.
    Draws draws(0, Draws::Purpose::Projection, static_cast<std::uint32_t>(k));
    for (std::size_t f = 0; f < width_; ++f) directions_.push_back(draws.below(2) == 0 ? scale[f] : -scale[f]);
  }
}

std::vector<double> SlicedWasserstein::sketch(const RowFeatures& features) const {
  const std::size_t projections = directions_.size() / width_;
  std::vector<double> result(projections * features.rows);
  for (std::size_t k = 0; k < projections; ++k) {
    const auto phi = std::span(result).subspan(k * features.rows, features.rows);
    for (std::size_t r = 0; r < features.rows; ++r) {
      for (std::size_t f = 0; f < width_; ++f) phi[r] += features.values[r * width_ + f] * directions_[k * width_ + f];
    }
    std::ranges::sort(phi);
  }
  return result;
}

double SlicedWasserstein::distance(std::span<const double> a, std::span<const double> b) {
  double sum = 0.0;
  for (std::size_t n = 0; n < a.size(); ++n) sum += std::abs(a[n] - b[n]);
  return a.empty() ? 0.0 : sum / static_cast<double>(a.size());
}

Profile make_profile(const Items& items, const Arrangement& arrangement, std::vector<double> sketch) {
  Profile profile;
  profile.rows = static_cast<std::size_t>(arrangement.rows);
  profile.items.reserve(items.items.size());
  profile.ends.reserve(arrangement.cells.size());
  profile.cell_of.resize(items.items.size());
  profile.row_of.resize(items.items.size());
  const std::size_t slots = arrangement.cells.size() / profile.rows;
  for (std::size_t c = 0; c < arrangement.cells.size(); ++c) {
    for (const std::size_t index : arrangement.cells[c].items) {
      profile.items.push_back(static_cast<std::uint32_t>(index));
      profile.cell_of[index] = static_cast<std::uint32_t>(c);
      profile.row_of[index] = static_cast<std::uint32_t>(c / slots);
    }
    profile.ends.push_back(static_cast<std::uint32_t>(profile.items.size()));
  }
  profile.sketch = std::move(sketch);
  return profile;
}

double Distance::pairs_apart(const Profile& a, const Profile& b, std::span<const std::uint32_t> block_of,
                             std::size_t cells) {
  const std::size_t blocks = a.ends.size() / cells;
  met_.assign(blocks, 0);
  std::int64_t in_a = 0;
  std::int64_t in_b = 0;
  std::int64_t in_both = 0;
  for (std::size_t block = 0; block < blocks; ++block) {
    const auto bounds = [&](const Profile& x) {
      return std::pair(block == 0 ? 0 : x.ends[block * cells - 1], x.ends[(block + 1) * cells - 1]);
    };
    const auto [first, last] = bounds(a);
    const auto [b_first, b_last] = bounds(b);
    in_a += pairs(last - first);
    in_b += pairs(b_last - b_first);
    // The n-th item to meet the same block of b pairs with those before it.
    for (std::uint32_t n = first; n < last; ++n) in_both += met_[block_of[a.items[n]]]++;
    for (std::uint32_t n = first; n < last; ++n) met_[block_of[a.items[n]]] = 0;
  }
  const std::int64_t in_either = in_a + in_b - in_both;
  return in_either == 0 ? 0.0 : static_cast<double>(in_either - in_both) / static_cast<double>(in_either);
}

double Distance::operator()(const Profile& a, const Profile& b) {
  return pairs_apart(a, b, b.cell_of, 1) + pairs_apart(a, b, b.row_of, a.ends.size() / a.rows) +
         SlicedWasserstein::distance(a.sketch, b.sketch);
}

}  // namespace routepack
