// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "core/assert.h"
#include "routepack/error.h"
#include "routepack/replay.h"
#include "window/replay/bit_rows.h"
#include "window/replay/counter.h"
#include "window/replay/kernels.h"
#include "window/replay/wide_rows.h"

namespace routepack {
namespace {

/// Ids of a layer in one block: enough that the work per layer and block does not show, few enough that all layers of
/// a block stay in the second-level cache.
constexpr std::size_t kBlockIds = 1024;

/// Comparing every pair of a row is quadratic: wider rows are sorted instead, one by one.
constexpr std::size_t kMostComparedIds = 32;

std::int64_t slots_of(const RouteIds& ids, const CountOptions& options) {
  if (options.physical_to_logical.empty()) return options.experts;
  return static_cast<std::int64_t>(options.physical_to_logical.size()) / counted_layers(ids, options);
}

/// One more than the largest id that the type can hold.
std::int64_t values_of(IdType type) {
  constexpr std::array<std::int64_t, 6> kValues = {1 << 8, 1 << 7, 1 << 16, 1 << 15, 1LL << 31, 1LL << 62};
  return kValues[static_cast<std::size_t>(type)];
}

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
    reads_directly_ = can_read_directly();
    // A step is eight rows of one layer.
    const std::size_t step_lines = reads_directly_ ? static_cast<std::size_t>(8 * ids_.token_stride / 64) : 0;
    ahead_.lines = (step_lines + offsets_.size() - 1) / offsets_.size();
    buffer_.resize(layer_stride_ * axis_layers_.size());
  }

  void count(std::span<const std::uint8_t> mask) {
    if (reads_directly_) {
      fetch_from(ids_.data);
      ahead_.fetch(std::numeric_limits<std::size_t>::max());
    }
    for (std::int64_t t = 0; t < ids_.tokens; ++t) {
      if (!mask.empty() && mask[static_cast<std::size_t>(t)] == 0) continue;
      tokens_.push_back(ids_.data + t * ids_.token_stride);
      numbers_.push_back(t);
      if (tokens_.size() == block_rows_) count_block();
    }
    if (!tokens_.empty()) count_block();
    if (top_k_ == 1) set_zero_layers_aside();
  }

 private:
  std::span<std::uint32_t> table_of(std::size_t layer) {
    return table_.subspan(layer * static_cast<std::size_t>(slots_), static_cast<std::size_t>(slots_));
  }

  void count_block() {
    const bool fits = reads_directly_ || narrow_layers(offsets_, 0, buffer_.data());
    if (reads_directly_) fetch_from(tokens_.back() + ids_.token_stride);
    for (std::size_t l = 0; l < offsets_.size(); ++l) {
      std::size_t counted = 0;
      if (has_bits_) {
        counted = fits ? count_bits(l) : 0;
      } else if (reads_directly_) {
        counted = count_later(l);
      }
      report_[l].recorded += static_cast<std::int32_t>(counted);
      if (counted < tokens_.size()) count_rest(l, counted, fits);
    }
    count_pending();
    tokens_.clear();
    numbers_.clear();
  }

  /// Leading rows of the block that could be counted without increments.
  std::size_t count_bits(std::size_t l) {
    if constexpr (sizeof(To) == 1) {
      if (reads_directly_) return replay::count_bits(tokens_, offsets_[l], limit_, table_of(l).data(), ahead_);
      return replay::count_bits(narrowed(l), tokens_.size(), top_k_, limit_, table_of(l).data());
    }
    return 0;
  }

  /// Leading rows of the block that are in order; they are counted with the next layer.
  std::size_t count_later(std::size_t l) {
    const std::size_t rows = tokens_.size() / 8 * 8;
    To* ids = narrowed(l);
    const auto tokens = std::span<const std::byte* const>(tokens_).first(rows);
    const bool in_order = replay::narrow_in_order(tokens, offsets_[l], limit_, ids, pending_, ahead_);
    pending_ = {};
    if (!in_order || rows == 0) return 0;
    pending_ = {ids, rows * top_k_, table_of(l).data()};
    return rows;
  }

  void count_pending() {
    if (pending_.ids != nullptr) replay::count_ids(pending_.ids, pending_.size, pending_.table);
    pending_ = {};
  }

