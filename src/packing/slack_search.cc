// SPDX-License-Identifier: Apache-2.0
#include "packing/slack_search.h"

#include <algorithm>
#include <functional>

namespace routepack {
namespace {

/// Units of one bin that a search may stack up; each is a call.
constexpr std::size_t kDeepest = 2000;

}  // namespace

SlackSearch::SlackSearch(const Kinds& kinds, std::int64_t capacity, std::int64_t max_count)
    : capacity_(capacity), max_count_(max_count) {
  for (std::size_t k = 0; k < kinds.kinds(); ++k) add(kinds, static_cast<std::uint32_t>(k), kinds.copies[k]);
}

SlackSearch::SlackSearch(const Kinds& kinds, std::span<const std::uint32_t> units, std::int64_t capacity,
                         std::int64_t max_count)
    : capacity_(capacity), max_count_(max_count) {
  for (std::size_t n = 0; n < units.size();) {
    std::size_t end = n + 1;
    while (end < units.size() && units[end] == units[n]) ++end;
    add(kinds, units[n], static_cast<std::int64_t>(end - n));
    n = end;
  }
}

void SlackSearch::add(const Kinds& kinds, std::uint32_t kind, std::int64_t copies) {
  size_.push_back(kinds.size[kind]);
  count_.push_back(kinds.count[kind]);
  left_.push_back(copies);
  kind_.push_back(kind);
  units_ += copies;
}

std::size_t SlackSearch::first_at_most(std::int64_t size, std::size_t from) const {
  const auto begin = size_.begin() + static_cast<std::ptrdiff_t>(from);
  return static_cast<std::size_t>(std::lower_bound(begin, size_.end(), size, std::greater<>()) - size_.begin());
}

void SlackSearch::drop_used_up() {
  std::size_t to = 0;
  for (std::size_t k = 0; k < size_.size(); ++k) {
    if (left_[k] == 0) continue;
    size_[to] = size_[k];
    count_[to] = count_[k];
    left_[to] = left_[k];
    kind_[to++] = kind_[k];
  }
  size_.resize(to);
  count_.resize(to);
  left_.resize(to);
  kind_.resize(to);
  used_up_ = 0;
}

void SlackSearch::extend(std::size_t from, std::int64_t slack, std::int64_t room) {
  if (slack < best_slack_) {
    best_slack_ = slack;
    best_ = chosen_;
    if (slack <= good_enough_) {
      done_ = true;
      return;
    }
  }
  if (chosen_.size() >= kDeepest) return;
  std::size_t k = first_at_most(slack, from);
  while (k < size_.size()) {
    if (--steps_left_ <= 0) done_ = true;
    if (done_) return;
    if (left_[k] == 0 || count_[k] > room || (seed_ != 0 && mixed(seed_ ^ kind_[k]) % 8 == 0)) {
      ++k;
      continue;
    }
    const std::int64_t rest = slack - size_[k];
    if (rest < smallest_ && rest >= best_slack_) {
      // Alone it is not good enough and nothing can join it; only units that leave room for another can do better.
      k = std::max(k + 1, first_at_most(slack - smallest_, k));
      continue;
    }
    --left_[k];
    chosen_.push_back(k);
    extend(k, rest, room - count_[k]);
    chosen_.pop_back();
    ++left_[k];
    ++k;
  }
}

std::vector<std::uint32_t> SlackSearch::next_bin(std::int64_t good_enough, std::int64_t limit, std::uint64_t seed,
                                                 Work& work) {
  if (2 * used_up_ > size_.size()) drop_used_up();
  std::size_t first = 0;
  while (left_[first] == 0) ++first;
  std::size_t last = size_.size() - 1;
  while (left_[last] == 0) --last;
  smallest_ = size_[last];
  good_enough_ = good_enough;
  steps_left_ = limit;
  seed_ = seed;
  done_ = false;
  chosen_ = {first};
  best_slack_ = capacity_ - size_[first] + 1;
  --left_[first];
  extend(first, capacity_ - size_[first], max_count_ - count_[first]);
  ++left_[first];
  work.spend(limit - steps_left_ + 20);

  std::vector<std::uint32_t> bin;
  bin.reserve(best_.size());
  for (const std::size_t k : best_) {
    bin.push_back(kind_[k]);
    if (--left_[k] == 0) ++used_up_;
    --units_;
  }
  return bin;
}

}  // namespace routepack
