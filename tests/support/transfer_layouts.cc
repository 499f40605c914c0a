// SPDX-License-Identifier: Apache-2.0
#include "support/transfer_layouts.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "support/problems.h"

namespace routepack::testing {
namespace {

using enum TensorRole;
using enum ScalarType;
using enum Spread;

/// A tensor of as many elements as its parameter.
ExpertTensor of(const std::vector<ExpertParameter>& parameters, std::int32_t parameter, const std::string& suffix,
                TensorRole role, ScalarType type, Spread spread) {
  const ExpertParameter& it = parameters[static_cast<std::size_t>(parameter)];
  return {it.name + suffix, role, type, spread, it.elements(), parameter};
}

ExpertTensor step(const std::string& name, ScalarType type) {
  return {name, Step, type, Equal, 1, {}};
}

std::vector<ExpertTensor> adam_tensors(const std::vector<ExpertParameter>& parameters) {
  std::vector<ExpertTensor> tensors;
  for (std::int32_t k = 0; k < static_cast<std::int32_t>(parameters.size()); ++k) {
    tensors.push_back(of(parameters, k, ".weight", Weight, BF16, Replicated));
    tensors.push_back(of(parameters, k, ".master", Master, F32, Sharded));
    tensors.push_back(of(parameters, k, ".exp_avg", Moment, F32, Sharded));
    tensors.push_back(of(parameters, k, ".exp_avg_sq", Moment, F32, Sharded));
  }
  return tensors;
}

GridLayout precision_aware(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots) {
  const std::vector<ExpertParameter> parameters = {{"fc1", {10, 7}}, {"fc1.bias", {10}}, {"fc2", {7, 5}}};
  std::vector<ExpertTensor> tensors;
  for (std::int32_t k = 0; k < 3; ++k) {
    tensors.push_back(of(parameters, k, ".model", k == 1 ? Bias : Weight, BF16, Replicated));
    tensors.push_back(of(parameters, k, ".remainder", Remainder, I16, Sharded));
    tensors.push_back(of(parameters, k, ".exp_avg", Moment, BF16, Sharded));
    tensors.push_back(of(parameters, k, ".exp_avg_sq", Moment, F32, Sharded));
    tensors.push_back(step(parameters[static_cast<std::size_t>(k)].name + ".step", k == 0 ? F32 : I64));
  }
  MegatronBuffers buffers{.registration = Registration::Sequential, .bucket_elements = 90};
  if (layers > 1) {
    buffers.chunks.resize(2);
    for (std::int32_t l = 0; l < layers; ++l) buffers.chunks[static_cast<std::size_t>(l % 2)].emplace_back(l);
  }
  return GridLayout::megatron(grid, layers, slots, parameters, std::move(tensors), buffers);
}

GridLayout fp8_blocks(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots) {
  const std::vector<ExpertParameter> parameters = {{"fc1", {24, 16}}, {"fc2", {16, 12}}};
  std::vector<ExpertTensor> tensors;
  for (std::int32_t k = 0; k < 2; ++k) {
    const std::string& name = parameters[static_cast<std::size_t>(k)].name;
    tensors.push_back(of(parameters, k, ".blocks", Weight, k == 0 ? F8_E4M3 : U8, Replicated));
    tensors.push_back({name + ".scale", Scale, k == 0 ? F32 : F8_E8M0, Replicated, k == 0 ? 3 : 12, k});
    tensors.push_back({name + ".amax_history", Metadata, F32, Replicated, 17, {}});
    tensors.push_back(of(parameters, k, ".master", Master, F32, Sharded));
    tensors.push_back(of(parameters, k, ".exp_avg", Moment, F32, Sharded));
  }
  tensors.push_back({"extra_state", Metadata, U8, Replicated, 5, {}});
  tensors.push_back(step("step", I64));
  return GridLayout::megatron(grid, layers, slots, parameters, std::move(tensors), {.bucket_elements = 500});
}

/// Whole matrices on one lane each, as a balancing optimizer deals them out.
GridLayout muon(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots) {
  const std::vector<ExpertParameter> parameters = {{"fc1", {12, 8}}, {"fc2", {8, 6}}};
  std::vector<ExpertTensor> tensors;
  for (std::int32_t k = 0; k < 2; ++k) {
    tensors.push_back(of(parameters, k, ".weight", Weight, BF16, Replicated));
    tensors.push_back(of(parameters, k, ".master", Master, F32, Sharded));
    tensors.push_back(of(parameters, k, ".momentum_buffer", Moment, F32, Sharded));
  }
  std::vector<std::vector<LaneRange>> ranges;
  for (std::int32_t k = 0; k < layers * slots * 2; ++k) {
    const std::int64_t elements = parameters[static_cast<std::size_t>(k % 2)].elements();
    ranges.push_back({{(k * 5 + k / 3) % grid.edp, 0, elements}});
  }
  return GridLayout::explicit_ranges(grid, layers, slots, parameters, std::move(tensors), std::move(ranges));
}

GridLayout ragged(std::mt19937_64& random, const ExpertGrid& grid, std::int32_t layers, std::int32_t slots,
                  std::vector<ExpertParameter> parameters, std::vector<ExpertTensor> tensors) {
  std::vector<std::vector<LaneRange>> ranges;
  for (std::int32_t k = 0; k < layers * slots; ++k) {
    for (const ExpertParameter& parameter : parameters) {
      ranges.push_back(random_ranges(random, parameter.elements(), grid.edp));
    }
  }
  return GridLayout::explicit_ranges(grid, layers, slots, std::move(parameters), std::move(tensors), std::move(ranges));
}

}  // namespace

std::vector<LaneRange> random_ranges(std::mt19937_64& random, std::int64_t elements, std::int32_t lanes) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(lanes));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  order.resize(static_cast<std::size_t>(1 + below(random, lanes)));
  std::vector<LaneRange> ranges;
  std::int64_t begin = 0;
  for (std::size_t k = 0; k < order.size() && begin < elements; ++k) {
    const auto left = static_cast<std::int32_t>(elements - begin);
    const std::int64_t end = k + 1 == order.size() ? elements : begin + 1 + below(random, left);
    ranges.push_back({order[k], begin, end});
    begin = end;
  }
  return ranges;
}

