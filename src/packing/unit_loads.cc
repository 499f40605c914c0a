// SPDX-License-Identifier: Apache-2.0
#include "packing/unit_loads.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/bytes.h"
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

/// Calls store(k, layer, rank, load) for each of the samples whose counts are given.
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

/// Counts of samples with the lanes that they go to, some samples at a time.
template <class Number, class Lane>
class Waiting {
 public:
  void add(const Number* counts, Lane* lanes) { all_.emplace_back(counts, lanes); }

  template <class Put>
  void take(const Placement& placement, std::span<const std::uint32_t> by_slot, const Put& put) const {
    std::size_t done = 0;
    const auto some = [&]<std::size_t Count>(std::integral_constant<std::size_t, Count>) {
      std::array<const Number*, Count> counts{};
      std::array<Lane*, Count> into{};
      for (std::size_t k = 0; k < Count; ++k) std::tie(counts[k], into[k]) = all_[done + k];
      sum_by_rank(counts, placement, by_slot,
                  [&](std::size_t k, std::size_t l, std::size_t p, std::int64_t load) { put(into[k], l, p, load); });
      done += Count;
    };
    while (done + kTogether <= all_.size()) some(std::integral_constant<std::size_t, kTogether>{});
    while (done < all_.size()) some(std::integral_constant<std::size_t, 1>{});
  }

 private:
  std::vector<std::pair<const Number*, Lane*>> all_;
};

/// The samples of an item are all here or all elsewhere: an atomic group lies in one part.
bool holds(const Window& window, const Items& items, const Item& item) {
  return window.holds(items.samples_of(item).front());
}

std::int64_t largest(std::int64_t mine, Executor& executor) {
  std::vector<std::byte> bytes;
  put(bytes, mine);
  for (const auto& theirs : executor.gather(bytes)) mine = std::max(mine, ByteReader(theirs).get<std::int64_t>());
  return mine;
}

/// Every process tells the lanes of its items, some items at a time; the first of those that share the memory writes
/// what comes from elsewhere.
template <class Lane>
void share_lanes(Lane* lanes, std::size_t width, const NodeMemory& memory, const Window& window, const Items& items,
                 Executor& executor) {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  const std::size_t at_once = std::max<std::size_t>(1, kBytes / (width * sizeof(Lane)));
  for (std::size_t first = 0; first < items.items.size(); first += at_once) {
    const std::size_t end = std::min(items.items.size(), first + at_once);
    std::vector<std::uint32_t> mine;
    for (std::size_t item = first; item < end; ++item) {
      const bool dummy = items.samples_of(items.items[item]).front().value() >= window.samples();
      if (!dummy && holds(window, items, items.items[item])) mine.push_back(static_cast<std::uint32_t>(item));
    }
    std::vector<std::byte> message;
    message.reserve((mine.size() + 2) * sizeof(std::uint32_t) + mine.size() * width * sizeof(Lane));
    put_list(message, std::span<const std::uint32_t>(mine));
    for (const std::uint32_t item : mine) {
      const auto bytes = std::as_bytes(std::span(lanes + item * width, width));
      message.insert(message.end(), bytes.begin(), bytes.end());
    }
    const auto all = executor.gather(message);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (rank == executor.rank() || memory.shares_with(rank) || memory.index() != 0) continue;
      ByteReader reader(all[rank]);
      for (const std::uint32_t item : reader.get_list<std::uint32_t>()) {
        const auto bytes = reader.take(width * sizeof(Lane));
        std::memcpy(lanes + item * width, bytes.data(), bytes.size());
      }
    }
  }
}

}  // namespace

UnitLoads::UnitLoads(const Instance& instance, const Placement& placement, const Items& items, Executor& executor)
    : shape_(static_cast<std::size_t>(placement.layers()), static_cast<std::size_t>(placement.ranks())),
      items_(items.items.size()) {
  const Window& window = instance.window;
  const auto by_slot = experts_by_slot(placement);
  const std::size_t pieces = (items_ + kPiece - 1) / kPiece;
  /// The highest load found. Lanes hold at most `limit`.
  const auto fill = [&]<class Lane>(Lane, std::int64_t limit) {
    memory_ = NodeMemory::make(executor, (items_ + 1) * shape_.lanes() * sizeof(Lane));
    Lane* const lanes = reinterpret_cast<Lane*>(memory_.data());
    std::atomic<std::int64_t> most = 0;
    executor.for_each(pieces, [&](std::size_t piece) {
      // With whole windows the processes of a host do a share each.
      if (window.whole() && piece % memory_.sharers() != memory_.index()) return;
      Waiting<std::uint16_t, Lane> narrow;
      Waiting<std::uint32_t, Lane> wide;
      const std::size_t last = std::min(items_, (piece + 1) * kPiece);
      for (std::size_t item = piece * kPiece; item < last; ++item) {
        if (!holds(window, items, items.items[item])) continue;
        for (const SampleId i : items.samples_of(items.items[item])) {
          if (i.value() >= window.samples()) continue;
          window.visit_counts(i, [&](auto counts) {
            Lane* into = lanes + item * shape_.lanes();
            if constexpr (sizeof(counts[0]) == sizeof(std::uint16_t)) {
              narrow.add(counts.data(), into);
            } else {
              wide.add(counts.data(), into);
            }
          });
        }
      }
      std::int64_t highest = 0;
      const auto put = [&](Lane* into, std::size_t l, std::size_t p, std::int64_t load) {
        Lane& lane = into[shape_.lane(l, p)];
        const std::int64_t sum = load + lane;  // of the samples of an atomic group
        highest = std::max(highest, sum);
        lane = static_cast<Lane>(std::min(sum, limit));
      };
      narrow.take(placement, by_slot, put);
      wide.take(placement, by_slot, put);
      std::int64_t seen = most.load(std::memory_order_relaxed);
      while (highest > seen && !most.compare_exchange_weak(seen, highest, std::memory_order_relaxed)) {
      }
    });
    const std::int64_t found = executor.alone() ? most.load() : largest(most, executor);
    if (!window.whole() && found <= limit) share_lanes(lanes, shape_.lanes(), memory_, window, items, executor);
    if (memory_.sharers() > 1 || !executor.alone()) (void)executor.gather({});  // all have written
    return found;
  };
  if (fill(std::int16_t{}, kernels::kNarrowLimit) <= kernels::kNarrowLimit) return;
  narrow_ = false;
  if (const std::int64_t most = fill(std::int32_t{}, kernels::kLoadLimit); most > kernels::kLoadLimit) {
    throw InvalidInput("counts: one sample or atomic group sends " + std::to_string(most) +
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
