// SPDX-License-Identifier: Apache-2.0
#include "packing/exact_rows.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "packing/bin_bound.h"

namespace routepack {
namespace {

/// Sets of companions that are looked at for one bin; more of them and the proof is given up, not the search.
constexpr std::size_t kSetsPerBin = 4000;
constexpr std::int64_t kStepsPerBin = 20000;
/// Units of one bin that a search may stack up; each is a call.
constexpr std::size_t kDeepest = 2000;

using KindList = std::vector<std::uint32_t>;

/// All undominated ways to fill one bin around its first unit.
class Companions {
 public:
  struct Set {
    std::int64_t slack = 0;
    KindList kinds;
  };

  Companions(const Kinds& kinds, std::vector<std::int64_t>& left, bool counted)
      : kinds_(kinds), left_(left), counted_(counted) {}

  /// Sets that leave at most `waste` free, fullest first. The first unit is already out of the supply.
  std::vector<Set> list(std::size_t first, std::int64_t slack, std::int64_t room, std::int64_t waste, Work& work) {
    sets_.clear();
    chosen_.clear();
    waste_ = waste;
    steps_ = 0;
    rest_.assign(kinds_.kinds() + 1, 0);
    smallest_ = 0;
    for (std::size_t k = kinds_.kinds(); k-- > first;) {
      rest_[k] = rest_[k + 1] + kinds_.size[k] * left_[k];
      if (smallest_ == 0 && left_[k] > 0) smallest_ = kinds_.size[k];
    }
    extend(first, slack, room);
    work.spend(steps_ + static_cast<std::int64_t>(kinds_.kinds() / 4));
    std::ranges::stable_sort(sets_, [](const Set& a, const Set& b) { return a.slack < b.slack; });
    return std::move(sets_);
  }

  [[nodiscard]] bool cut() const { return cut_; }

 private:
  [[nodiscard]] std::size_t first_at_most(std::int64_t size, std::size_t from) const {
    const auto begin = kinds_.size.begin() + static_cast<std::ptrdiff_t>(from);
    return static_cast<std::size_t>(std::lower_bound(begin, kinds_.size.end(), size, std::greater<>()) -
                                    kinds_.size.begin());
  }

  void extend(std::size_t from, std::int64_t slack, std::int64_t room) {
    if (slack <= waste_ && undominated(slack, room)) {
      if (sets_.size() == kSetsPerBin) {
        cut_ = true;
        return;
      }
      sets_.push_back({slack, chosen_});
    }
    if (chosen_.size() >= kDeepest) cut_ = true;
    if (chosen_.size() >= kDeepest) return;
    for (std::size_t k = first_at_most(slack, from); k < kinds_.kinds();) {
      if (++steps_ > kStepsPerBin || sets_.size() == kSetsPerBin) cut_ = true;
      if (steps_ > kStepsPerBin || sets_.size() == kSetsPerBin) return;
      if (slack - rest_[k] > waste_) return;  // even everything that is left would waste too much
      if (left_[k] == 0 || kinds_.count[k] > room) {
        ++k;
        continue;
      }
      const std::int64_t rest = slack - kinds_.size[k];
      if (rest < smallest_ && rest > waste_) {
        k = std::max(k + 1, first_at_most(slack - smallest_, k));
        continue;
      }
      --left_[k];
      chosen_.push_back(static_cast<std::uint32_t>(k));
      extend(k, rest, room - kinds_.count[k]);
      chosen_.pop_back();
      ++left_[k];
      ++k;
    }
  }

