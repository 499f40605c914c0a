// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "core/assert.h"
#include "routepack/error.h"
#include "routepack/replay.h"
#include "window/replay/bit_rows.h"
#include "window/replay/counter.h"
#include "window/replay/kernels.h"
#include "window/replay/token_rows.h"

namespace routepack {
namespace {

using replay::slots_of;
using replay::values_of;

/// Ids of a layer in one block: enough that the work per layer and block does not show, few enough that all layers of
/// a block stay in the second-level cache.
constexpr std::size_t kBlockIds = 1024;

/// Comparing every pair of a row is quadratic: wider rows are sorted instead, one by one.
constexpr std::size_t kMostComparedIds = 32;

template <class T>
std::int64_t load_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<std::int64_t>(value);
}

std::int64_t load_id(const std::byte* at, IdType type) {
  switch (type) {
    case IdType::U8:
      return load_as<std::uint8_t>(at);
    case IdType::I8:
      return load_as<std::int8_t>(at);
    case IdType::U16:
      return load_as<std::uint16_t>(at);
    case IdType::I16:
      return load_as<std::int16_t>(at);
    case IdType::I32:
      return load_as<std::int32_t>(at);
    default:
      return load_as<std::int64_t>(at);
  }
}

template <class To>
bool narrow(const replay::RowBlock& block, IdType type, To* out, std::size_t layer_stride) {
  switch (type) {
    case IdType::U8:
      if constexpr (sizeof(To) == 1) return replay::narrow<std::uint8_t>(block, out, layer_stride);
      break;
    case IdType::I8:
      if constexpr (sizeof(To) == 1) return replay::narrow<std::int8_t>(block, out, layer_stride);
      break;
    case IdType::U16:
      return replay::narrow<std::uint16_t>(block, out, layer_stride);
    case IdType::I16:
      return replay::narrow<std::int16_t>(block, out, layer_stride);
    case IdType::I32:
      return replay::narrow<std::int32_t>(block, out, layer_stride);
    case IdType::I64:
      return replay::narrow<std::int64_t>(block, out, layer_stride);
  }
  ROUTEPACK_ASSERT(false, "8-bit ids number no more than 256 experts");
}

/// Counts the blocks of one sample. To: the narrowest type for ids below the number of slots.
template <class To>
class SampleCounter {
 public:
  SampleCounter(const SampleRoutes& sample, const CountOptions& options, const std::string& where, CountReport& report,
                std::span<std::uint32_t> table)
      : ids_(sample.ids),
        options_(options),
        where_(where),
        report_(report),
        table_(table),
        top_k_(static_cast<std::size_t>(ids_.top_k)),
        slots_(slots_of(ids_, options)),
        block_rows_(std::max<std::size_t>(8, kBlockIds / top_k_)),
        // Not a multiple of the page: rows of all layers written side by side would fall into the same cache sets.
        layer_stride_(block_rows_ * top_k_ + 64 / sizeof(To)),
        ids_of_row_(top_k_) {
    axis_layers_ = options.layers;
    if (axis_layers_.empty()) {
      axis_layers_.resize(static_cast<std::size_t>(ids_.layers));
      std::iota(axis_layers_.begin(), axis_layers_.end(), 0);
    }
    for (const std::int64_t l : axis_layers_) offsets_.push_back(l * ids_.layer_stride);
    // An 8-bit −1 looks like 255 once narrowed, but no id of a signed type is that large.
    limit_ = static_cast<std::uint32_t>(std::min(slots_, values_of(ids_.type)));
    has_bits_ = sizeof(To) == 1 && replay::has_bit_rows(top_k_, limit_) && replay::can_count_bits();
  }

  void count(std::span<const std::uint8_t> mask) {
    for (std::int64_t t = 0; t < ids_.tokens; ++t) {
      if (!mask.empty() && mask[static_cast<std::size_t>(t)] == 0) continue;
      tokens_.push_back(ids_.data + t * ids_.token_stride);
      numbers_.push_back(t);
      if (tokens_.size() == block_rows_) count_block();
    }
    if (!tokens_.empty()) count_block();
    if (whole_tokens_) whole_tokens_->finish();
    if (top_k_ == 1) set_zero_layers_aside();
  }

 private:
  std::span<std::uint32_t> table_of(std::size_t layer) {
    return table_.subspan(layer * static_cast<std::size_t>(slots_), static_cast<std::size_t>(slots_));
  }