std::vector<NamedLayout> layouts_of_every_kind(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots) {
  std::mt19937_64 random(7);
  const std::vector<ExpertParameter> odd = {{"a", {13, 5}}, {"b", {3}}};
  const MegatronBuffers cutting{.registration = Registration::Sequential, .bucket_elements = 700};
  return {
      {"Adam, one bucket", GridLayout::adam(grid, layers, slots, 16, 12)},
      {"Adam, buckets that cut parameters", GridLayout::adam(grid, layers, slots, 16, 12, cutting)},
      {"Adam, bandwidth padding", GridLayout::adam(grid, layers, slots, 16, 12, {.high_bus_bandwidth = true})},
      {"remainders, bf16 moments, biases, steps, chunks", precision_aware(grid, layers, slots)},
      {"fp8 blocks with scales and amax history", fp8_blocks(grid, layers, slots)},
      {"dist-Muon whole tensors", muon(grid, layers, slots)},
      {"ragged explicit ranges", ragged(random, grid, layers, slots, odd, adam_tensors(odd))},
      {"weights alone",
       GridLayout::megatron(grid, layers, slots, {{"w", {9, 9}}}, {{"w", Weight, BF16, Replicated, 81, 0}})},
  };
}

GridLayout random_layout(std::mt19937_64& random, const ExpertGrid& grid, std::int32_t layers, std::int32_t slots) {
  const std::int32_t kind = below(random, 12);
  if (kind < 8) return layouts_of_every_kind(grid, layers, slots)[static_cast<std::size_t>(kind)].layout;
  std::vector<ExpertParameter> parameters;
  for (std::int32_t k = 1 + below(random, 3); k > 0; --k) {
    parameters.push_back({"p" + std::to_string(k), {1 + below(random, 20), 1 + below(random, 20)}});
  }
  if (kind < 10) return ragged(random, grid, layers, slots, parameters, adam_tensors(parameters));
  MegatronBuffers buffers;
  buffers.registration = below(random, 2) == 0 ? Registration::Grouped : Registration::Sequential;
  if (below(random, 3) != 0) buffers.bucket_elements = 1 + below(random, 1500);
  return GridLayout::megatron(grid, layers, slots, parameters, adam_tensors(parameters), buffers);
}

Placement random_placement(std::mt19937_64& random, const GridLayout& layout) {
  return to_placement(random_maps(random, layout.layers(), layout.experts()), layout.grid().ep);
}

Placement identity_of(const GridLayout& layout) {
  return Placement::identity(layout.layers(), layout.experts(), layout.grid().ep);
}

Placement placement_of(std::int32_t ranks, const std::vector<std::vector<std::int32_t>>& maps) {
  return to_placement(maps, ranks);
}

Placement swapped(const Placement& base, std::int32_t layer, std::int32_t slot, std::int32_t other) {
  Maps maps = maps_of(base);
  auto& map = maps[static_cast<std::size_t>(layer)];
  std::swap(map[static_cast<std::size_t>(slot)], map[static_cast<std::size_t>(other)]);
  return to_placement(maps, base.ranks());
}

}  // namespace routepack::testing
