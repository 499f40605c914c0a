// SPDX-License-Identifier: Apache-2.0
#include "window/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>

#include "routepack/error.h"
#include "window/safetensors.h"

namespace routepack {
namespace {

constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();

template <class... Args>
[[noreturn]] void fail(const std::string& where, fmt::format_string<Args...> format, Args&&... args) {
  throw InvalidInput(where + ": " + fmt::format(format, std::forward<Args>(args)...));
}

void check_sizes(const WindowArrays& arrays, const std::string& where) {
  const auto in_range = [&](std::string_view what, std::int64_t size) {
    if (size < 1 || size > kMaxSize) fail(where, "{}: found {}, wanted 1 to {}", what, size, kMaxSize);
  };
  in_range("samples (N)", arrays.samples);
  in_range("layers (L)", arrays.layers);
  in_range("experts (E)", arrays.experts);
  if (arrays.top_k < 1 || arrays.top_k > arrays.experts) {
    fail(where, "top_k: found {}, wanted 1 to {}, the number of experts", arrays.top_k, arrays.experts);
  }
  if (arrays.kind == WindowKind::Aggregate && arrays.samples != 1) {
    fail(where, "samples (N): found {}, wanted 1 in an aggregate window", arrays.samples);
  }
}

/// `shape` spells the wanted shape; tensors other than lengths and counts may be absent, that is, empty.
void check_size(std::string_view tensor, std::size_t found, std::int64_t wanted, std::string_view shape,
                const std::string& where) {
  if (found != static_cast<std::size_t>(wanted)) {
    fail(where, "tensor {}: found {} values, wanted {} for shape {}", tensor, found, wanted, shape);
  }
}

void check_tensor_sizes(const WindowArrays& arrays, bool with_counts, const std::string& where) {
  const auto [n, layers, experts] = std::tuple(arrays.samples, arrays.layers, arrays.experts);
  const std::int64_t matrix = layers * experts;  // below 2^62
  std::int64_t all = 0;
  if (__builtin_mul_overflow(n, matrix, &all)) {
    fail(where, "tensor counts: found shape [{}, {}, {}], wanted fewer values than 2^63", n, layers, experts);
  }
  const std::size_t counts = std::visit([](auto span) { return span.size(); }, arrays.counts);
  const std::string whole = with_counts ? fmt::format("[{}, {}, {}]", n, layers, experts) : "[0], counts elsewhere";
  check_size("counts", counts, with_counts ? all : 0, whole, where);
  const bool may_lack_lengths = arrays.kind == WindowKind::Aggregate && arrays.lengths.empty();
  const std::string per_sample = fmt::format("[{}]", n);
  if (!may_lack_lengths) check_size("lengths", arrays.lengths.size(), n, per_sample, where);
  if (!arrays.groups.empty()) check_size("groups", arrays.groups.size(), n, per_sample, where);
  if (!arrays.atomic.empty()) check_size("atomic", arrays.atomic.size(), n, per_sample, where);
  if (!arrays.ids.empty()) check_size("ids", arrays.ids.size(), n, per_sample, where);
  if (!arrays.recorded.empty() && arrays.recorded.size() != static_cast<std::size_t>(n * layers)) {
    check_size("recorded", arrays.recorded.size(), n, fmt::format("[{}] or [{}, {}]", n, n, layers), where);
  }
  if (!arrays.pad_counts.empty()) {
    check_size("pad_counts", arrays.pad_counts.size(), matrix, fmt::format("[{}, {}]", layers, experts), where);
  }
}

void check_samples(const WindowArrays& arrays, const std::string& where) {
  for (std::size_t i = 0; i < arrays.lengths.size(); ++i) {
    if (arrays.lengths[i] < 1) fail(where, "tensor lengths[{}]: found {}, wanted 1 or more", i, arrays.lengths[i]);
  }
  for (std::size_t i = 0; i < arrays.atomic.size(); ++i) {
    if (arrays.atomic[i] < -1) {
      fail(where, "tensor atomic[{}]: found {}, wanted -1 (free) or more", i, arrays.atomic[i]);
    }
  }
  const std::size_t per_sample = arrays.recorded.size() / static_cast<std::size_t>(arrays.samples);
  for (std::size_t at = 0; at < arrays.recorded.size(); ++at) {
    const std::size_t i = at / per_sample;
    const std::int32_t most = arrays.lengths.empty() ? std::numeric_limits<std::int32_t>::max() : arrays.lengths[i];
    const std::int32_t found = arrays.recorded[at];
    if (found >= 0 && found <= most) continue;
    const std::string index = per_sample > 1 ? fmt::format("{}, {}", i, at % per_sample) : std::to_string(i);
    if (found < 0 || arrays.lengths.empty()) {
      fail(where, "tensor recorded[{}]: found {}, wanted 0 or more", index, found);
    }
    fail(where, "tensor recorded[{}]: found {}, wanted at most {}, the length of the sample", index, found, most);
  }
}

void check_labels(const WindowArrays& arrays, const std::string& where) {
  if (!arrays.layer_numbers.empty() && arrays.layer_numbers.size() != static_cast<std::size_t>(arrays.layers)) {
    fail(where, "metadata layers: found {} numbers, wanted {}, one per layer", arrays.layer_numbers.size(),
         arrays.layers);
  }
  for (std::size_t l = 0; l < arrays.layer_numbers.size(); ++l) {
    if (arrays.layer_numbers[l] < 0) {
      fail(where, "metadata layers[{}]: found {}, wanted 0 or more", l, arrays.layer_numbers[l]);
    }
  }
  std::set<std::string_view> seen(kReservedMetadata.begin(), kReservedMetadata.end());
  for (const auto& [key, value] : arrays.metadata) {
    if (!seen.insert(key).second) {
      fail(where, "metadata key {}: found twice or reserved, wanted a key of its own", printable_name(key));
    }
  }
}

template <class Count>
struct RowFigures {
  std::uint64_t sum = 0;
  Count max = 0;
};

/// The compiler turns the inner loop into vector code; the block keeps a sum of u16 inside 32 bits.
template <class Count>
RowFigures<Count> figures_of(const Count* row, std::size_t size) {
  using Partial = std::conditional_t<sizeof(Count) == 2, std::uint32_t, std::uint64_t>;
  constexpr std::size_t kBlock = std::size_t{1} << 15;
  RowFigures<Count> figures;
  while (size > 0) {
    const std::size_t block = std::min(size, kBlock);
    Partial sum = 0;
    Count max = figures.max;
    for (std::size_t e = 0; e < block; ++e) {
      sum += row[e];
      max = row[e] > max ? row[e] : max;
    }
    figures.sum += sum;
    figures.max = max;
    row += block;
    size -= block;
  }
  return figures;
}

template <class Count>
void check_counts(const WindowArrays& arrays, std::span<const Count> counts, const std::string& where) {
  const auto samples = static_cast<std::size_t>(arrays.samples);
  const auto layers = static_cast<std::size_t>(arrays.layers);
  const auto experts = static_cast<std::size_t>(arrays.experts);
  const bool has_recorded = !arrays.recorded.empty();
  const bool per_layer = arrays.recorded.size() == samples * layers;
  const auto top_k = static_cast<std::uint64_t>(arrays.top_k);

  for (std::size_t i = 0; i < samples; ++i) {
    const bool has_length = !arrays.lengths.empty();
    const std::uint64_t length = has_length ? static_cast<std::uint64_t>(arrays.lengths[i]) : 0;
    for (std::size_t l = 0; l < layers; ++l) {
      const Count* row = counts.data() + (i * layers + l) * experts;
      const RowFigures<Count> figures = figures_of(row, experts);
      if (has_length && figures.max > length) {
        const Count* culprit = std::find_if(row, row + experts, [&](Count count) { return count > length; });
        fail(where, "tensor counts[{}, {}, {}]: found {}, wanted at most {}, the length of the sample", i, l,
             culprit - row, *culprit, length);
      }
      if (has_recorded) {
        const auto recorded = static_cast<std::uint64_t>(arrays.recorded[per_layer ? i * layers + l : i]);
        if (figures.sum != top_k * recorded) {
          fail(where, "tensor counts[{}, {}, :]: found a sum of {}, wanted {}, top_k {} times recorded {}", i, l,
               figures.sum, top_k * recorded, top_k, recorded);
        }
      } else if (has_length && figures.sum > top_k * length) {
        fail(where, "tensor counts[{}, {}, :]: found a sum of {}, wanted at most {}, top_k {} times length {}", i, l,
             figures.sum, top_k * length, top_k, length);
      }
    }
  }
}

}  // namespace

void validate(const WindowArrays& arrays, const std::string& where) {
  check_sizes(arrays, where);
  check_tensor_sizes(arrays, true, where);
  check_samples(arrays, where);
  check_labels(arrays, where);
  std::visit([&](auto counts) { check_counts(arrays, counts, where); }, arrays.counts);
}

void validate_without_counts(const WindowArrays& arrays, const std::string& where) {
  check_sizes(arrays, where);
  check_tensor_sizes(arrays, false, where);
  check_samples(arrays, where);
  check_labels(arrays, where);
}

}  // namespace routepack