  void count_block() {
    if (!is_open_) open();
    if (whole_tokens_) {
      count_layers(0, first_whole_);  // of every token
      count_whole_tokens();           // which leaves those that are not in order
      count_layers(first_whole_, offsets_.size());
    } else {
      count_layers(0, offsets_.size());
    }
    tokens_.clear();
    numbers_.clear();
  }

  /// The first tokens are there: how to count them? Leading rows of zeros are dense layers, mostly.
  void open() {
    is_open_ = true;
    if (!has_whole_tokens()) return;
    const auto is_zero = [&](std::ptrdiff_t offset) {
      constexpr std::array<std::byte, 32> kZeros{};
      return std::memcmp(tokens_.front() + offset, kZeros.data(), kZeros.size()) == 0;
    };
    const auto first = std::ranges::find_if_not(offsets_, is_zero);
    first_whole_ = first == offsets_.end() ? 0 : static_cast<std::size_t>(first - offsets_.begin());
    whole_tokens_.emplace(offsets_.size(), static_cast<std::size_t>(slots_), table_.data());
  }

  /// Rows of eight int32, those of the layers side by side.
  [[nodiscard]] bool has_whole_tokens() const {
    if (ids_.type != IdType::I32 || top_k_ != 8 || ids_.id_stride != 4 || ids_.layer_stride != 32) return false;
    const auto gap = [](std::int64_t a, std::int64_t b) { return b != a + 1; };
    if (std::ranges::adjacent_find(axis_layers_, gap) != axis_layers_.end()) return false;
    return replay::TokenCounters::fit(offsets_.size(), static_cast<std::size_t>(slots_));
  }

  void count_whole_tokens() {
    const std::size_t layers = offsets_.size() - first_whole_;
    const std::byte* end = ids_.data + ids_.tokens * ids_.token_stride;
    const auto rows = [&](std::size_t from) {
      return replay::TokenRows{std::span(tokens_).subspan(from), offsets_[first_whole_], layers, ids_.token_stride,
                               end};
    };
    std::size_t left = 0;
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      i += whole_tokens_->count(rows(i));
      if (i == tokens_.size()) break;
      tokens_[left] = tokens_[i];
      numbers_[left++] = numbers_[i];
    }
    const std::size_t counted = tokens_.size() - left;
    for (std::size_t l = first_whole_; l < report_.size(); ++l)
      report_[l].recorded += static_cast<std::int32_t>(counted);
    if (left > block_rows_ / 4) {  // a layer that was not captured, perhaps: token by token is no way to go on
      whole_tokens_->finish();
      whole_tokens_.reset();
    }
    tokens_.resize(left);
    numbers_.resize(left);
  }

  void count_layers(std::size_t begin, std::size_t end) {
    if (begin == end || tokens_.empty()) return;
    buffer_.resize(layer_stride_ * offsets_.size());
    const bool all_fit = narrow_layers(begin, end);
    for (std::size_t l = begin; l < end; ++l) {
      const bool fits = all_fit || narrow_layers(l, l + 1);
      const std::size_t counted = fits && has_bits_ ? count_bits(l) : 0;
      report_[l].recorded += static_cast<std::int32_t>(counted);
      if (counted < tokens_.size()) count_rest(l, counted, fits);
    }
  }

  bool narrow_layers(std::size_t begin, std::size_t end) {
    const auto offsets = std::span(offsets_).subspan(begin, end - begin);
    return narrow(replay::RowBlock{tokens_, offsets, top_k_, ids_.id_stride}, ids_.type, narrowed(begin),
                  layer_stride_);
  }

  /// Leading rows of the block that could be counted without increments.
  std::size_t count_bits(std::size_t l) {
    if constexpr (sizeof(To) == 1) {
      return replay::count_bits(narrowed(l), tokens_.size(), top_k_, limit_, table_of(l).data());
    }
    return 0;
  }

  void count_rest(std::size_t l, std::size_t begin, bool fits) {
    To* ids = narrowed(l) + begin * top_k_;
    const std::size_t rows = tokens_.size() - begin;
    if (fits && top_k_ <= kMostComparedIds && !replay::is_suspicious(ids, rows, top_k_, limit_)) {
      replay::count_ids(ids, rows * top_k_, table_of(l).data());
      report_[l].recorded += static_cast<std::int32_t>(rows);
    } else if (fits && top_k_ > 1 && std::all_of(ids, ids + rows * top_k_, [](To id) { return id == 0; })) {
      if (options_.missing == MissingRoutes::Refuse) refuse_missing(l, begin, "a row of zeros (not captured)");
      report_[l].zero += static_cast<std::int32_t>(rows);
    } else {
      for (std::size_t i = begin; i < tokens_.size(); ++i) look_at_row(l, i);
    }
  }

