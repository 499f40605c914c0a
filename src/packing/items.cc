// SPDX-License-Identifier: Apache-2.0
#include "packing/items.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

namespace routepack {
namespace {

/// Why one item fits into no cell, if so. `name` says which sample or group it is.
std::optional<Infeasible> misfit(const Instance& instance, const Item& item, const std::string& name) {
  const Constraints& rules = instance.constraints;
  const std::int64_t needed = instance.aligned_cell(item.totals.aligned);
  if (needed > instance.capacity) {
    const bool single = item.count == 1;
    if (single && rules.oversized == Oversized::OwnCell) return std::nullopt;
    if (single && item.totals.tokens <= instance.capacity) {
      return Infeasible{
          fmt::format("{} has {} tokens, {} after rounding up (sample_multiple {}, cell_multiple {}): the "
                      "rounding and capacity {} exclude each other",
                      name, item.totals.tokens, needed, rules.sample_multiple, rules.cell_multiple, instance.capacity),
          fmt::format("--cap {} or smaller multiples", needed)};
    }
    return Infeasible{
        fmt::format("{} has {} tokens ({} as the cap counts them), over the cap of {}", name, item.totals.tokens,
                    needed, instance.capacity),
        single ? fmt::format("--cap {} or --oversized own-cell", needed) : fmt::format("--cap {}", needed)};
  }
  if (rules.max_samples_per_cell > 0 && item.count > rules.max_samples_per_cell) {
    return Infeasible{
        fmt::format("{} has {} samples that must share a cell: atomic and max_samples_per_cell {} exclude "
                    "each other",
                    name, item.count, rules.max_samples_per_cell),
        fmt::format("--max-samples-per-cell {}", item.count)};
  }
  return std::nullopt;
}

/// Samples in an order that keeps atomic groups together, with the number of samples of each item.
std::pair<std::vector<SampleId>, std::vector<std::int64_t>> group_samples(const Window& window) {
  std::vector<std::vector<SampleId>> together;
  std::unordered_map<std::int32_t, std::size_t> item_of_group;
  for (const SampleId i : window.sample_ids()) {
    const std::int32_t group = window.atomic_group(i);
    if (group >= 0) {
      const auto [at, fresh] = item_of_group.emplace(group, together.size());
      if (!fresh) {
        together[at->second].push_back(i);
        continue;
      }
    }
    together.push_back({i});
  }
  std::pair<std::vector<SampleId>, std::vector<std::int64_t>> result;
  for (const auto& samples : together) {
    result.first.insert(result.first.end(), samples.begin(), samples.end());
    result.second.push_back(static_cast<std::int64_t>(samples.size()));
  }
  return result;
}

Item make_item(const Instance& instance, std::span<const SampleId> samples, std::size_t first) {
  Item item;
  item.first = first;
  item.count = static_cast<std::int64_t>(samples.size());
  item.without_routes = true;
  for (const SampleId i : samples) {
    const std::int64_t length = instance.window.length(i);
    item.totals.tokens += length;
    // Beyond the largest capacity the unit is refused or its squares are no longer exact; the scorer says so.
    if (item.totals.tokens <= kMaxCapacity) item.totals.squares += length * length;
    item.totals.aligned += instance.aligned_length(i);
    item.without_routes = item.without_routes && instance.window.lacks_routes(i);
  }
  item.oversized = instance.aligned_cell(item.totals.aligned) > instance.capacity;
  return item;
}

/// Equal counts need N divisible by D: the number of dummies, or that they were not allowed.
std::variant<std::int64_t, Infeasible> dummies_needed(const Instance& instance) {
  if (!instance.constraints.equal_count) return std::int64_t{0};
  const std::int64_t samples = instance.window.samples();
  const std::int64_t missing = round_up(samples, instance.topology.slots()) - samples;
  if (missing > 0 && !instance.constraints.add_dummies) {
    return Infeasible{
        fmt::format("equal_count: {} samples cannot be shared equally by {} slots: {} dummy samples needed", samples,
                    instance.topology.slots(), missing),
        "--add-dummies"};
  }
  return missing;
}

}  // namespace

std::variant<Items, Infeasible> make_items(const Instance& instance) {
  if (instance.usable_capacity() == 0 && instance.constraints.oversized == Oversized::Error) {
    return Infeasible{
        fmt::format("cell_multiple {} and capacity {} exclude each other: even one token fills {}",
                    instance.constraints.cell_multiple, instance.capacity, instance.constraints.cell_multiple),
        fmt::format("--cap {}", instance.constraints.cell_multiple)};
  }
  const auto dummies = dummies_needed(instance);
  if (const auto* why = std::get_if<Infeasible>(&dummies)) return *why;

  auto [samples, counts] = group_samples(instance.window);
  Items result{.items = {}, .samples = std::move(samples), .dummies = std::get<std::int64_t>(dummies)};
  for (std::int64_t k = 0; k < result.dummies; ++k) {
    result.samples.emplace_back(instance.window.samples() + k);
    counts.push_back(1);
  }
  std::size_t first = 0;
  for (const std::int64_t count : counts) {
    result.items.push_back(
        make_item(instance, std::span(result.samples).subspan(first, static_cast<std::size_t>(count)), first));
    first += static_cast<std::size_t>(count);
  }
  std::ranges::stable_sort(result.items,
                           [](const Item& a, const Item& b) { return a.totals.aligned > b.totals.aligned; });

  for (const Item& item : result.items) {
    const SampleId leader = result.samples_of(item).front();
    const std::string name = item.count == 1 ? fmt::format("lengths[{}]: the sample", leader.value())
                                             : fmt::format("atomic group {}", instance.window.atomic_group(leader));
    if (auto why = misfit(instance, item, name)) return *std::move(why);
  }
  return result;
}

}  // namespace routepack