  /// No unit outside could join, or take the place of a smaller one inside: whatever solution uses this set could then
  /// use the fuller one, with the smaller unit where the larger one was.
  [[nodiscard]] bool undominated(std::int64_t slack, std::int64_t room) {
    for (std::size_t k = first_at_most(slack, 0); k < kinds_.kinds(); ++k) {
      ++steps_;
      if (left_[k] > 0 && kinds_.count[k] <= room) return false;
    }
    std::uint32_t last = static_cast<std::uint32_t>(kinds_.kinds());
    for (const std::uint32_t inside : chosen_) {
      if (inside == last) continue;
      last = inside;
      for (std::size_t above = inside; above > 0; --above) {
        const std::size_t k = above - 1;
        if (kinds_.size[k] > kinds_.size[inside] + slack) break;
        ++steps_;
        if (left_[k] == 0 || kinds_.size[k] == kinds_.size[inside]) continue;
        const std::int64_t more = kinds_.count[k] - kinds_.count[inside];
        if (!counted_ || (more >= 0 && more <= room)) return false;
      }
    }
    return true;
  }

  const Kinds& kinds_;
  std::vector<std::int64_t>& left_;
  bool counted_;
  std::vector<Set> sets_;
  KindList chosen_;
  std::vector<std::int64_t> rest_;  // Σ size of what is left from a kind on
  std::int64_t smallest_ = 0;
  std::int64_t waste_ = 0;
  std::int64_t steps_ = 0;
  bool cut_ = false;
};

class BinCompletion {
 public:
  BinCompletion(const BinProblem& problem, Work& work)
      : problem_(problem),
        kinds_(problem),
        left_(kinds_.copies),
        counted_(problem.max_count < problem.total_count()),
        companions_(kinds_, left_, counted_),
        work_(work),
        size_left_(problem.total_size()),
        count_left_(problem.total_count()) {}

  ExactAnswer run(std::int64_t bins) {
    if (dive(0, bins)) return {Proof::Fits, kinds_.deal(bins_)};
    return {work_.over() || companions_.cut() ? Proof::Unknown : Proof::Impossible, {}};
  }

 private:
  bool dive(std::size_t from, std::int64_t bins) {
    while (from < kinds_.kinds() && left_[from] == 0) ++from;
    if (from == kinds_.kinds()) return true;
    const std::int64_t waste = bins * problem_.capacity - size_left_;
    if (waste < 0 || (counted_ && count_left_ > bins * problem_.max_count)) return false;
    work_.spend(static_cast<std::int64_t>(kinds_.kinds() - from) / 2 + 4);
    if (work_.over() ||
        l2_bound(std::span(kinds_.size).subspan(from), std::span(left_).subspan(from), problem_.capacity) > bins) {
      return false;
    }

    take(static_cast<std::uint32_t>(from));
    const std::int64_t room = counted_ ? problem_.max_count - kinds_.count[from] : BinProblem::kNoLimit;
    for (auto& set : companions_.list(from, problem_.capacity - kinds_.size[from], room, waste, work_)) {
      for (const std::uint32_t k : set.kinds) take(k);
      set.kinds.push_back(static_cast<std::uint32_t>(from));
      bins_.push_back(std::move(set.kinds));
      if (dive(from, bins - 1)) return true;
      const KindList bin = std::move(bins_.back());
      bins_.pop_back();
      for (std::size_t n = 0; n + 1 < bin.size(); ++n) give_back(bin[n]);
      if (work_.over()) break;
    }
    give_back(static_cast<std::uint32_t>(from));
    return false;
  }

  void take(std::uint32_t k) {
    --left_[k];
    size_left_ -= kinds_.size[k];
    count_left_ -= kinds_.count[k];
  }
  void give_back(std::uint32_t k) {
    ++left_[k];
    size_left_ += kinds_.size[k];
    count_left_ += kinds_.count[k];
  }

  const BinProblem& problem_;
  Kinds kinds_;
  std::vector<std::int64_t> left_;
  bool counted_;
  Companions companions_;
  Work& work_;
  std::int64_t size_left_;
  std::int64_t count_left_;
  std::vector<KindList> bins_;
};

class EqualCounts {
 public:
  EqualCounts(const EqualProblem& problem, Work& work)
      : problem_(problem),
        work_(work),
        share_(problem.bins.total_count() / problem.slots),
        cells_(static_cast<std::size_t>(problem.slots * problem.rows)),
        slots_(static_cast<std::size_t>(problem.slots)) {
    for (auto& slot : slots_) slot.empty = problem.rows;
    empty_ = problem.slots * problem.rows;
  }

