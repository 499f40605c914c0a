// SPDX-License-Identifier: Apache-2.0
#include "placement/layer_swaps.h"

#include <algorithm>
#include <utility>

#include "core/assert.h"
#include "core/integer.h"
#include "cost/kernels/row_peaks.h"

namespace routepack {

template <class Load>
LayerSwaps<Load>::LayerSwaps(const RowLoads& rows, LayerId layer, const Placement& home,
                             std::span<const std::int32_t> rank_of)
    : rows_(&rows),
      layer_(layer),
      ranks_(static_cast<std::size_t>(rows.ranks)),
      per_rank_(static_cast<std::size_t>(rows.experts / rows.ranks)),
      row_shards_(rows.row_shards()),
      stride_(
          static_cast<std::size_t>(round_up(static_cast<std::int64_t>(row_shards_), std::int64_t{kernels::kRowLanes}))),
      home_rank_(home.ranks_of_layer(layer)),
      shares_(row_shards_, 1),
      rank_of_(rank_of.begin(), rank_of.end()),
      busiest_(row_shards_),
      rank_changed_(ranks_, 0),
      row_changed_(row_shards_, 0) {
  for (const ExpertId e : IdRange<ExpertId>(rows.experts)) {
    home_index_.push_back(home.slot_of(layer, e) % home.slots_per_rank());
  }
  rebuild();
}

template <class Load>
void LayerSwaps<Load>::set_shares(std::span<const std::int32_t> shares) {
  ROUTEPACK_ASSERT(shares.size() == row_shards_, "one share for each row-shard");
  if (std::ranges::equal(shares, shares_)) return;
  shares_.assign(shares.begin(), shares.end());
  rebuild();
}

template <class Load>
void LayerSwaps<Load>::rebuild() {
  const auto& loads = std::get<std::vector<Load>>(rows_->loads);
  expert_.assign(experts() * stride_, 0);
  by_row_.assign(row_shards_ * experts(), 0);
  rank_.assign(ranks_ * stride_, 0);
  pad_rate_.assign(ranks_, 0);
  guests_.assign(ranks_, 0);
  all_guests_ = 0;
  members_.assign(experts(), ExpertId());
  std::vector<std::size_t> taken(ranks_, 0);
  for (const ExpertId e : IdRange<ExpertId>(rows_->experts)) {
    const auto p = static_cast<std::size_t>(rank_of_[e]);
    ROUTEPACK_ASSERT(taken[p] < per_rank_, "a rank has more experts than slots");
    members_[p * per_rank_ + taken[p]++] = e;
    if (home_rank_[e] != rank_of_[e]) {
      ++guests_[p];
      ++all_guests_;
    }
    if (has_padding()) pad_rate_[p] += pad_rate(e);
    const Load* from = &loads[(layer_ * experts() + e) * row_shards_];
    for (std::size_t i = 0; i < row_shards_; ++i) {
      const auto load = static_cast<Load>(from[i] * shares_[i]);
      expert_[e * stride_ + i] = load;
      by_row_[i * experts() + e] = load;
      rank_[p * stride_ + i] += load;
    }
  }
  if (has_padding()) {
    for (std::size_t p = 0; p < ranks_; ++p) {
      for (std::size_t i = 0; i < row_shards_; ++i) rank_[p * stride_ + i] += padding(i, pad_rate_[p]);
    }
  }
  coolest_.assign(ranks_ * stride_, 0);
  hottest_.assign(ranks_ * stride_, 0);
  for (std::size_t p = 0; p < ranks_; ++p) find_extremes(p);
  peak_sum_ = 0;
  std::ranges::fill(busiest_, Busiest{});
  for (std::size_t i = 0; i < row_shards_; ++i) find_busiest(i);
}

template <class Load>
void LayerSwaps<Load>::find_busiest(std::size_t row_shard) {
  Busiest now{-1, -1, -1};
  for (std::size_t p = 0; p < ranks_; ++p) {
    const Load load = rank_[p * stride_ + row_shard];
    if (load <= now.third) continue;
    now.third = load;
    now.third_rank = static_cast<std::int32_t>(p);
    if (now.third > now.second) {
      std::swap(now.third, now.second);
      std::swap(now.third_rank, now.second_rank);
    }
    if (now.second > now.first) {
      std::swap(now.second, now.first);
      std::swap(now.second_rank, now.first_rank);
    }
  }
  now.second = std::max<Load>(now.second, 0);
  now.third = std::max<Load>(now.third, 0);
  Busiest& known = busiest_[row_shard];
  if (now == known) return;
  if (now.first > known.first) peak_rose_ = clock_;
  peak_sum_ += now.first - known.first;
  row_changed_[row_shard] = clock_;
  known = now;
}

template <class Load>
void LayerSwaps<Load>::find_extremes(std::size_t p) {
  Load* coolest = &coolest_[p * stride_];
  Load* hottest = &hottest_[p * stride_];
  std::copy_n(expert(members(p).front()), stride_, coolest);
  std::copy_n(expert(members(p).front()), stride_, hottest);
  for (const ExpertId e : members(p).subspan(1)) {
    const Load* loads = expert(e);
    for (std::size_t i = 0; i < stride_; ++i) {
      coolest[i] = std::min(coolest[i], loads[i]);
      hottest[i] = std::max(hottest[i], loads[i]);
    }
  }
}

template <class Load>
std::int64_t LayerSwaps<Load>::peak(std::size_t row_shard) const {
  return std::int64_t{busiest_[row_shard].first} / shares_[row_shard];
}

template <class Load>
std::vector<RankId> LayerSwaps<Load>::peak_ranks() const {
  std::vector<RankId> ranks;
  std::vector<bool> seen(ranks_, false);
  for (const Busiest& row : busiest_) {
    const auto p = static_cast<std::size_t>(row.first_rank);
    if (!seen[p]) ranks.emplace_back(p);
    seen[p] = true;
  }
  return ranks;
}

template <class Load>
void LayerSwaps<Load>::loads_without(std::size_t p, ExpertId e, Load* out) const {
  const Load* all = rank(p);
  const Load* one = expert(e);
  for (std::size_t i = 0; i < stride_; ++i) out[i] = all[i] - one[i];
  if (!has_padding()) return;
  const std::int64_t rate = pad_rate_[p] - pad_rate(e);
  for (std::size_t i = 0; i < row_shards_; ++i) out[i] += padding(i, rate) - padding(i, pad_rate_[p]);
}

template <class Load>
std::int64_t LayerSwaps<Load>::gain(ExpertId a, ExpertId b) const {
  const auto p = static_cast<std::size_t>(rank_of_[a]);
  const auto q = static_cast<std::size_t>(rank_of_[b]);
  ROUTEPACK_ASSERT(p != q, "a swap is between two ranks");
  const std::int64_t more = has_padding() ? pad_rate(b) - pad_rate(a) : 0;
  std::int64_t gain = peak_sum_;
  for (std::size_t i = 0; i < row_shards_; ++i) {
    const Load change = expert(b)[i] - expert(a)[i];
    Load on_p = rank(p)[i] + change;
    Load on_q = rank(q)[i] - change;
    if (has_padding()) {
      on_p += padding(i, pad_rate_[p] + more) - padding(i, pad_rate_[p]);
      on_q += padding(i, pad_rate_[q] - more) - padding(i, pad_rate_[q]);
    }
    Load peak = std::max(on_p, on_q);
    for (std::size_t other = 0; other < ranks_; ++other) {
      if (other != p && other != q) peak = std::max(peak, rank(other)[i]);
    }
    gain -= peak;
  }
  return gain;
}

template <class Load>
void LayerSwaps<Load>::settle_ties(std::vector<Busiest> busiest) {
  const auto same_loads = [](const Busiest& x, const Busiest& y) {
    return x.first == y.first && x.second == y.second && x.third == y.third;
  };
  ROUTEPACK_ASSERT(std::ranges::equal(busiest, busiest_, same_loads), "the busiest ranks of another layer");
  busiest_ = std::move(busiest);
}

template <class Load>
void LayerSwaps<Load>::apply(ExpertId a, ExpertId b) {
  const auto p = static_cast<std::size_t>(rank_of_[a]);
  const auto q = static_cast<std::size_t>(rank_of_[b]);
  ROUTEPACK_ASSERT(p != q, "a swap is between two ranks");
  ++clock_;
  rank_changed_[p] = rank_changed_[q] = clock_;
  const auto is_guest = [&](ExpertId e, std::size_t rank) {
    return static_cast<std::size_t>(home_rank_[e]) != rank ? 1 : 0;
  };
  const std::int64_t more_p = is_guest(b, p) - is_guest(a, p);
  const std::int64_t more_q = is_guest(a, q) - is_guest(b, q);
  guests_[p] += more_p;
  guests_[q] += more_q;
  all_guests_ += more_p + more_q;

  Load* on_p = &rank_[p * stride_];
  Load* on_q = &rank_[q * stride_];
  for (std::size_t i = 0; i < stride_; ++i) {
    const Load change = expert(b)[i] - expert(a)[i];
    on_p[i] += change;
    on_q[i] -= change;
  }
  if (has_padding()) {
    const std::int64_t more = pad_rate(b) - pad_rate(a);
    for (std::size_t i = 0; i < row_shards_; ++i) {
      on_p[i] += padding(i, pad_rate_[p] + more) - padding(i, pad_rate_[p]);
      on_q[i] += padding(i, pad_rate_[q] - more) - padding(i, pad_rate_[q]);
    }
    pad_rate_[p] += more;
    pad_rate_[q] -= more;
  }
  const auto replace = [&](std::size_t rank, ExpertId leaves, ExpertId arrives) {
    const auto begin = members_.begin() + static_cast<std::ptrdiff_t>(rank * per_rank_);
    *std::find(begin, begin + static_cast<std::ptrdiff_t>(per_rank_), leaves) = arrives;
    rank_of_[arrives] = static_cast<std::int32_t>(rank);
    find_extremes(rank);
  };
  replace(p, a, b);
  replace(q, b, a);

  for (std::size_t i = 0; i < row_shards_; ++i) {
    const Busiest& row = busiest_[i];
    const auto is_in = [&](std::size_t rank) {
      const auto id = static_cast<std::int32_t>(rank);
      return id == row.first_rank || id == row.second_rank || id == row.third_rank;
    };
    if (on_p[i] > row.third || on_q[i] > row.third || is_in(p) || is_in(q)) find_busiest(i);
  }
}

template class LayerSwaps<std::int32_t>;
template class LayerSwaps<std::int64_t>;

}  // namespace routepack
