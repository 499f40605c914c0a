// SPDX-License-Identifier: Apache-2.0
#include "placement/swap_search.h"

#include <algorithm>
#include <limits>

#include "cost/kernels/row_peaks.h"

namespace routepack {
namespace {

void exchanged(const std::int32_t* rest, const std::int32_t* x, const std::int32_t* y, const std::int32_t* experts,
               const std::vector<std::int32_t>& which, std::size_t n, std::int32_t* sums) {
  kernels::exchanged_peaks(rest, x, y, experts, which.data(), which.size(), n, sums);
}
void exchanged(const std::int64_t* rest, const std::int64_t* x, const std::int64_t* y, const std::int64_t* experts,
               const std::vector<std::int32_t>& which, std::size_t n, std::int64_t* sums) {
  kernels::scalar::exchanged_peaks(rest, x, y, experts, which.data(), which.size(), n, sums);
}
std::int64_t bounded(const std::int32_t* floor, const std::int32_t* x, const std::int32_t* y, const std::int32_t* least,
                     const std::int32_t* most, std::size_t n) {
  return kernels::bounded_peaks(floor, x, y, least, most, n);
}
std::int64_t bounded(const std::int64_t* floor, const std::int64_t* x, const std::int64_t* y, const std::int64_t* least,
                     const std::int64_t* most, std::size_t n) {
  return kernels::scalar::bounded_peaks(floor, x, y, least, most, n);
}
std::int64_t meet(const std::int32_t* rival, const std::int32_t* rival2, const std::int32_t* rival_rank, std::int32_t q,
                  const std::int32_t* on_p, const std::int32_t* on_q, std::size_t n, std::int32_t* rest,
                  std::int32_t* floor) {
  return kernels::meet(rival, rival2, rival_rank, q, on_p, on_q, n, rest, floor);
}
std::int64_t meet(const std::int64_t* rival, const std::int64_t* rival2, const std::int32_t* rival_rank, std::int32_t q,
                  const std::int64_t* on_p, const std::int64_t* on_q, std::size_t n, std::int64_t* rest,
                  std::int64_t* floor) {
  return kernels::scalar::meet(rival, rival2, rival_rank, q, on_p, on_q, n, rest, floor);
}

}  // namespace

template <class Load>
SwapSearch<Load>::SwapSearch(const LayerSwaps<Load>& layer, const MoveLedger& ledger, const AwayPrice& price,
                             Allowed allowed)
    : layer_(layer),
      price_(price),
      priced_(price.far > 0.0),
      allowed_(std::move(allowed)),
      stride_(layer.stride()),
      settled_(layer.ranks(), -1),
      rival_(stride_, 0),
      rival2_(stride_, 0),
      rival_rank_(stride_, -1),
      relief_(layer.ranks(), 0),
      gives_(layer.experts() / layer.ranks() * stride_),
      rest_(layer.ranks() * stride_),
      floor_(layer.ranks() * stride_),
      takes_(stride_),
      x_(stride_, 0),
      y_(stride_, 0),
      at_peak_(layer.ranks(), nullptr),
      sum_place_(layer.ranks(), -1),
      peak_sums_(std::min(layer.ranks(), layer.row_shards() / 2) * layer.experts()),
      key_(layer.experts(), 0),
      return_cost_(layer.experts(), 0.0),
      lowest_key_(layer.ranks(), 0.0),
      lowest_cost_(layer.ranks(), 0.0),
      sums_(layer.experts() / layer.ranks()) {
  for (const RankId p : IdRange<RankId>(layer.rows().ranks)) node_.push_back(ledger.node_of(p));
}

/// When a rank, or the busiest of a row-shard where it is the busiest, last changed: since then nothing about it can
/// have given it a new swap with another rank that did not change either.
template <class Load>
std::int64_t SwapSearch<Load>::touched(std::size_t p) const {
  std::int64_t last = std::max(layer_.rank_changed(p), layer_.peak_rose());
  for (std::size_t i = 0; i < layer_.row_shards(); ++i) {
    if (layer_.busiest(i).first_rank == static_cast<std::int32_t>(p)) last = std::max(last, layer_.row_changed(i));
  }
  return last;
}

/// The least that a partner's expert may cost when it goes to p: one whose home p is returns (as many are away from p
/// as there are guests on it), a guest elsewhere only changes nodes, any other leaves home.
template <class Load>
double SwapSearch<Load>::least_return(std::size_t p) const {
  if (layer_.guests(p) > 0) return -price_.far;
  return layer_.all_guests() > 0 ? price_.near - price_.far : price_.near;
}

/// The experts of p with a chance, those with the largest first.
template <class Load>
void SwapSearch<Load>::look_at_givers(std::size_t p) {
  const auto id = static_cast<std::int32_t>(p);
  std::ranges::fill(relief_, 0);
  for (std::size_t i = 0; i < layer_.row_shards(); ++i) {
    const auto& row = layer_.busiest(i);
    if (row.first_rank != id) relief_[static_cast<std::size_t>(row.first_rank)] += row.first - row.second;
    const bool is_first = row.first_rank == id;
    rival_[i] = is_first ? row.second : row.first;
    rival_rank_[i] = is_first ? row.second_rank : row.first_rank;
    rival2_[i] = is_first || row.second_rank == id ? row.third : row.second;
  }
  most_relief_ = *std::ranges::max_element(relief_);
  givers_.clear();
  std::size_t place = 0;
  for (const ExpertId e : layer_.members(p)) {
    Giver giver{e, layer_.peak_sum(), 0.0, place};
    place += stride_;
    Load* gives = &gives_[giver.loads];
    layer_.loads_without(p, e, gives);
    for (std::size_t i = 0; i < stride_; ++i) giver.most -= std::max(rival_[i], gives[i]);
    ++steps_;
    giver.leaves = layer_.home_rank(e) == id ? price_.near : -away(e, p);
    if (static_cast<double>(giver.most + most_relief_) - giver.leaves - least_return(p) > 0.0) {
      givers_.push_back(giver);
    }
  }
  std::ranges::stable_sort(givers_, [](const Giver& a, const Giver& b) { return a.most > b.most; });
}

/// The ranks that changed after a time, those with the largest chance first.
template <class Load>
void SwapSearch<Load>::look_at_partners(std::size_t p, std::int64_t changed_after) {
  partners_.clear();
  for (std::size_t q = 0; q < layer_.ranks(); ++q) {
    if (q == p || touched(q) <= changed_after) continue;
    Load* rest = &rest_[q * stride_];
    Load* floor = &floor_[q * stride_];
    const Load* on_p = layer_.rank(p);
    const Load* on_q = layer_.rank(q);
    std::int64_t sum = meet(rival_.data(), rival2_.data(), rival_rank_.data(), static_cast<std::int32_t>(q), on_p, on_q,
                            stride_, rest, floor);
    if (layer_.has_padding()) {
      // Rounding may lose one token of the two ranks' padding.
      sum = 0;
      for (std::size_t i = 0; i < layer_.row_shards(); ++i) {
        floor[i] = std::max<Load>(rest[i], (on_p[i] + on_q[i] - static_cast<Load>(layer_.shares()[i])) / 2);
        sum += floor[i];
      }
    }
    ++steps_;
    if (priced_) {
      const auto members = layer_.members(q);
      double* costs = &return_cost_[q * members.size()];
      for (std::size_t k = 0; k < members.size(); ++k) costs[k] = away(members[k], p) - away(members[k], q);
      lowest_cost_[q] = *std::min_element(costs, costs + members.size());
    }
    partners_.push_back({static_cast<double>(layer_.peak_sum() - sum) - lowest_cost_[q], q});
  }
  std::ranges::sort(partners_, [](const Partner& a, const Partner& b) {
    return a.most != b.most ? a.most > b.most : a.rank < b.rank;
  });
}

/// Bounds that cost no pass over row-shards. Where p is busiest, exchanging a for b lowers the peak by at most a − b
/// (raises it when b is the larger); where q is, by b − a; elsewhere by nothing. So a swap gains at most
/// (at_peak(p, a) − at_peak(q, a)) − (at_peak(p, b) − at_peak(q, b)); the last bracket is the key of b.
template <class Load>
void SwapSearch<Load>::key_experts(std::size_t p) {
  const std::size_t experts = layer_.experts();
  std::ranges::fill(at_peak_, nullptr);
  std::ranges::fill(sum_place_, -1);
  std::int32_t places = 0;
  for (std::size_t i = 0; i < layer_.row_shards(); ++i) {
    const auto q = static_cast<std::size_t>(layer_.busiest(i).first_rank);
    const Load* row = layer_.row(i);
    // The first row is read in place; a second one needs room for the sum.
    if (at_peak_[q] == nullptr) {
      at_peak_[q] = row;
      continue;
    }
    if (sum_place_[q] < 0) sum_place_[q] = places++;
    Load* sum = &peak_sums_[static_cast<std::size_t>(sum_place_[q]) * experts];
    for (std::size_t e = 0; e < experts; ++e) sum[e] = at_peak_[q][e] + row[e];
    at_peak_[q] = sum;
  }
  const Load* here = at_peak_[p];
  for (const Partner& partner : partners_) {
    const std::size_t q = partner.rank;
    const Load* there = at_peak_[q];
    const auto members = layer_.members(q);
    Load* keys = &key_[q * members.size()];
    const double* costs = &return_cost_[q * members.size()];
    double lowest = std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < members.size(); ++k) {
      keys[k] = there == nullptr ? here[members[k]] : here[members[k]] - there[members[k]];
      lowest = std::min(lowest, static_cast<double>(keys[k]) + costs[k]);
    }
    lowest_key_[q] = lowest;
  }
}

