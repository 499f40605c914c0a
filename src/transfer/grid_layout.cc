// SPDX-License-Identifier: Apache-2.0
#include "routepack/grid_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "core/assert.h"
#include "core/hash.h"
#include "transfer/layout_rules.h"
#include "transfer/megatron_buffers.h"

namespace routepack {
namespace {

void add_range_count(std::size_t count) {
  if (std::cmp_greater(count, kMostLaneRanges)) {
    refuse_layout(fmt::format("found more than {} lane ranges", kMostLaneRanges));
  }
}

/// Whether the ranges cover the parameter once, in order, each lane at most once. `last_seen` is [edp], `stamp` new.
void check_partition(std::span<const LaneRange> ranges, std::int64_t elements, std::vector<std::size_t>& last_seen,
                     std::size_t stamp, const std::string& where) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const LaneRange& range = ranges[i];
    if (range.lane < 0 || std::cmp_greater_equal(range.lane, last_seen.size())) {
      refuse_layout(fmt::format("{}[{}]: found lane {}, wanted 0 to {}", where, i, range.lane, last_seen.size() - 1));
    }
    if (std::exchange(last_seen[static_cast<std::size_t>(range.lane)], stamp) == stamp) {
      refuse_layout(fmt::format("{}[{}]: lane {} owns a second range, wanted one at most", where, i, range.lane));
    }
    if (range.begin != end || range.end <= range.begin) {
      refuse_layout(fmt::format("{}[{}]: found elements {} to {}, wanted a range that begins at {} and is not empty",
                                where, i, range.begin, range.end, end));
    }
    end = range.end;
  }
  if (end != elements) {
    refuse_layout(
        fmt::format("{}: the ranges end at {}, wanted {}, the elements of the parameter", where, end, elements));
  }
}

[[noreturn]] void unmovable(const std::string& fact) {
  throw InvalidInput("trainer: " + fact);
}

}  // namespace

std::int64_t bytes_of(ScalarType type) {
  switch (type) {
    case ScalarType::U8:
    case ScalarType::I8:
    case ScalarType::F8_E4M3:
    case ScalarType::F8_E5M2:
    case ScalarType::F8_E8M0:
      return 1;
    case ScalarType::I16:
    case ScalarType::U16:
    case ScalarType::F16:
    case ScalarType::BF16:
      return 2;
    case ScalarType::I32:
    case ScalarType::F32:
      return 4;
    case ScalarType::I64:
    case ScalarType::F64:
      return 8;
  }
  throw InvalidInput(fmt::format("scalar type: found the unknown value {}", static_cast<int>(type)));
}

std::int64_t ExpertParameter::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product = capped_product(product, size);
  return product;
}

void TrainerFacts::refuse_unmovable() const {
  if (fully_sharded) {
    unmovable(
        "fully_sharded: found true, wanted false: FSDP keeps no flat expert buffers; use the distributed optimizer");
  }
  if (weight_remat != 1) {
    unmovable(fmt::format("weight_remat: found {}, wanted 1: expert weights that are spread over ranks cannot be moved",
                          weight_remat));
  }
  if (experts_differ) {
    unmovable(
        "experts_differ: found true, wanted false: an expert would train on with the learning rate or decay of "
        "another; give all experts the same");
  }
  if (replay_in_flight) {
    unmovable("replay_in_flight: found true, wanted false: move between steps, after the last backward pass");
  }
  if (offloaded) unmovable("offloaded: found true, wanted false: bring parameters and optimizer state back first");
  if (params_gather_pending) {
    unmovable("params_gather_pending: found true, wanted false: finish the all-gather of the parameters first");
  }
}

GridLayout GridLayout::megatron(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots,
                                std::vector<ExpertParameter> parameters, std::vector<ExpertTensor> tensors,
                                const MegatronBuffers& buffers) {
  check_shape(grid, layers, slots, parameters);
  check_tensors(grid, layers, slots, parameters, tensors);
  std::vector<BufferSpan> spans = megatron_spans(grid, layers, slots, parameters, buffers);
  std::ranges::sort(spans, {}, [](const BufferSpan& s) { return std::tuple(s.layer, s.local_slot, s.parameter); });

  GridLayout layout;
  layout.grid_ = grid;
  layout.layers_ = layers;
  layout.slots_ = slots;
  layout.first_range_.reserve(spans.size() + 1);
  for (const BufferSpan& span : spans) {
    layout.first_range_.push_back(static_cast<std::uint32_t>(layout.ranges_.size()));
    append_lane_ranges(span, grid.edp, layout.ranges_);
    add_range_count(layout.ranges_.size());
  }
  layout.first_range_.push_back(static_cast<std::uint32_t>(layout.ranges_.size()));
  layout.parameters_ = std::move(parameters);
  layout.tensors_ = std::move(tensors);
  layout.tensors_.push_back(canary_tensor());
  return layout;
}

