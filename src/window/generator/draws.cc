// SPDX-License-Identifier: Apache-2.0
#include "window/generator/draws.h"

#include <algorithm>

#include "core/portable_math.h"

namespace routepack {

AliasTable::AliasTable(std::size_t experts) : columns_(experts), mass_(experts) {
  light_.reserve(experts);
  heavy_.reserve(experts);
}

void AliasTable::build(std::span<const double> logits) {
  constexpr double kRarest = -18.0;
  const double likeliest = *std::ranges::max_element(logits);
  double total = 0.0;
  for (std::size_t e = 0; e < mass_.size(); ++e) {
    mass_[e] = portable::exp(std::max(logits[e] - likeliest, kRarest));
    total += mass_[e];
  }
  const double scale = static_cast<double>(mass_.size()) / total;
  light_.clear();
  heavy_.clear();
  for (std::uint32_t e = 0; e < mass_.size(); ++e) {
    mass_[e] *= scale;
    (mass_[e] < 1.0 ? light_ : heavy_).push_back(e);
  }
  while (!light_.empty() && !heavy_.empty()) {
    const std::uint32_t light = light_.back();
    const std::uint32_t heavy = heavy_.back();
    light_.pop_back();
    columns_[light] = {static_cast<std::uint32_t>(mass_[light] * 0x1p32), heavy};
    mass_[heavy] -= 1.0 - mass_[light];
    if (mass_[heavy] < 1.0) {
      heavy_.pop_back();
      light_.push_back(heavy);
    }
  }
  // What is left is full, up to rounding.
  for (const std::uint32_t e : light_) columns_[e] = {0xffff'ffffU, e};
  for (const std::uint32_t e : heavy_) columns_[e] = {0xffff'ffffU, e};
}

void TokenCounter::add(const AliasTable& table, std::int64_t top_k, std::int64_t tokens, RandomStream& random,
                       std::span<std::uint32_t> counts) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    ++token_;
    for (std::int64_t taken = 0; taken < top_k;) {
      const std::uint32_t e = table.draw(random.next());
      const std::uint32_t fresh = seen_[e] != token_ ? 1 : 0;
      seen_[e] = token_;
      counts[e] += fresh;
      taken += fresh;
    }
  }
}

}  // namespace routepack
