// SPDX-License-Identifier: Apache-2.0
#include "packing/unit_loads.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <type_traits>
#include <utility>

#include "cost/kernels/exchange.h"
#include "routepack/error.h"

namespace routepack {
namespace {

constexpr std::size_t kPiece = 64;    // items that one call of the executor takes
constexpr std::size_t kTogether = 4;  // samples that share the reading of the placement

/// Experts in slot order, [L, E]: those of a rank are neighbours, so a rank's load is a sum and never a scatter.
std::vector<std::uint32_t> experts_by_slot(const Placement& placement) {
  std::vector<std::uint32_t> experts;
  for (const auto& layer : placement.physical_to_logical()) {
    for (const ExpertId e : layer) experts.push_back(static_cast<std::uint32_t>(e.value()));
  }
  return experts;
}

/// Calls store(k, layer, rank, load) for each of the samples `first` … `first` + Count − 1.
template <std::size_t Count, class Number, class Store>
void sum_by_rank(const std::array<const Number*, Count>& counts, const Placement& placement,
                 std::span<const std::uint32_t> by_slot, Store store) {
  using Sum = std::conditional_t<sizeof(Number) == 2, std::uint32_t, std::uint64_t>;
  const auto experts = static_cast<std::size_t>(placement.experts());
  const auto ranks = static_cast<std::size_t>(placement.ranks());
  const std::size_t per_rank = experts / ranks;
  for (std::size_t l = 0; l < static_cast<std::size_t>(placement.layers()); ++l) {
    const std::uint32_t* slot = by_slot.data() + l * experts;
    std::array<const Number*, Count> layer;
    for (std::size_t k = 0; k < Count; ++k) layer[k] = counts[k] + l * experts;
    for (std::size_t p = 0; p < ranks; ++p) {
      std::array<Sum, Count> sums{};
      for (std::size_t h = 0; h < per_rank; ++h, ++slot) {
        // Without this the sums live in memory.
#pragma GCC unroll 4
        for (std::size_t k = 0; k < Count; ++k) sums[k] += static_cast<Sum>(layer[k][*slot]);
      }
      for (std::size_t k = 0; k < Count; ++k) store(k, l, p, static_cast<std::int64_t>(sums[k]));
    }
  }
}

}  // namespace

UnitLoads::UnitLoads(const Instance& instance, const Placement& placement, const Items& items, Executor& executor)
    : shape_(static_cast<std::size_t>(placement.layers()), static_cast<std::size_t>(placement.ranks())),
      items_(items.items.size()) {
  std::atomic<std::int64_t> most = 0;
  const auto by_slot = experts_by_slot(placement);
  const std::size_t pieces = (items_ + kPiece - 1) / kPiece;
  const auto fill = [&]<class Lane>(std::vector<Lane>& lanes, std::int64_t limit) {
    lanes.assign((items_ + 1) * shape_.lanes(), Lane{0});
    executor.for_each(pieces, [&](std::size_t piece) {
      std::int64_t highest = 0;
      std::array<Lane*, kTogether> into{};
      const auto put = [&](std::size_t k, std::size_t l, std::size_t p, std::int64_t load) {
        Lane& lane = into[k][shape_.lane(l, p)];
        const std::int64_t sum = load + lane;  // of the samples of an atomic group
        highest = std::max(highest, sum);
        lane = static_cast<Lane>(std::min(sum, limit));
      };
      std::vector<std::pair<SampleId, Lane*>> waiting;
      const std::size_t last = std::min(items_, (piece + 1) * kPiece);
      for (std::size_t item = piece * kPiece; item < last; ++item) {
        for (const SampleId i : items.samples_of(items.items[item])) {
          if (i.value() < instance.window.samples()) waiting.emplace_back(i, lanes.data() + item * shape_.lanes());
        }
      }
      std::size_t done = 0;
      const auto take = [&]<std::size_t Count>(std::integral_constant<std::size_t, Count>) {
        for (std::size_t k = 0; k < Count; ++k) into[k] = waiting[done + k].second;
        instance.window.visit_counts(waiting[done].first, [&](auto first) {
          using Number = std::remove_const_t<typename decltype(first)::element_type>;
          std::array<const Number*, Count> counts{};
          for (std::size_t k = 0; k < Count; ++k) {
            counts[k] = first.data() + (std::int64_t{waiting[done + k].first.value()} - waiting[done].first.value()) *
                                           static_cast<std::int64_t>(first.size());
          }
          sum_by_rank(counts, placement, by_slot, put);
        });
        done += Count;
      };
      while (done + kTogether <= waiting.size()) take(std::integral_constant<std::size_t, kTogether>{});
      while (done < waiting.size()) take(std::integral_constant<std::size_t, 1>{});
      std::int64_t seen = most.load(std::memory_order_relaxed);
      while (highest > seen && !most.compare_exchange_weak(seen, highest, std::memory_order_relaxed)) {
      }
    });
  };
  fill(narrow_, kernels::kNarrowLimit);
  if (most <= kernels::kNarrowLimit) return;
  narrow_ = {};
  fill(wide_, kernels::kLoadLimit);
  if (most > kernels::kLoadLimit) {
    throw InvalidInput("counts: one sample or atomic group sends " + std::to_string(most.load()) +
                       " routed tokens to one rank at one layer, wanted at most " +
                       std::to_string(kernels::kLoadLimit));
  }
}

void UnitLoads::add_to(std::size_t item, std::span<std::int64_t> loads) const {
  std::size_t lp = 0;
  for (std::size_t l = 0; l < shape_.layers(); ++l) {
    for (std::size_t p = 0; p < shape_.ranks(); ++p, ++lp) {
      const std::size_t lane = shape_.lane(l, p);
      loads[lp] += narrow() ? std::int64_t{narrow(item)[lane]} : std::int64_t{wide(item)[lane]};
    }
  }
}

}  // namespace routepack
