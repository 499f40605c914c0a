// SPDX-License-Identifier: Apache-2.0
// Flat buffers as Megatron-Core's distributed optimizer lays them out (distributed/param_and_grad_buffer.py and
// optimizer/distrib_optimizer.py of 0.16; the same rules are in optimizer/param_layout.py from 0.18 on).
#include "transfer/megatron_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "core/integer.h"
#include "transfer/layout_rules.h"

namespace routepack {
namespace {

constexpr std::int64_t kMostAlignment = std::int64_t{1} << 30;

/// Layers of each chunk: those given, each layer exactly once, or all layers in one.
std::vector<std::vector<LayerId>> chunks_of(const MegatronBuffers& buffers, std::int32_t layers) {
  if (buffers.chunks.empty()) {
    std::vector<LayerId> all;
    for (const LayerId l : IdRange<LayerId>(layers)) all.push_back(l);
    return {std::move(all)};
  }
  std::vector<bool> seen(static_cast<std::size_t>(layers), false);
  std::int64_t found = 0;
  for (std::size_t c = 0; c < buffers.chunks.size(); ++c) {
    for (const LayerId l : buffers.chunks[c]) {
      if (l.value() < 0 || l.value() >= layers) {
        refuse_layout(fmt::format("chunks[{}]: found layer {}, wanted 0 to {}", c, l.value(), layers - 1));
      }
      if (seen[l]) refuse_layout(fmt::format("chunks[{}]: layer {} occurs twice", c, l.value()));
      seen[l] = true;
      ++found;
    }
  }
  if (found != layers) {
    const auto missing = std::distance(seen.begin(), std::ranges::find(seen, false));
    refuse_layout(fmt::format("chunks: layer {} is in none", missing));
  }
  return buffers.chunks;
}

/// Every parameter instance of a chunk in the order in which its modules were built.
std::vector<BufferSpan> registered(std::span<const LayerId> layers, std::int32_t slots, std::int32_t parameters,
                                   std::int32_t chunk, Registration registration) {
  std::vector<BufferSpan> spans;
  for (const LayerId l : layers) {
    const bool grouped = registration == Registration::Grouped;
    for (std::int32_t outer = 0; outer < (grouped ? parameters : slots); ++outer) {
      for (std::int32_t inner = 0; inner < (grouped ? slots : parameters); ++inner) {
        spans.push_back(
            {.layer = l, .local_slot = grouped ? inner : outer, .parameter = grouped ? outer : inner, .chunk = chunk});
      }
    }
  }
  return spans;
}

/// Gives the instances of one buffer, already in buffer order, their places.
void fill_buffer(std::span<BufferSpan> spans, std::span<const ExpertParameter> parameters,
                 const MegatronBuffers& buffers, std::int64_t bucket_multiple) {
  std::int64_t bucket_begin = 0;
  std::int64_t end = 0;
  std::int32_t bucket = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    BufferSpan& span = spans[i];
    span.bucket = bucket;
    span.begin = round_up(end, buffers.start_alignment);
    span.end = span.begin + parameters[static_cast<std::size_t>(span.parameter)].elements();
    end = span.end;
    const bool full = buffers.bucket_elements && end - bucket_begin >= *buffers.bucket_elements;
    if (!full && i + 1 < spans.size()) continue;
    end = round_up(end, bucket_multiple);
    for (BufferSpan& member : spans.subspan(first, i + 1 - first)) {
      member.bucket_begin = bucket_begin;
      member.bucket_end = end;
    }
    bucket_begin = end;
    first = i + 1;
    ++bucket;
  }
}

void check_buffers(const MegatronBuffers& buffers) {
  if (buffers.bucket_elements && *buffers.bucket_elements < 1) {
    refuse_layout(fmt::format("bucket_elements: found {}, wanted at least 1", *buffers.bucket_elements));
  }
  if (buffers.start_alignment < 1 || buffers.start_alignment > kMostAlignment) {
    refuse_layout(fmt::format("start_alignment: found {}, wanted 1 to {}", buffers.start_alignment, kMostAlignment));
  }
  if (name_of(buffers.registration) == "?") refuse_layout("registration: found an unknown value");
}

}  // namespace

std::vector<BufferSpan> megatron_spans(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots,
                                       std::span<const ExpertParameter> parameters, const MegatronBuffers& buffers) {
  check_shape(grid, layers, slots, parameters);
  check_buffers(buffers);
  constexpr std::int64_t kBucketStart = 128;  // elements; 256 bytes of a 16-bit type
  constexpr std::int64_t kBusStart = std::int64_t{1} << 16;
  std::int64_t multiple = std::lcm(std::int64_t{grid.edp}, kBucketStart);
  if (buffers.high_bus_bandwidth) multiple = std::lcm(multiple, kBusStart);

  std::vector<BufferSpan> all;
  const auto chunks = chunks_of(buffers, layers);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    std::vector<BufferSpan> spans = registered(chunks[c], slots, static_cast<std::int32_t>(parameters.size()),
                                               static_cast<std::int32_t>(c), buffers.registration);
    std::ranges::reverse(spans);  // gradients of the last parameter are ready first
    fill_buffer(spans, parameters, buffers, multiple);
    all.insert(all.end(), spans.begin(), spans.end());
  }
  return all;
}

void append_lane_ranges(const BufferSpan& span, std::int32_t edp, std::vector<LaneRange>& ranges) {
  const std::int64_t share = (span.bucket_end - span.bucket_begin) / edp;
  const std::int64_t offset = span.begin - span.bucket_begin;  // of the parameter in its bucket
  const std::int64_t size = span.end - span.begin;
  for (std::int64_t lane = offset / share; lane * share < offset + size; ++lane) {
    ranges.push_back({.lane = static_cast<std::int32_t>(lane),
                      .begin = std::max<std::int64_t>(0, lane * share - offset),
                      .end = std::min(size, (lane + 1) * share - offset)});
  }
}

}  // namespace routepack