  To* narrowed(std::size_t l) { return buffer_.data() + l * layer_stride_; }

  void look_at_row(std::size_t l, std::size_t i) {
    const std::byte* row = tokens_[i] + offsets_[l];
    std::int64_t most = 0;
    std::size_t sentinels = 0;
    for (std::size_t k = 0; k < top_k_; ++k) {
      const std::int64_t id = load_id(row + static_cast<std::ptrdiff_t>(k) * ids_.id_stride, ids_.type);
      ids_of_row_[k] = id;
      if (id == -1) {
        ++sentinels;
      } else if (id < 0 || id >= slots_) {
        return set_invalid_aside(l, i, fmt::format("id {}", id), fmt::format("0 to {}", slots_ - 1));
      }
      most = std::max(most, id);
    }
    LayerReport& report = report_[l];
    if (sentinels == top_k_) {
      if (options_.missing == MissingRoutes::Refuse) refuse_missing(l, i, "a row of -1");
      ++report.sentinel;
    } else if (sentinels > 0) {
      set_invalid_aside(l, i, "-1 beside ids", fmt::format("{} ids, or -1 only", top_k_));
    } else if (most == 0 && top_k_ > 1) {
      if (options_.missing == MissingRoutes::Refuse) refuse_missing(l, i, "a row of zeros (not captured)");
      ++report.zero;
    } else {
      const auto table = table_of(l);
      for (const std::int64_t id : ids_of_row_) ++table[static_cast<std::size_t>(id)];
      ++report.recorded;
      std::ranges::sort(ids_of_row_);
      if (std::ranges::adjacent_find(ids_of_row_) != ids_of_row_.end()) ++report.duplicates;
    }
  }

  void set_invalid_aside(std::size_t l, std::size_t i, const std::string& found, const std::string& wanted) {
    if (options_.invalid == InvalidRoutes::Refuse) refuse(l, i, found, wanted);
    if (options_.missing == MissingRoutes::Refuse) refuse_missing(l, i, found);
    ++report_[l].invalid;
  }

  /// With one choice per token a row of zeros may be a route to expert 0; a whole layer of them is not.
  void set_zero_layers_aside() {
    for (std::size_t l = 0; l < report_.size(); ++l) {
      LayerReport& report = report_[l];
      auto& zeros = table_of(l)[0];
      if (slots_ == 1 || report.recorded < 2 || zeros != static_cast<std::uint32_t>(report.recorded)) continue;
      if (options_.missing == MissingRoutes::Refuse) {
        throw InvalidInput(
            fmt::format("{}, layer {}: found nothing but zeros (not captured), wanted a route of every "
                        "token",
                        where_, axis_layers_[l]));
      }
      report.zero += std::exchange(report.recorded, 0);
      zeros = 0;
    }
  }

  [[noreturn]] void refuse(std::size_t l, std::size_t i, const std::string& found, const std::string& wanted) const {
    throw InvalidInput(fmt::format("{}, layer {}, token {}: found {}, wanted {}", where_, axis_layers_[l], numbers_[i],
                                   found, wanted));
  }
  [[noreturn]] void refuse_missing(std::size_t l, std::size_t i, const std::string& found) const {
    refuse(l, i, found, "a route of every token");
  }

  const RouteIds& ids_;
  const CountOptions& options_;
  const std::string& where_;
  CountReport& report_;
  std::span<std::uint32_t> table_;  // [L, slots]
  std::size_t top_k_;
  std::int64_t slots_;
  std::size_t block_rows_;
  std::size_t layer_stride_;
  std::uint32_t limit_ = 0;  // ids below it are experts
  bool has_bits_ = false;    // rows can be counted without increments
  bool is_open_ = false;     // the first block came
  std::optional<replay::TokenCounters> whole_tokens_;
  std::size_t first_whole_ = 0;  // the layer from which on they are counted together
  std::vector<std::int64_t> axis_layers_;
  std::vector<std::ptrdiff_t> offsets_;
  std::vector<To> buffer_;
  std::vector<const std::byte*> tokens_;  // of the block
  std::vector<std::int64_t> numbers_;
  std::vector<std::int64_t> ids_of_row_;
};