template <class Load>
std::int64_t SwapSearch<Load>::potential(RankId p) {
  look_at_givers(p);
  return givers_.empty() ? 0 : givers_.front().most;
}

template <class Load>
std::optional<RowSwap> SwapSearch<Load>::best_from(RankId from) {
  const std::size_t p = from;
  found_.reset();
  found_net_ = 0.0;
  found_tie_ = {0, false};
  if (settled_[p] == layer_.clock()) return std::nullopt;
  const std::int64_t since = settled_[p] < touched(p) ? -1 : settled_[p];
  bool is_busiest = false;
  for (std::size_t i = 0; i < layer_.row_shards(); ++i) {
    is_busiest = is_busiest || layer_.busiest(i).first_rank == from.value();
  }
  if (!is_busiest) return std::nullopt;

  look_at_givers(p);
  if (!givers_.empty()) {
    look_at_partners(p, since);
    if (!layer_.has_padding()) key_experts(p);
  }
  for (const Giver& giver : givers_) {
    if (static_cast<double>(giver.most + most_relief_) - giver.leaves - least_return(p) <= found_net_) continue;
    for (const Partner& partner : partners_) {
      if (partner.most - giver.leaves <= found_net_) break;
      try_rank(giver, p, partner.rank);
    }
  }
  if (!found_) settled_[p] = layer_.clock();
  return found_;
}

