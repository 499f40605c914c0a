// SPDX-License-Identifier: Apache-2.0
// A deadline that falls before the budget ends: cooling down in time beats being cut while hot.
#pragma once

#include <algorithm>
#include <cstdint>

#include "exec/deadline.h"
#include "exec/executor.h"

namespace routepack::search {

/// Says how much of its planned steps each round of a search may take, so that the last round ends at the deadline.
/// Without a deadline, or when the plan fits before it, that is all of them, and the search stays reproducible.
class Pace {
 public:
  /// `planned` steps over `rounds` equal rounds. `sample` steps have been seen to take `took`.
  Pace(const Deadline& deadline, double planned, std::int64_t rounds, double sample, Deadline::Clock::duration took)
      : deadline_(deadline), per_round_(planned / static_cast<double>(rounds)), left_(rounds) {
    if (deadline.end()) start_ = Deadline::Clock::now();
    rate_ = sample / std::max(1e-9, seconds(took));
  }

  /// The share of the next round, in (0, 1]; in a team by the first process's clock.
  [[nodiscard]] double next(Executor& executor) {
    if (!deadline_.end()) return 1.0;
    const auto now = Deadline::Clock::now();
    if (done_ > 0.0) rate_ = done_ / std::max(1e-9, seconds(now - start_));
    const double affordable = rate_ * std::max(0.0, seconds(*deadline_.end() - now));
    const double wanted = per_round_ * static_cast<double>(left_);
    const double share = executor.agree(std::clamp(affordable / wanted, 1e-6, 1.0));
    cut_ = cut_ || share < 1.0;
    done_ += share * per_round_;
    --left_;
    return share;
  }
  /// Whether any round got less than planned.
  [[nodiscard]] bool cut() const { return cut_; }

 private:
  static double seconds(Deadline::Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

  const Deadline& deadline_;
  Deadline::Clock::time_point start_;
  double per_round_;
  std::int64_t left_;
  double rate_ = 0.0;
  double done_ = 0.0;
  bool cut_ = false;
};

}  // namespace routepack::search
