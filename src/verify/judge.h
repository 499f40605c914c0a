// SPDX-License-Identifier: Apache-2.0
// Collects what the verifier looked at and what it found, and arithmetic that cannot overflow.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "routepack/verify.h"

namespace routepack::judge {

/// One rule and the first ten places where it is broken; the others are only counted.
class Rule {
 public:
  explicit Rule(std::string_view name) : name_(name) {}

  /// `say` makes the message and is called only when there is room for it.
  template <std::invocable Say>
  void broken(Say&& say) {
    if (++count_ <= kShown) messages_.push_back(std::forward<Say>(say)());
  }
  [[nodiscard]] bool holds() const { return count_ == 0; }
  [[nodiscard]] const std::string& name() const { return name_; }
  void append_to(std::vector<Violation>& violations) const;

 private:
  static constexpr std::int64_t kShown = 10;
  std::string name_;
  std::int64_t count_ = 0;
  std::vector<std::string> messages_;
};

/// The rules in the order in which they were looked at.
class Judge {
 public:
  /// A rule that will now be looked at. The reference stays valid.
  Rule& rule(std::string_view name) { return rules_.emplace_back(name); }
  [[nodiscard]] Verdict verdict() const;

 private:
  std::deque<Rule> rules_;
};

inline constexpr std::int64_t kSaturated = std::numeric_limits<std::int64_t>::max();

/// Sum of two non-negative numbers, kSaturated when it does not fit.
constexpr std::int64_t add(std::int64_t a, std::int64_t b) {
  return a > kSaturated - b ? kSaturated : a + b;
}

/// The next multiple of `multiple` ≥ 1 at or above `value` ≥ 0, kSaturated when it does not fit.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  const std::int64_t rest = value % multiple;
  return rest == 0 ? value : add(value, multiple - rest);
}

/// Whether a stated figure agrees with the recomputed one to 1e-12 relative. Figures that are differences of nearly
/// equal numbers pass the size of those numbers as `scale`. False for NaN.
inline bool agrees(double stated, double recomputed, double scale = 0.0) {
  if (stated == recomputed) return true;
  if (!std::isfinite(stated) || !std::isfinite(recomputed)) return false;
  return std::abs(stated - recomputed) <= 1e-12 * std::max({std::abs(stated), std::abs(recomputed), scale});
}

}  // namespace routepack::judge