template <class Load>
void SwapSearch<Load>::try_rank(const Giver& giver, std::size_t p, std::size_t q) {
  const ExpertId a = giver.expert;
  const double leaves = priced_ ? away(a, q) - away(a, p) : 0.0;
  const double least = leaves + lowest_cost_[q];
  if (static_cast<double>(giver.most + relief_[q]) - least <= found_net_) return;
  std::int64_t key = 0;
  if (!layer_.has_padding()) {
    key = at_peak_[p][a];
    if (at_peak_[q] != nullptr) key -= at_peak_[q][a];
    if (static_cast<double>(key) - leaves - lowest_key_[q] <= found_net_) return;
  }
  const Load* gives = &gives_[giver.loads];
  const Load* on_q = layer_.rank(q);
  const Load* load = layer_.expert(a);
  for (std::size_t i = 0; i < stride_; ++i) takes_[i] = on_q[i] + load[i];
  ++steps_;
  // With padding, all that q may lose is what it has.
  const std::int64_t at_least = bounded(&floor_[q * stride_], gives, takes_.data(), layer_.coolest(q),
                                        layer_.has_padding() ? on_q : layer_.hottest(q), stride_);
  if (static_cast<double>(layer_.peak_sum() - at_least) - least <= found_net_) return;

  const auto members = layer_.members(q);
  const double* costs = &return_cost_[q * members.size()];
  if (layer_.has_padding()) {
    for (std::size_t k = 0; k < members.size(); ++k) {
      ++steps_;
      consider(a, members[k], p, q, layer_.peak_sum() - peaks_after(a, members[k], p, q), leaves + costs[k]);
    }
    return;
  }
  tries_.clear();
  const Load* keys = &key_[q * members.size()];
  for (std::size_t k = 0; k < members.size(); ++k) {
    if (static_cast<double>(key - keys[k]) - (leaves + costs[k]) > found_net_) {
      tries_.push_back(static_cast<std::int32_t>(k));
    }
  }
  if (tries_.empty()) return;
  steps_ += static_cast<std::int64_t>(tries_.size());
  which_.clear();
  for (const std::int32_t k : tries_) which_.push_back(members[static_cast<std::size_t>(k)].value());
  exchanged(&rest_[q * stride_], gives, takes_.data(), layer_.expert_loads(), which_, stride_, sums_.data());
  for (std::size_t n = 0; n < tries_.size(); ++n) {
    // Most of them do not gain as much as what is already found.
    const auto k = static_cast<std::size_t>(tries_[n]);
    const std::int64_t gain = layer_.peak_sum() - sums_[n];
    if (static_cast<double>(gain) - (leaves + costs[k]) >= found_net_) {
      consider(a, members[k], p, q, gain, leaves + costs[k]);
    }
  }
}