GridLayout GridLayout::explicit_ranges(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots,
                                       std::vector<ExpertParameter> parameters, std::vector<ExpertTensor> tensors,
                                       std::vector<std::vector<LaneRange>> ranges) {
  check_shape(grid, layers, slots, parameters);
  check_tensors(grid, layers, slots, parameters, tensors);
  const std::size_t count = parameters.size();
  const auto per_layer = static_cast<std::size_t>(slots) * count;
  if (ranges.size() != static_cast<std::size_t>(layers) * per_layer) {
    refuse_layout(fmt::format("ranges: found {} lists, wanted {}, one per layer, slot and parameter", ranges.size(),
                              static_cast<std::size_t>(layers) * per_layer));
  }

  GridLayout layout;
  layout.grid_ = grid;
  layout.layers_ = layers;
  layout.slots_ = slots;
  layout.first_range_.reserve(ranges.size() + 1);
  std::vector<std::size_t> last_seen(static_cast<std::size_t>(grid.edp), std::numeric_limits<std::size_t>::max());
  for (std::size_t k = 0; k < ranges.size(); ++k) {
    const std::string where = fmt::format("ranges[{}][{}][{}]", k / per_layer, k % per_layer / count, k % count);
    check_partition(ranges[k], parameters[k % count].elements(), last_seen, k, where);
    layout.first_range_.push_back(static_cast<std::uint32_t>(layout.ranges_.size()));
    layout.ranges_.insert(layout.ranges_.end(), ranges[k].begin(), ranges[k].end());
    add_range_count(layout.ranges_.size());
  }
  layout.first_range_.push_back(static_cast<std::uint32_t>(layout.ranges_.size()));
  layout.parameters_ = std::move(parameters);
  layout.tensors_ = std::move(tensors);
  layout.tensors_.push_back(canary_tensor());
  return layout;
}

GridLayout GridLayout::adam(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots, std::int64_t hidden,
                            std::int64_t width, const MegatronBuffers& buffers) {
  if (hidden < 1) refuse_layout(fmt::format("hidden: found {}, wanted at least 1", hidden));
  if (width < 1) refuse_layout(fmt::format("width: found {}, wanted at least 1", width));
  std::vector<ExpertParameter> parameters{{"fc1", {capped_product(2, width), hidden}}, {"fc2", {hidden, width}}};
  std::vector<ExpertTensor> tensors;
  for (std::int32_t p = 0; p < 2; ++p) {
    const ExpertParameter& parameter = parameters[static_cast<std::size_t>(p)];
    const auto add = [&](std::string_view suffix, TensorRole role, ScalarType type, Spread spread) {
      tensors.push_back({.name = fmt::format("{}.{}", parameter.name, suffix),
                         .role = role,
                         .type = type,
                         .spread = spread,
                         .elements = parameter.elements(),
                         .parameter = p});
    };
    add("weight", TensorRole::Weight, ScalarType::BF16, Spread::Replicated);
    add("master", TensorRole::Master, ScalarType::F32, Spread::Sharded);
    add("exp_avg", TensorRole::Moment, ScalarType::F32, Spread::Sharded);
    add("exp_avg_sq", TensorRole::Moment, ScalarType::F32, Spread::Sharded);
  }
  return megatron(grid, layers, slots, std::move(parameters), std::move(tensors), buffers);
}

std::span<const LaneRange> GridLayout::lanes_of(LayerId layer, std::int32_t local_slot, std::int32_t parameter) const {
  ROUTEPACK_ASSERT(layer.value() >= 0 && layer.value() < layers_ && local_slot >= 0 && local_slot < slots_ &&
                       parameter >= 0 && std::cmp_less(parameter, parameters_.size()),
                   "a parameter outside the layout");
  const std::size_t k =
      (layer * static_cast<std::size_t>(slots_) + static_cast<std::size_t>(local_slot)) * parameters_.size() +
      static_cast<std::size_t>(parameter);
  return std::span(ranges_).subspan(first_range_[k], first_range_[k + 1] - first_range_[k]);
}

LaneRange GridLayout::range_of(LayerId layer, std::int32_t local_slot, std::int32_t parameter,
                               std::int32_t lane) const {
  for (const LaneRange& range : lanes_of(layer, local_slot, parameter)) {
    if (range.lane == lane) return range;
  }
  return {.lane = lane, .begin = 0, .end = 0};
}

std::int64_t GridLayout::bytes_on(LayerId layer, std::int32_t local_slot, std::int32_t tensor,
                                  std::int32_t lane) const {
  ROUTEPACK_ASSERT(tensor >= 0 && std::cmp_less(tensor, tensors_.size()), "a tensor outside the layout");
  const ExpertTensor& t = tensors_[static_cast<std::size_t>(tensor)];
  if (t.spread != Spread::Sharded) return t.bytes();
  return range_of(layer, local_slot, *t.parameter, lane).size() * bytes_of(t.type);
}

std::string GridLayout::fingerprint() const {
  Xxh3 hash;
  const auto number = [&](std::int64_t value) { hash.value(value); };
  const auto name = [&](const std::string& text) {
    number(static_cast<std::int64_t>(text.size()));
    hash.text(text);
  };
  for (const std::int32_t size : {grid_.ep, grid_.edp, layers_, slots_}) number(size);
  number(static_cast<std::int64_t>(parameters_.size()));
  for (const ExpertParameter& parameter : parameters_) {
    name(parameter.name);
    number(static_cast<std::int64_t>(parameter.shape.size()));
    hash.array(std::span<const std::int64_t>(parameter.shape));
  }
  number(static_cast<std::int64_t>(tensors_.size()));
  for (const ExpertTensor& tensor : tensors_) {
    name(tensor.name);
    // By their names: the order of an enumeration may change, a fingerprint may not.
    name(std::string(name_of(tensor.role)));
    name(std::string(name_of(tensor.type)));
    name(std::string(name_of(tensor.spread)));
    number(tensor.elements);
    number(tensor.parameter.value_or(-1));
  }
  hash.array(std::span<const std::uint32_t>(first_range_));
  for (const LaneRange& range : ranges_) {
    number(range.lane);
    number(range.begin);
    number(range.end);
  }
  return hash.digest();
}

}  // namespace routepack