/// Tokens that count and lie beyond the last row.
std::int64_t absent_tokens(const SampleRoutes& sample) {
  const std::int64_t length = sample.length.value_or(sample.ids.tokens);
  if (sample.mask.empty()) return length - sample.ids.tokens;
  return std::ranges::count_if(sample.mask.subspan(static_cast<std::size_t>(sample.ids.tokens)),
                               [](std::uint8_t keep) { return keep != 0; });
}

/// From slots to logical experts.
void fold(std::span<const std::uint32_t> table, std::span<const std::int32_t> physical_to_logical,
          std::span<std::uint32_t> counts, std::size_t layers) {
  const std::size_t slots = table.size() / layers;
  const std::size_t experts = counts.size() / layers;
  for (std::size_t at = 0; at < table.size(); ++at) {
    counts[at / slots * experts + static_cast<std::size_t>(physical_to_logical[at])] += table[at];
  }
}

void spread_missing(CountReport& report, std::span<std::uint32_t> counts, std::int64_t top_k) {
  const std::size_t experts = counts.size() / report.size();
  for (std::size_t l = 0; l < report.size(); ++l) {
    if (report[l].recorded == 0) continue;  // nothing to go by: the layer stays without routes
    const std::int32_t missing = report[l].missing();
    replay::spread(counts.subspan(l * experts, experts), static_cast<std::uint64_t>(missing * top_k));
    report[l].spread = missing;
  }
}

}  // namespace

std::int64_t counted_layers(const RouteIds& ids, const CountOptions& options) {
  return options.layers.empty() ? ids.layers : static_cast<std::int64_t>(options.layers.size());
}

CountReport count_routes(const SampleRoutes& sample, const CountOptions& options, std::span<std::uint32_t> counts,
                         const std::string& where) {
  replay::check_options(sample, options, where);
  const auto layers = static_cast<std::size_t>(counted_layers(sample.ids, options));
  const auto slots = static_cast<std::size_t>(slots_of(sample.ids, options));
  ROUTEPACK_ASSERT(counts.size() == layers * static_cast<std::size_t>(options.experts), "counts have another shape");
  std::ranges::fill(counts, 0U);
  CountReport report(layers);

  const bool mapped = !options.physical_to_logical.empty();
  std::vector<std::uint32_t> by_slot(mapped ? layers * slots : 0);
  const std::span<std::uint32_t> table = mapped ? std::span(by_slot) : counts;
  if (slots <= 256) {
    SampleCounter<std::uint8_t>(sample, options, where, report, table).count(sample.mask);
  } else {
    SampleCounter<std::uint16_t>(sample, options, where, report, table).count(sample.mask);
  }
  if (mapped) fold(table, options.physical_to_logical, counts, layers);

  const std::int64_t absent = absent_tokens(sample);
  if (absent > 0 && options.missing == MissingRoutes::Refuse) {
    throw InvalidInput(fmt::format("{}: found {} rows of ids for {} tokens, wanted a route of every token", where,
                                   sample.ids.tokens, sample.length.value_or(sample.ids.tokens)));
  }
  for (LayerReport& layer : report) layer.absent = static_cast<std::int32_t>(absent);
  if (options.missing == MissingRoutes::Spread) spread_missing(report, counts, sample.ids.top_k);
  return report;
}

std::vector<CountReport> count_routes_batch(std::span<const SampleRoutes> samples, const CountOptions& options,
                                            std::span<std::uint32_t> counts, const ParallelFor& parallel,
                                            const std::string& where) {
  const auto name = [&](std::size_t i) { return fmt::format("{}[{}]", where, i); };
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const RouteIds& first = samples[0].ids;
    const RouteIds& ids = samples[i].ids;
    if (ids.layers != first.layers || ids.top_k != first.top_k) {
      throw InvalidInput(
          fmt::format("{}: found {} layers with {} ids per row, wanted {} with {} as in the first sample", name(i),
                      ids.layers, ids.top_k, first.layers, first.top_k));
    }
  }
  std::vector<CountReport> reports(samples.size());
  if (samples.empty()) return reports;
  const std::size_t size = counts.size() / samples.size();
  const auto count_one = [&](std::size_t i) {
    reports[i] = count_routes(samples[i], options, counts.subspan(i * size, size), name(i));
  };
  if (parallel) {
    parallel(samples.size(), count_one);
  } else {
    for (std::size_t i = 0; i < samples.size(); ++i) count_one(i);
  }
  return reports;
}

}  // namespace routepack