template <class Load>
void SwapSearch<Load>::consider(ExpertId a, ExpertId b, std::size_t p, std::size_t q, std::int64_t gain, double costs) {
  const double net = static_cast<double>(gain) - costs;
  if (gain < 0 || net <= 0.0 || net < found_net_) return;
  const auto at_home = [&](ExpertId e, std::size_t rank) {
    return static_cast<std::size_t>(layer_.home_rank(e)) == rank ? 1 : 0;
  };
  const std::int64_t moved = at_home(a, p) - at_home(a, q) + at_home(b, q) - at_home(b, p);
  const std::pair<std::int64_t, bool> tie{moved, layer_.home_index(a) != layer_.home_index(b)};
  if (found_ && net == found_net_ && !(tie < found_tie_)) return;
  if (layer_.rows().max_rank_tokens > 0 && !within_limit(a, b, p, q)) return;
  const RowSwap swap{a, b, RankId(p), RankId(q), gain, moved};
  if (allowed_ && !allowed_(swap)) return;
  found_ = swap;
  found_net_ = net;
  found_tie_ = tie;
}

/// x_ and y_ become what the two ranks carry after the swap.
template <class Load>
void SwapSearch<Load>::exchange(ExpertId a, ExpertId b, std::size_t p, std::size_t q) {
  const Load* on_p = layer_.rank(p);
  const Load* on_q = layer_.rank(q);
  const Load* leaves = layer_.expert(a);
  const Load* arrives = layer_.expert(b);
  for (std::size_t i = 0; i < stride_; ++i) {
    const Load change = arrives[i] - leaves[i];
    x_[i] = on_p[i] + change;
    y_[i] = on_q[i] - change;
  }
  if (!layer_.has_padding()) return;
  const std::int64_t more = layer_.pad_rate(b) - layer_.pad_rate(a);
  const std::int64_t rate_p = layer_.pad_rate_of_rank(p);
  const std::int64_t rate_q = layer_.pad_rate_of_rank(q);
  for (std::size_t i = 0; i < layer_.row_shards(); ++i) {
    x_[i] += layer_.padding(i, rate_p + more) - layer_.padding(i, rate_p);
    y_[i] += layer_.padding(i, rate_q - more) - layer_.padding(i, rate_q);
  }
}

template <class Load>
std::int64_t SwapSearch<Load>::peaks_after(ExpertId a, ExpertId b, std::size_t p, std::size_t q) {
  exchange(a, b, p, q);
  const Load* rest = &rest_[q * stride_];
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < stride_; ++i) sum += std::max(rest[i], std::max(x_[i], y_[i]));
  return sum;
}

template <class Load>
bool SwapSearch<Load>::within_limit(ExpertId a, ExpertId b, std::size_t p, std::size_t q) {
  exchange(a, b, p, q);
  for (std::size_t i = 0; i < layer_.row_shards(); ++i) {
    const std::int64_t limit = layer_.rows().max_rank_tokens * layer_.shares()[i];
    if (x_[i] > limit || y_[i] > limit) return false;
  }
  return true;
}

template class SwapSearch<std::int32_t>;
template class SwapSearch<std::int64_t>;

}  // namespace routepack
