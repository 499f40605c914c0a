// SPDX-License-Identifier: Apache-2.0
#include "routepack/instance.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "core/integer.h"
#include "routepack/error.h"

namespace routepack {
namespace {

constexpr std::int64_t kMaxPadLoad = std::int64_t{1} << 61;

/// Refuses a field outside the bounds that describe() states for it.
struct CheckBounds {
  void integer(const char* name, std::int64_t value, std::int64_t min, std::int64_t max, const char* /*help*/) const {
    if (value < min || value > max) {
      throw InvalidInput(fmt::format("{}: found {}, wanted {} to {}", name, value, min, max));
    }
  }
  void flag(const char*, bool, const char*) const {}
  template <class Enum>
  void choice(const char*, Enum, const char*) const {}
};

/// Loads are 64-bit integers. Refuses padding rates that could leave them: a cell has at most C, or an oversized sample
/// its rounding, of padding tokens.
void check_pad_counts(const Instance& instance) {
  const auto pad_counts = instance.window.arrays().pad_counts;
  const auto experts = static_cast<std::size_t>(instance.window.experts());
  const std::int64_t pads =
      (instance.capacity + instance.constraints.cell_multiple + instance.constraints.sample_multiple) *
      std::int64_t{instance.topology.slots()};
  for (std::size_t l = 0; l * experts < pad_counts.size(); ++l) {
    const auto layer = pad_counts.subspan(l * experts, experts);
    const auto rate = std::accumulate(layer.begin(), layer.end(), std::int64_t{0});
    std::int64_t load = 0;
    if (__builtin_mul_overflow(rate, pads, &load) || load > kMaxPadLoad) {
      throw InvalidInput(
          fmt::format("tensor pad_counts[{}, :]: found a sum of {}, wanted at most {} for up to {} padding "
                      "tokens in a row",
                      l, rate, kMaxPadLoad / pads, pads));
    }
  }
}

}  // namespace

Instance::Instance(const Window& the_window, Topology the_topology, CostModel the_cost, std::int64_t the_capacity,
                   Constraints the_constraints, Sync the_sync)
    : window(the_window),
      topology(std::move(the_topology)),
      cost(std::move(the_cost)),
      capacity(the_capacity),
      constraints(the_constraints),
      sync(the_sync) {
  if (window.kind() == WindowKind::Aggregate) {
    throw InvalidInput("window kind: found \"aggregate\" (demand without samples), wanted \"samples\" to pack");
  }
  if (window.experts() % topology.ranks() != 0) {
    throw InvalidInput(fmt::format("ep: found {} ranks for {} experts, wanted a divisor of {}", topology.ranks(),
                                   window.experts(), window.experts()));
  }
  if (!cost.uniform() && cost.expert_weights().size() != static_cast<std::size_t>(window.layers())) {
    throw InvalidInput(fmt::format("cost: expert: found {} weights, wanted one number or {}, one per MoE layer",
                                   cost.expert_weights().size(), window.layers()));
  }
  if (capacity < 1 || capacity > kMaxCapacity) {
    throw InvalidInput(fmt::format("capacity: found {} tokens, wanted 1 to {}", capacity, kMaxCapacity));
  }
  describe(constraints, CheckBounds{});
  if (constraints.add_dummies && !constraints.equal_count) {
    throw InvalidInput("add_dummies: found without equal_count, wanted both or neither");
  }
  check_pad_counts(*this);
}

std::int64_t Instance::aligned_length(SampleId i) const {
  return round_up(window.length(i), constraints.sample_multiple);
}

std::int64_t Instance::aligned_cell(std::int64_t aligned_lengths) const {
  return round_up(aligned_lengths, constraints.cell_multiple);
}

std::int64_t Instance::usable_capacity() const {
  return round_down(capacity, constraints.cell_multiple);
}

}  // namespace routepack
