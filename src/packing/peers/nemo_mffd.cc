// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>

#include "packing/peers/packers.h"

namespace routepack::peers {
namespace {

/// Johnson and Garey's phases. Bins with a large sample come first, in order of their size.
class ModifiedFirstFit {
 public:
  explicit ModifiedFirstFit(const Lengths& lengths) : lengths_(lengths), capacity_(lengths.capacity) {}

  Bins pack() {
    sort_into_classes();
    for (const std::size_t i : large_) open(i);
    one_medium_each();
    two_small_each();
    fill();
    worst_fit();
    return std::move(bins_);
  }

 private:
  [[nodiscard]] std::int64_t length(std::size_t i) const { return lengths_.of[i]; }
  [[nodiscard]] std::int64_t room(std::size_t b) const { return capacity_ - sums_[b]; }
  [[nodiscard]] bool is_medium(std::size_t i) const { return 3 * length(i) > capacity_ && 2 * length(i) <= capacity_; }

  void open(std::size_t i) {
    bins_.push_back({i});
    sums_.push_back(length(i));
  }
  void put(std::size_t b, std::size_t i) {
    bins_[b].push_back(i);
    sums_[b] += length(i);
  }
  std::size_t take(Bin& from, std::size_t at) {
    const std::size_t i = from[at];
    from.erase(from.begin() + static_cast<std::ptrdiff_t>(at));
    return i;
  }
  [[nodiscard]] std::optional<std::size_t> first_that_fits(const Bin& items, std::int64_t space) const {
    const auto found = std::ranges::find_if(items, [&](std::size_t i) { return length(i) <= space; });
    if (found == items.end()) return std::nullopt;
    return static_cast<std::size_t>(found - items.begin());
  }

  void sort_into_classes() {
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      Bin& of_class = 2 * length(i) > capacity_   ? large_
                      : is_medium(i)              ? medium_
                      : 6 * length(i) > capacity_ ? small_
                                                  : tiny_;
      of_class.push_back(i);
    }
    const auto falls = [&](std::size_t a, std::size_t b) { return length(a) > length(b); };
    const auto rises = [&](std::size_t a, std::size_t b) { return length(a) < length(b); };
    std::ranges::stable_sort(large_, falls);
    std::ranges::stable_sort(medium_, falls);
    std::ranges::stable_sort(small_, rises);
    std::ranges::stable_sort(tiny_, rises);
  }

  /// From the largest sample on, each bin gets the largest medium one that fits.
  void one_medium_each() {
    for (std::size_t b = 0; b < bins_.size(); ++b) {
      if (const auto at = first_that_fits(medium_, room(b))) put(b, take(medium_, *at));
    }
  }

  /// From the last bin back, each without a medium sample gets the smallest small one and the largest that fits beside.
  void two_small_each() {
    for (std::size_t b = bins_.size(); b-- > 0;) {
      if (small_.size() < 2 || std::ranges::any_of(bins_[b], [&](std::size_t i) { return is_medium(i); })) continue;
      if (length(small_[0]) + length(small_[1]) > room(b)) continue;
      put(b, take(small_, 0));
      std::size_t at = small_.size() - 1;
      while (length(small_[at]) > room(b)) --at;  // the first one fits, as was just seen
      put(b, take(small_, at));
    }
  }

  /// Bin by bin, the largest that fits until nothing does.
  void fill() {
    left_ = std::move(medium_);
    left_.insert(left_.end(), small_.begin(), small_.end());
    left_.insert(left_.end(), tiny_.begin(), tiny_.end());
    std::ranges::stable_sort(left_, [&](std::size_t a, std::size_t b) { return length(a) > length(b); });
    for (std::size_t b = 0; b < bins_.size(); ++b) {
      while (!left_.empty() && length(left_.back()) <= room(b)) {
        put(b, take(left_, *first_that_fits(left_, room(b))));
      }
    }
  }

  /// What is left by falling length to the emptiest new bin, else to another one. In the end emptiest bins come first.
  void worst_fit() {
    std::vector<std::pair<std::int64_t, Bin>> fresh;  // by rising sum
    for (const std::size_t i : left_) {
      std::pair<std::int64_t, Bin> bin;
      if (!fresh.empty() && fresh.front().first + length(i) <= capacity_) {
        bin = std::move(fresh.front());
        fresh.erase(fresh.begin());
      }
      bin.first += length(i);
      bin.second.push_back(i);
      const auto at = std::ranges::upper_bound(fresh, bin.first, {}, &std::pair<std::int64_t, Bin>::first);
      fresh.insert(at, std::move(bin));
    }
    for (auto& [sum, bin] : fresh) bins_.push_back(std::move(bin));
  }

  const Lengths& lengths_;
  std::int64_t capacity_;
  Bins bins_;
  std::vector<std::int64_t> sums_;
  Bin large_, medium_, small_, tiny_, left_;
};

/// New bins get one sample each, the last of the bin with the most samples until that has one left, and so on.
bool add_bins(Bins& bins, std::size_t count) {
  std::vector<std::pair<std::size_t, std::size_t>> by_count;  // samples, bin
  for (std::size_t b = 0; b < bins.size(); ++b) by_count.emplace_back(bins[b].size(), b);
  std::ranges::sort(by_count, std::greater<>());
  for (const auto& [size, b] : by_count) {
    while (bins.size() < count && bins[b].size() > 1) {
      const std::size_t moved = bins[b].back();
      bins[b].pop_back();
      bins.push_back({moved});
    }
  }
  return bins.size() >= count;
}

}  // namespace

Packed nemo_mffd(const Lengths& lengths) {
  if (Infeasible why; !all_fit(lengths, why)) return why;
  Bins bins = ModifiedFirstFit(lengths).pack();
  const std::size_t rows = allowed_rows(lengths, (bins.size() + lengths.slots - 1) / lengths.slots);
  const std::size_t cells = rows * lengths.slots;
  if (!add_bins(bins, cells)) return too_few(lengths.size(), cells);
  return deal(std::move(bins), lengths.slots);
}

}  // namespace routepack::peers
