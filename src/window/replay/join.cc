// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "routepack/error.h"
#include "routepack/replay.h"

namespace routepack {
namespace {

template <class... Args>
[[noreturn]] void fail(std::size_t part, fmt::format_string<Args...> format, Args&&... args) {
  throw InvalidInput(fmt::format("parts[{}]: ", part) + fmt::format(format, std::forward<Args>(args)...));
}

/// What the joined window owns.
struct Joined {
  std::vector<std::int32_t> lengths, recorded, groups, atomic;
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> pad_counts;
  std::vector<std::uint16_t> narrow;
  std::vector<std::uint32_t> wide;
};

/// Takes the value over when there is none yet; otherwise both must be equal.
template <class Value, class Text>
void agree(std::size_t part, std::string_view what, const Value& found, Value& wanted, Text text) {
  if (found.empty()) return;
  if (wanted.empty()) wanted = found;
  if (found != wanted) fail(part, "{}: found {}, wanted {} as in the parts before", what, text(found), text(wanted));
}

void check_shape(std::size_t part, const WindowArrays& found, const WindowArrays& wanted) {
  const auto equal = [&](std::string_view what, std::int64_t a, std::int64_t b) {
    if (a != b) fail(part, "{}: found {}, wanted {} as in the first part", what, a, b);
  };
  if (found.kind == WindowKind::Aggregate) fail(part, "found an aggregate, wanted a window with samples");
  equal("experts", found.experts, wanted.experts);
  equal("top_k", found.top_k, wanted.top_k);
  equal("layers", found.layers, wanted.layers);
  if (found.ids.empty() != wanted.ids.empty()) {
    fail(part, "found {} ids, wanted ids in all parts or in none", found.ids.empty() ? "no" : "");
  }
  if (found.recorded.empty() != wanted.recorded.empty()) {
    fail(part, "found {} recorded, wanted it in all parts or in none", found.recorded.empty() ? "no" : "");
  }
}

bool has_recorded_per_layer(const WindowArrays& arrays) {
  return arrays.layers > 1 && arrays.recorded.size() != static_cast<std::size_t>(arrays.samples);
}

bool fits_narrow(const WindowArrays& arrays) {
  return std::visit([](auto counts) { return std::ranges::all_of(counts, [](auto c) { return c <= 0xffff; }); },
                    arrays.counts);
}

template <class T>
void append(std::vector<T>& to, std::span<const T> values, std::int64_t samples, T fill) {
  if (values.empty()) {
    to.resize(to.size() + static_cast<std::size_t>(samples), fill);
    return;
  }
  to.insert(to.end(), values.begin(), values.end());
}

void append_recorded(std::vector<std::int32_t>& to, const Window& part, bool per_layer) {
  const WindowArrays& arrays = part.arrays();
  if (!per_layer || has_recorded_per_layer(arrays)) {
    to.insert(to.end(), arrays.recorded.begin(), arrays.recorded.end());
    return;
  }
  for (const std::int32_t tokens : arrays.recorded)
    to.insert(to.end(), static_cast<std::size_t>(arrays.layers), tokens);
}

}  // namespace

Window join_windows(std::span<const Window> parts) {
  if (parts.empty()) throw InvalidInput("parts: found none, wanted 1 or more");
  const WindowArrays& first = parts[0].arrays();
  WindowArrays arrays;
  arrays.layers = first.layers;
  arrays.experts = first.experts;
  arrays.top_k = first.top_k;
  arrays.metadata = first.metadata;

  const auto joined = std::make_shared<Joined>();
  std::unordered_set<std::int64_t> ids;
  bool narrow = true, per_layer = false, groups = false, atomic = false;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const WindowArrays& part = parts[p].arrays();
    check_shape(p, part, first);
    agree(p, "model", part.model, arrays.model, [](const std::string& model) { return model; });
    agree(p, "layers", part.layer_numbers, arrays.layer_numbers,
          [](const auto& numbers) { return fmt::format("[{}]", fmt::join(numbers, ", ")); });
    const std::vector<std::uint32_t> pads(part.pad_counts.begin(), part.pad_counts.end());
    agree(p, "pad_counts", pads, joined->pad_counts, [](const auto&) { return "values"; });
    for (const std::int64_t id : part.ids) {
      if (!ids.insert(id).second) fail(p, "ids: found {} again, wanted each id once", id);
    }
    arrays.samples += part.samples;
    if (arrays.samples > std::numeric_limits<std::int32_t>::max()) fail(p, "found more than 2^31 - 1 samples");
    for (const Window& file : parts[p].parts()) narrow = narrow && fits_narrow(file.arrays());
    per_layer = per_layer || has_recorded_per_layer(part);
    groups = groups || !part.groups.empty();
    atomic = atomic || !part.atomic.empty();
    // Other metadata is kept where all parts agree.
    std::erase_if(arrays.metadata,
                  [&](const auto& item) { return std::ranges::find(part.metadata, item) == part.metadata.end(); });
  }

  const auto cells = static_cast<std::size_t>(arrays.samples * arrays.layers * arrays.experts);
  narrow ? joined->narrow.reserve(cells) : joined->wide.reserve(cells);
  for (const Window& window : parts) {
    const WindowArrays& part = window.arrays();
    joined->lengths.insert(joined->lengths.end(), part.lengths.begin(), part.lengths.end());
    joined->ids.insert(joined->ids.end(), part.ids.begin(), part.ids.end());
    if (groups) append<std::int32_t>(joined->groups, part.groups, part.samples, -1);
    if (atomic) append<std::int32_t>(joined->atomic, part.atomic, part.samples, -1);
    append_recorded(joined->recorded, window, per_layer);
    for (const Window& file : window.parts()) {
      std::visit(
          [&](auto counts) {
            if (narrow) {
              std::ranges::transform(counts, std::back_inserter(joined->narrow),
                                     [](auto count) { return static_cast<std::uint16_t>(count); });
            } else {
              joined->wide.insert(joined->wide.end(), counts.begin(), counts.end());
            }
          },
          file.arrays().counts);
    }
  }
  arrays.lengths = joined->lengths;
  arrays.recorded = joined->recorded;
  arrays.groups = joined->groups;
  arrays.atomic = joined->atomic;
  arrays.ids = joined->ids;
  arrays.pad_counts = joined->pad_counts;
  if (narrow) {
    arrays.counts = std::span<const std::uint16_t>(joined->narrow);
  } else {
    arrays.counts = std::span<const std::uint32_t>(joined->wide);
  }
  return Window(std::move(arrays), joined, "joined window");
}

}  // namespace routepack
