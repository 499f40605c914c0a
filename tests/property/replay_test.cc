// SPDX-License-Identifier: Apache-2.0
// Laws of counting: equal to counting one id at a time, whatever the type, the strides, the mask and the traps.
#include "routepack/replay.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "support/property.h"

namespace routepack::testing {
namespace {

/// One sample as plain numbers, and the same in bytes.
struct Case {
  std::int64_t tokens, layers, top_k, experts;
  IdType type;
  std::vector<std::int64_t> ids;  // [tokens, layers, top_k]
  std::vector<std::uint8_t> mask;
  std::int64_t length;
  std::vector<std::byte> bytes;
  RouteIds view;

  [[nodiscard]] std::vector<std::int64_t> row(std::int64_t t, std::int64_t l) const {
    const auto begin = ids.begin() + (t * layers + l) * top_k;
    return {begin, begin + top_k};
  }
};

void store(std::byte* at, IdType type, std::int64_t id) {
  std::memcpy(at, &id, size_of(type));  // little-endian: the low bytes come first
}

/// Mostly routes, some rows of −1 or zeros, some duplicates, in a random memory order with gaps.
Case draw_case() {
  Case it{draw(0, 40), draw(1, 3), draw(1, 9), 0, static_cast<IdType>(draw(0, 5)), {}, {}, 0, {}, {}};
  const std::int32_t most = it.type == IdType::I8 ? 128 : it.type == IdType::U8 ? 256 : 300;
  it.experts = draw(static_cast<std::int32_t>(it.top_k), most);
  const bool has_sign = it.type != IdType::U8 && it.type != IdType::U16;
  std::mt19937_64 random(draw_seed());
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  const std::int64_t trouble = draw(0, 1) * 8;
  for (std::int64_t r = 0; r < it.tokens * it.layers; ++r) {
    const std::int64_t kind = trouble == 0 ? 9 : below(trouble);
    std::set<std::int64_t> used;
    for (std::int64_t k = 0; k < it.top_k; ++k) {
      std::int64_t e = below(it.experts);
      while (kind != 2 && used.contains(e)) e = below(it.experts);
      used.insert(e);
      it.ids.push_back(kind == 0 ? 0 : kind == 1 && has_sign ? -1 : e);
    }
  }
  it.length = it.tokens + draw(0, 2);
  if (draw(0, 1) == 1 && it.length > 0) {
    for (std::int64_t t = 0; t < it.length; ++t) it.mask.push_back(static_cast<std::uint8_t>(below(3)));
  }
  std::vector<std::int64_t> sizes = {it.tokens, it.layers, it.top_k};
  std::vector<std::size_t> axes = {0, 1, 2};
  if (draw(0, 1) == 1) std::ranges::shuffle(axes, random);
  const std::int64_t gap = draw(0, 2);
  std::vector<std::int64_t> strides(3);
  std::int64_t size = static_cast<std::int64_t>(size_of(it.type)) + gap;
  for (const std::size_t axis : {axes[2], axes[1], axes[0]}) {
    strides[axis] = size;
    size *= sizes[axis];
  }
  it.bytes.resize(static_cast<std::size_t>(size) + 8);
  it.view = {it.bytes.data(), it.type, it.tokens, it.layers, it.top_k, strides[0], strides[1], strides[2]};
  for (std::size_t at = 0; at < it.ids.size(); ++at) {
    const auto i = static_cast<std::int64_t>(at);
    const std::int64_t offset =
        i / (it.layers * it.top_k) * strides[0] + i / it.top_k % it.layers * strides[1] + i % it.top_k * strides[2];
    store(it.bytes.data() + offset, it.type, it.ids[at]);
  }
  return it;
}

struct Expected {
  std::vector<std::uint32_t> counts;
  LayerReport report;
};

Expected count_by_hand(const Case& it, std::int64_t layer) {
  Expected expected{std::vector<std::uint32_t>(static_cast<std::size_t>(it.experts)), {}};
  const auto kept = [&](std::int64_t t) { return it.mask.empty() || it.mask[static_cast<std::size_t>(t)] != 0; };
  LayerReport& report = expected.report;
  for (std::int64_t t = 0; t < it.length; ++t) {
    if (!kept(t)) continue;
    if (t >= it.tokens) {
      ++report.absent;
      continue;
    }
    const auto row = it.row(t, layer);
    if (row[0] == -1) {
      ++report.sentinel;
    } else if (it.top_k > 1 && std::ranges::count(row, 0) == it.top_k) {
      ++report.zero;
    } else {
      ++report.recorded;
      for (const std::int64_t e : row) ++expected.counts[static_cast<std::size_t>(e)];
      if (std::set<std::int64_t>(row.begin(), row.end()).size() < row.size()) ++report.duplicates;
    }
  }
  const bool all_zero = expected.counts[0] == static_cast<std::uint32_t>(report.recorded);
  if (it.top_k == 1 && it.experts > 1 && report.recorded >= 2 && all_zero) {
    report.zero = std::exchange(report.recorded, 0);
    expected.counts[0] = 0;
  }
  return expected;
}

SampleRoutes sample_of(const Case& it) {
  return {.ids = it.view, .length = it.length, .mask = it.mask};
}

TEST(CountRoutesLaw, counting_is_counting_one_id_at_a_time) {
  for_all(400, [] {
    const Case it = draw_case();
    std::vector<std::uint32_t> counts(static_cast<std::size_t>(it.layers * it.experts));
    const CountReport report = count_routes(sample_of(it), {.experts = it.experts}, counts);
    for (std::int64_t l = 0; l < it.layers; ++l) {
      const Expected expected = count_by_hand(it, l);
      const auto begin = counts.begin() + l * it.experts;
      RC_ASSERT(std::vector<std::uint32_t>(begin, begin + it.experts) == expected.counts);
      RC_ASSERT(report[static_cast<std::size_t>(l)] == expected.report);
    }
  });
}

TEST(CountRoutesLaw, spreading_fills_up_to_the_tokens_and_keeps_proportions) {
  for_all(200, [] {
    const Case it = draw_case();
    const auto size = static_cast<std::size_t>(it.layers * it.experts);
    std::vector<std::uint32_t> left_out(size);
    std::vector<std::uint32_t> spread(size);
    (void)count_routes(sample_of(it), {.experts = it.experts}, left_out);
    const CountReport report =
        count_routes(sample_of(it), {.experts = it.experts, .missing = MissingRoutes::Spread}, spread);
    for (std::size_t l = 0; l < report.size(); ++l) {
      const auto begin = static_cast<std::ptrdiff_t>(l) * it.experts;
      const auto sum = [&](const std::vector<std::uint32_t>& counts) {
        return std::accumulate(counts.begin() + begin, counts.begin() + begin + it.experts, std::int64_t{0});
      };
      const std::int64_t rows = report[l].recorded;
      const std::int64_t added = rows == 0 ? 0 : report[l].missing();
      RC_ASSERT(report[l].spread == added);
      RC_ASSERT(sum(spread) == it.top_k * (rows + added));
      for (std::int64_t e = 0; rows > 0 && e < it.experts; ++e) {
        const auto at = static_cast<std::size_t>(begin + e);
        const std::int64_t share = left_out[at] * added * it.top_k / (rows * it.top_k);
        const std::int64_t got = static_cast<std::int64_t>(spread[at]) - left_out[at];
        RC_ASSERT(got == share || got == share + 1);
      }
    }
  });
}

TEST(CountRoutesLaw, a_physical_map_is_undone) {
  for_all(150, [] {
    Case it = draw_case();
    std::vector<std::int32_t> map;
    std::mt19937_64 random(draw_seed());
    for (std::int64_t l = 0; l < it.layers; ++l) {
      for (std::int64_t slot = 0; slot < it.experts; ++slot) map.push_back(static_cast<std::int32_t>(slot));
      std::shuffle(map.end() - it.experts, map.end(), random);
    }
    const auto size = static_cast<std::size_t>(it.layers * it.experts);
    std::vector<std::uint32_t> by_slot(size);
    std::vector<std::uint32_t> by_expert(size);
    (void)count_routes(sample_of(it), {.experts = it.experts}, by_slot);
    (void)count_routes(sample_of(it), {.experts = it.experts, .physical_to_logical = map}, by_expert);
    for (std::size_t at = 0; at < size; ++at) {
      const std::size_t layer = at / static_cast<std::size_t>(it.experts) * static_cast<std::size_t>(it.experts);
      RC_ASSERT(by_slot[at] == by_expert[layer + static_cast<std::size_t>(map[at])]);
    }
  });
}

TEST(CountRoutesLaw, selected_layers_are_those_of_the_whole) {
  for_all(100, [] {
    const Case it = draw_case();
    std::vector<std::int64_t> layers(static_cast<std::size_t>(it.layers));
    std::iota(layers.begin(), layers.end(), 0);
    std::mt19937_64 random(draw_seed());
    std::ranges::shuffle(layers, random);
    layers.resize(static_cast<std::size_t>(draw(1, static_cast<std::int32_t>(it.layers))));
    std::vector<std::uint32_t> all(static_cast<std::size_t>(it.layers * it.experts));
    std::vector<std::uint32_t> some(layers.size() * static_cast<std::size_t>(it.experts));
    (void)count_routes(sample_of(it), {.experts = it.experts}, all);
    (void)count_routes(sample_of(it), {.experts = it.experts, .layers = layers}, some);
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const auto e = static_cast<std::size_t>(it.experts);
      RC_ASSERT(std::ranges::equal(std::span(some).subspan(l * e, e),
                                   std::span(all).subspan(static_cast<std::size_t>(layers[l]) * e, e)));
    }
  });
}

}  // namespace
}  // namespace routepack::testing