  ExactAnswer run() {
    const bool possible = problem_.bins.total_count() % problem_.slots == 0 &&
                          static_cast<std::int64_t>(problem_.bins.units.size()) >= empty_;
    if (possible && put(0)) {
      ExactAnswer answer{Proof::Fits, {}};
      for (Cell& cell : cells_) answer.packing.push_back(std::move(cell.units));
      return answer;
    }
    return {work_.over() ? Proof::Unknown : Proof::Impossible, {}};
  }

 private:
  struct Cell {
    std::vector<std::uint32_t> units;
    std::int64_t size = 0;
    std::int64_t count = 0;
    bool closed = false;
  };
  struct Slot {
    std::int64_t count = 0;
    std::int64_t empty = 0;  ///< cells
  };

  bool put(std::uint32_t u) {
    if (u == problem_.bins.units.size()) return true;
    if (static_cast<std::int64_t>(problem_.bins.units.size() - u) < empty_) return false;
    for (std::size_t d = 0; d < slots_.size(); ++d) {
      if (put_on_slot(u, d)) return true;
      if (work_.over()) return false;
      if (slots_[d].count == 0) return false;  // the slots after it are as untouched
    }
    return false;
  }

  bool put_on_slot(std::uint32_t u, std::size_t d) {
    const auto& unit = problem_.bins.units[u];
    const auto rows = static_cast<std::size_t>(problem_.rows);
    Slot& slot = slots_[d];
    if (slot.count + unit.count > share_) return false;
    for (std::size_t r = 0; r < rows; ++r) {
      Cell& cell = cells_[d * rows + r];
      work_.spend(1);
      if (work_.over()) return false;
      const bool fits = problem_.alone[u] ? cell.units.empty()
                                          : !cell.closed && cell.size + unit.size <= problem_.bins.capacity &&
                                                cell.count + unit.count <= problem_.bins.max_count;
      if (!fits || seen_before(d * rows, d * rows + r)) continue;
      const bool was_empty = cell.units.empty();
      const std::int64_t empty_after = slot.empty - (was_empty ? 1 : 0);
      if (slot.count + unit.count + empty_after > share_) continue;  // its empty cells could not be filled
      cell.units.push_back(u);
      cell.size += unit.size;
      cell.count += unit.count;
      cell.closed = problem_.alone[u];
      slot.count += unit.count;
      slot.empty = empty_after;
      empty_ -= was_empty ? 1 : 0;
      if (put(u + 1)) return true;
      empty_ += was_empty ? 1 : 0;
      slot.empty += was_empty ? 1 : 0;
      slot.count -= unit.count;
      cell.closed = false;
      cell.count -= unit.count;
      cell.size -= unit.size;
      cell.units.pop_back();
    }
    return false;
  }

  /// A cell of the same slot in the same state was tried already.
  [[nodiscard]] bool seen_before(std::size_t first, std::size_t c) const {
    for (std::size_t b = first; b < c; ++b) {
      if (cells_[b].size == cells_[c].size && cells_[b].count == cells_[c].count &&
          cells_[b].closed == cells_[c].closed && cells_[b].units.empty() == cells_[c].units.empty()) {
        return true;
      }
    }
    return false;
  }

  const EqualProblem& problem_;
  Work& work_;
  std::int64_t share_;
  std::vector<Cell> cells_;
  std::vector<Slot> slots_;
  std::int64_t empty_ = 0;
};

}  // namespace

ExactAnswer pack_exactly(const BinProblem& problem, std::int64_t bins, Work& work) {
  return BinCompletion(problem, work).run(bins);
}

ExactAnswer pack_equal_counts(const EqualProblem& problem, Work& work) {
  return EqualCounts(problem, work).run();
}

}  // namespace routepack
