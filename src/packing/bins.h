// SPDX-License-Identifier: Apache-2.0
// Cells as plain bins: what packing moves, reduced to a size and a count. Bounds and searches for few rows look at
// nothing else.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace routepack {

/// Units into bins of one capacity. A unit never exceeds the capacity or the limit on counts.
struct BinProblem {
  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

  struct Unit {
    std::int64_t size = 0;   ///< Σ ceil_m(t), what the cap counts
    std::int64_t count = 1;  ///< samples
    friend bool operator==(const Unit&, const Unit&) = default;
  };

  std::int64_t capacity = 0;
  std::int64_t max_count = kNoLimit;  ///< samples of a bin at most
  std::vector<Unit> units;            ///< by falling size, then by falling count

  [[nodiscard]] std::int64_t total_size() const;
  [[nodiscard]] std::int64_t total_count() const;
};

/// Bins of unit indices.
using Packing = std::vector<std::vector<std::uint32_t>>;

/// True when every unit is in exactly one bin, and no bin exceeds the capacity or the limit on counts.
bool is_packing(const BinProblem& problem, const Packing& packing);

/// Units of equal size and count are interchangeable: one kind, several copies. Kinds in the order of the units.
struct Kinds {
  explicit Kinds(const BinProblem& problem);

  std::vector<std::int64_t> size;
  std::vector<std::int64_t> count;
  std::vector<std::int64_t> copies;

  [[nodiscard]] std::size_t kinds() const { return size.size(); }
  /// Bins of kinds turned into bins of units, the copies of a kind dealt in order.
  [[nodiscard]] Packing deal(const std::vector<std::vector<std::uint32_t>>& bins) const;
};

/// Steps that a search may still take: counted, never timed, so that results do not depend on the machine.
class Work {
 public:
  explicit Work(std::int64_t steps) : left_(steps) {}
  void spend(std::int64_t steps) { left_ -= steps; }
  [[nodiscard]] bool over() const { return left_ <= 0; }
  [[nodiscard]] std::int64_t left() const { return left_ > 0 ? left_ : 0; }

 private:
  std::int64_t left_;
};

}  // namespace routepack