  void count_rest(std::size_t l, std::size_t begin, bool fits) {
    To* ids = narrowed(l) + begin * top_k_;
    const std::size_t rows = tokens_.size() - begin;
    if (reads_directly_) fits = narrow_layers(std::span(offsets_).subspan(l, 1), begin, ids);
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

  bool narrow_layers(std::span<const std::ptrdiff_t> offsets, std::size_t begin, To* out) const {
    const replay::RowBlock block{std::span(tokens_).subspan(begin), offsets, top_k_, ids_.id_stride};
    return narrow(block, ids_.type, out, layer_stride_);
  }

  To* narrowed(std::size_t l) { return buffer_.data() + l * layer_stride_; }

  /// The next block will be read from there on.
  void fetch_from(const std::byte* next) {
    const std::byte* end = ids_.data + ids_.tokens * ids_.token_stride;
    const auto size =
        std::min<std::ptrdiff_t>(end - next, static_cast<std::ptrdiff_t>(block_rows_) * ids_.token_stride);
    ahead_.next = next;
    ahead_.end = next + size;
  }

  /// Rows of eight int32, all of them in one piece of memory: only then is it known what will be read next.
  [[nodiscard]] bool can_read_directly() const {
    return (has_bits_ || replay::can_count_wide()) && ids_.type == IdType::I32 && top_k_ == 8 && ids_.id_stride == 4 &&
           ids_.layer_stride == 32 && ids_.token_stride == 32 * ids_.layers;
  }

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
  std::uint32_t limit_ = 0;      // ids below it are experts
  bool has_bits_ = false;        // rows can be counted without increments
  bool reads_directly_ = false;  // and without narrowing them first
  replay::Ahead ahead_;
  replay::Pending<To> pending_;
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

namespace replay {

void check_options(const SampleRoutes& sample, const CountOptions& options, const std::string& where) {
  const RouteIds& ids = sample.ids;
  const auto fail = [&](const std::string& what) { throw InvalidInput(where + ": " + what); };
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (options.experts < 1 || options.experts > kMaxCountedExperts) {
    fail(fmt::format("experts: found {}, wanted 1 to {}", options.experts, kMaxCountedExperts));
  }
  if (ids.tokens < 0 || ids.tokens > kMost) fail(fmt::format("tokens: found {}, wanted 0 to {}", ids.tokens, kMost));
  if (ids.layers < 1 || ids.layers > kMost) fail(fmt::format("layers: found {}, wanted 1 to {}", ids.layers, kMost));
  if (ids.top_k < 1 || ids.top_k > options.experts) {
    fail(fmt::format("ids of a row (top_k): found {}, wanted 1 to {}, the number of experts", ids.top_k,
                     options.experts));
  }
  std::vector<std::int64_t> sorted = options.layers;
  std::ranges::sort(sorted);
  if (!sorted.empty() && (sorted.front() < 0 || sorted.back() >= ids.layers)) {
    fail(fmt::format("layers: found index {}, wanted 0 to {}: the ids have {} layers",
                     sorted.front() < 0 ? sorted.front() : sorted.back(), ids.layers - 1, ids.layers));
  }
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    fail(fmt::format("layers: found index {} twice, wanted each once", *twice));
  }
  const std::int64_t layers = counted_layers(ids, options);
  const auto mapped = static_cast<std::int64_t>(options.physical_to_logical.size());
  if (mapped % layers != 0 || mapped / layers > kMaxCountedExperts || (mapped > 0 && mapped / layers < ids.top_k)) {
    fail(fmt::format("physical_to_logical: found {} values, wanted {} layers of {} to {} slots", mapped, layers,
                     ids.top_k, kMaxCountedExperts));
  }
  for (std::size_t at = 0; at < options.physical_to_logical.size(); ++at) {
    const std::int32_t expert = options.physical_to_logical[at];
    if (expert >= 0 && expert < options.experts) continue;
    const auto slots = static_cast<std::size_t>(mapped / layers);
    fail(fmt::format("physical_to_logical[{}, {}]: found {}, wanted 0 to {}", at / slots, at % slots, expert,
                     options.experts - 1));
  }
  const std::int64_t slots = slots_of(ids, options);
  if (slots > values_of(ids.type)) {
    fail(fmt::format("found ids of type {}, which ends at {}, wanted a type that holds {} experts", name_of(ids.type),
                     values_of(ids.type) - 1, slots));
  }
  if (sample.length && (*sample.length < ids.tokens || *sample.length > kMost)) {
    fail(fmt::format("found {} rows of ids and a length of {}, wanted no more rows than tokens", ids.tokens,
                     *sample.length));
  }
  const std::int64_t tokens = sample.length.value_or(ids.tokens);
  if (!sample.mask.empty() && static_cast<std::int64_t>(sample.mask.size()) != tokens) {
    fail(fmt::format("mask: found {} values, wanted {}, one per token", sample.mask.size(), tokens));
  }
  if (tokens * ids.top_k > std::numeric_limits<std::uint32_t>::max()) {
    fail(fmt::format("found {} tokens with {} ids each, wanted fewer than 2^32 ids per layer", tokens, ids.top_k));
  }
}

}  // namespace replay

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
