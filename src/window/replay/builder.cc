// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "core/assert.h"
#include "routepack/error.h"
#include "routepack/replay.h"
#include "window/replay/counter.h"
#include "window/replay/spill.h"
#include "window/window_file.h"

namespace routepack {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

template <class... Args>
[[noreturn]] void fail(const std::string& where, fmt::format_string<Args...> format, Args&&... args) {
  throw InvalidInput(where + ": " + fmt::format(format, std::forward<Args>(args)...));
}

std::string name_of_sample(const SampleInfo& info, std::size_t arrival) {
  return info.id ? fmt::format("sample with id {}", *info.id) : fmt::format("sample {}", arrival);
}

/// A sample that is kept; its counts wait in the spill.
struct Kept {
  SampleInfo info;
  std::uint64_t begin = 0;
  bool wide = false;  // U32, because a count exceeds 65535
};

/// The tensors of a window about to be written, beside its counts.
struct Columns {
  std::vector<std::int32_t> lengths, recorded, groups, atomic;
  std::vector<std::int64_t> ids;
};

}  // namespace

struct WindowBuilder::State {
  explicit State(WindowBuilderOptions given)
      : options(std::move(given)), spill(options.memory_bytes, options.spill_folder) {}

  WindowBuilderOptions options;
  mutable std::mutex mutex;
  std::int64_t layers = 0;  // 0: not known yet
  std::vector<Kept> kept;
  std::vector<std::int32_t> recorded;  // [samples, L]
  std::unordered_set<std::int64_t> ids;
  replay::Spill spill;

  [[nodiscard]] std::size_t cells() const { return static_cast<std::size_t>(layers * options.experts); }

  void check_layers(std::int64_t found, const std::string& where) const {
    if (layers != 0 && found != layers) {
      fail(where, "found {} layers, wanted {}{}", found, layers,
           options.layers == 0 ? " as in the samples before" : "");
    }
    if (!options.layer_numbers.empty() && static_cast<std::int64_t>(options.layer_numbers.size()) != found) {
      fail(where, "found {} layers, wanted {}, one per layer number", found, options.layer_numbers.size());
    }
    const auto pads = static_cast<std::int64_t>(options.pad_counts.size());
    if (pads != 0 && pads != found * options.experts) {
      fail(where, "found {} layers, wanted those of pad_counts: {} values for {} experts", found, pads,
           options.experts);
    }
  }

  void check_info(const SampleInfo& info, const std::string& where) const {
    if (info.length < 1 || info.length > kMaxInt32) {
      fail(where, "length: found {}, wanted 1 to {}", info.length, kMaxInt32);
    }
    if (info.atomic && *info.atomic < -1) fail(where, "atomic: found {}, wanted -1 (free) or more", *info.atomic);
    if (!kept.empty() && info.id.has_value() != kept.front().info.id.has_value()) {
      fail(where, "found {} id, wanted ids for all samples of a window or for none", info.id ? "an" : "no");
    }
    if (info.id && ids.contains(*info.id)) fail(where, "found an id that is there already, wanted each id once");
    if (kept.size() >= static_cast<std::size_t>(kMaxInt32)) fail(where, "found more than 2^31 - 1 samples");
  }

  /// The rules of a window file, for one sample (docs/formats.md).
  template <class Count>
  std::vector<std::int32_t> check_counts(const SampleInfo& info, std::span<const Count> counts,
                                         std::span<const std::int32_t> rows, const std::string& where) const {
    const auto experts = static_cast<std::size_t>(options.experts);
    const std::size_t found_layers = counts.size() / experts;
    std::vector<std::int32_t> result(found_layers);
    for (std::size_t l = 0; l < found_layers; ++l) {
      const auto layer = counts.subspan(l * experts, experts);
      std::uint64_t sum = 0;
      for (std::size_t e = 0; e < experts; ++e) {
        sum += layer[e];
        if (static_cast<std::int64_t>(layer[e]) > info.length) {
          fail(where, "counts[{}, {}]: found {}, wanted at most {}, the length of the sample", l, e, layer[e],
               info.length);
        }
      }
      const auto top_k = static_cast<std::uint64_t>(options.top_k);
      if (rows.empty()) {
        if (sum % top_k != 0) {
          fail(where, "counts[{}, :]: found a sum of {}, wanted a multiple of top_k {}, or recorded rows", l, sum,
               top_k);
        }
        if (sum / top_k > static_cast<std::uint64_t>(info.length)) {
          fail(where, "counts[{}, :]: found a sum of {}, wanted at most top_k {} times length {}", l, sum, top_k,
               info.length);
        }
        result[l] = static_cast<std::int32_t>(sum / top_k);
        continue;
      }
      const std::int32_t row = rows[rows.size() == 1 ? 0 : l];
      if (row < 0 || row > info.length) {
        fail(where, "recorded[{}]: found {}, wanted 0 to {}, the length of the sample", l, row, info.length);
      }
      if (sum != top_k * static_cast<std::uint64_t>(row)) {
        fail(where, "counts[{}, :]: found a sum of {}, wanted {}, top_k {} times recorded {}", l, sum,
             top_k * static_cast<std::uint64_t>(row), top_k, row);
      }
      result[l] = row;
    }
    return result;
  }

  /// Everything was checked; only the spill can fail, and before anything else has changed.
  template <class Count>
  void keep(const SampleInfo& info, std::span<const Count> counts, std::span<const std::int32_t> rows) {
    const bool wide = std::ranges::any_of(counts, [](Count count) { return count > 0xffff; });
    std::uint64_t begin = 0;
    if (wide) {
      begin = spill.append(std::as_bytes(counts));
    } else {
      const std::vector<std::uint16_t> narrow(counts.begin(), counts.end());
      begin = spill.append(std::as_bytes(std::span(narrow)));
    }
    layers = static_cast<std::int64_t>(rows.size());
    kept.push_back({info, begin, wide});
    recorded.insert(recorded.end(), rows.begin(), rows.end());
    if (info.id) ids.insert(*info.id);
  }

  void forget_from(std::size_t size) {
    for (std::size_t i = size; i < kept.size(); ++i) {
      if (kept[i].info.id) ids.erase(*kept[i].info.id);
    }
    kept.resize(size);
    recorded.resize(size * static_cast<std::size_t>(layers));
    if (size == 0) layers = options.layers;
  }

  template <class Count>
  void add(const SampleInfo& info, std::span<const Count> counts, std::span<const std::int32_t> rows) {
    const std::lock_guard lock(mutex);
    const std::string where = name_of_sample(info, kept.size());
    const auto experts = static_cast<std::size_t>(options.experts);
    if (counts.empty() || counts.size() % experts != 0) {
      fail(where, "counts: found {} values, wanted [layers, {}]", counts.size(), experts);
    }
    check_layers(static_cast<std::int64_t>(counts.size() / experts), where);
    if (rows.size() > 1 && rows.size() != counts.size() / experts) {
      fail(where, "recorded: found {} values, wanted 1 or {}, one per layer", rows.size(), counts.size() / experts);
    }
    check_info(info, where);
    keep(info, counts, check_counts(info, counts, rows, where));
  }

  /// By id where there are ids, else by arrival.
  [[nodiscard]] std::vector<std::size_t> order() const {
    std::vector<std::size_t> order(kept.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(
        order, [&](std::size_t a, std::size_t b) { return kept[a].info.id.value_or(0) < kept[b].info.id.value_or(0); });
    return order;
  }

  [[nodiscard]] Columns columns(const std::vector<std::size_t>& order) const {
    Columns columns;
    const auto n_layers = static_cast<std::size_t>(layers);
    const auto any = [&](auto has) { return std::ranges::any_of(kept, [&](const Kept& k) { return has(k.info); }); };
    const bool groups = any([](const SampleInfo& info) { return info.group.has_value(); });
    const bool atomic = any([](const SampleInfo& info) { return info.atomic.has_value(); });
    bool uniform = true;  // the same rows at every layer of a sample: [N] says it all
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const auto rows = std::span(recorded).subspan(i * n_layers, n_layers);
      uniform = uniform && std::ranges::adjacent_find(rows, std::not_equal_to<>()) == rows.end();
    }
    for (const std::size_t i : order) {
      const SampleInfo& info = kept[i].info;
      columns.lengths.push_back(static_cast<std::int32_t>(info.length));
      if (groups) columns.groups.push_back(info.group.value_or(-1));
      if (atomic) columns.atomic.push_back(info.atomic.value_or(-1));
      if (info.id) columns.ids.push_back(*info.id);
      const auto rows = std::span(recorded).subspan(i * n_layers, uniform ? 1 : n_layers);
      columns.recorded.insert(columns.recorded.end(), rows.begin(), rows.end());
    }
    return columns;
  }

  [[nodiscard]] WindowArrays arrays(const Columns& columns) const {
    WindowArrays arrays;
    arrays.samples = static_cast<std::int64_t>(kept.size());
    arrays.layers = layers;
    arrays.experts = options.experts;
    arrays.top_k = options.top_k;
    arrays.lengths = columns.lengths;
    arrays.recorded = columns.recorded;
    arrays.groups = columns.groups;
    arrays.atomic = columns.atomic;
    arrays.ids = columns.ids;
    arrays.pad_counts = options.pad_counts;
    arrays.model = options.model;
    arrays.layer_numbers = options.layer_numbers;
    return arrays;
  }

  [[nodiscard]] bool wide() const {
    return std::ranges::any_of(kept, [](const Kept& sample) { return sample.wide; });
  }

  /// Hands over the counts of all samples in `order`, widened to Count.
  template <class Count, class Take>
  void each_counts(const std::vector<std::size_t>& order, Take take) const {
    std::vector<std::uint16_t> narrow(cells());
    std::vector<Count> counts(cells());
    for (const std::size_t i : order) {
      if (kept[i].wide == (sizeof(Count) == 4)) {
        spill.read(kept[i].begin, std::as_writable_bytes(std::span(counts)));
      } else {
        spill.read(kept[i].begin, std::as_writable_bytes(std::span(narrow)));
        std::ranges::copy(narrow, counts.begin());
      }
      take(std::span<const Count>(counts));
    }
  }

  void require_samples() const {
    if (kept.empty()) throw InvalidInput("window: found no samples, wanted 1 or more");
  }

  template <class Count>
  [[nodiscard]] Window in_memory() const {
    struct Owner {
      Columns columns;
      WindowBuilderOptions options;
      std::vector<Count> counts;
    };
    const auto by = order();
    auto owner = std::make_shared<Owner>(Owner{columns(by), options, {}});
    owner->counts.reserve(cells() * kept.size());
    each_counts<Count>(
        by, [&](std::span<const Count> one) { owner->counts.insert(owner->counts.end(), one.begin(), one.end()); });
    WindowArrays views = arrays(owner->columns);
    views.pad_counts = owner->options.pad_counts;
    views.counts = std::span<const Count>(owner->counts);
    return Window(std::move(views), std::move(owner));
  }

  template <class Count>
  void write(const std::filesystem::path& path) const {
    const auto by = order();
    const Columns tensors = columns(by);
    WindowArrays views = arrays(tensors);
    views.counts = std::span<const Count>();
    write_window(path, views, [&](const WriteSink& sink) {
      each_counts<Count>(by, [&](std::span<const Count> one) { sink(std::as_bytes(one)); });
    });
  }

  void clear() {
    kept.clear();
    recorded.clear();
    ids.clear();
    layers = options.layers;
    spill.rewind(0);
  }
};

WindowBuilder::WindowBuilder(WindowBuilderOptions options) : state_(std::make_unique<State>(std::move(options))) {
  const WindowBuilderOptions& given = state_->options;
  const std::string where = "window builder";
  if (given.experts < 1 || given.experts > kMaxInt32) {
    fail(where, "experts: found {}, wanted 1 to {}", given.experts, kMaxInt32);
  }
  if (given.top_k < 1 || given.top_k > given.experts) {
    fail(where, "top_k: found {}, wanted 1 to {}, the number of experts", given.top_k, given.experts);
  }
  if (given.layers < 0 || given.layers > kMaxInt32) {
    fail(where, "layers: found {}, wanted 0 (as in the first sample) to {}", given.layers, kMaxInt32);
  }
  for (std::size_t l = 0; l < given.layer_numbers.size(); ++l) {
    if (given.layer_numbers[l] < 0) fail(where, "layers[{}]: found {}, wanted 0 or more", l, given.layer_numbers[l]);
  }
  state_->layers = given.layers;
  if (given.layers != 0) state_->check_layers(given.layers, where);
}

WindowBuilder::~WindowBuilder() = default;

CountReport WindowBuilder::add_routes(const SampleInfo& info, SampleRoutes routes, CountOptions options) {
  const WindowBuilderOptions& own = state_->options;
  const std::string where = info.id ? fmt::format("sample with id {}", *info.id) : "sample";
  if (options.experts != 0 && options.experts != own.experts) {
    fail(where, "experts: found {}, wanted {}", options.experts, own.experts);
  }
  options.experts = own.experts;
  if (routes.ids.top_k != own.top_k) {
    fail(where, "found {} ids per row, wanted top_k {}", routes.ids.top_k, own.top_k);
  }
  if (info.length < 1 || info.length > kMaxInt32) {
    fail(where, "length: found {}, wanted 1 to {}", info.length, kMaxInt32);
  }
  if (!routes.length) routes.length = info.length;
  replay::check_options(routes, options, where);
  const auto layers = static_cast<std::size_t>(counted_layers(routes.ids, options));
  std::vector<std::uint32_t> counts(layers * static_cast<std::size_t>(own.experts));
  CountReport report = count_routes(routes, options, counts, where);
  std::vector<std::int32_t> rows;
  for (const LayerReport& layer : report) rows.push_back(layer.recorded + layer.spread);
  state_->add(info, std::span<const std::uint32_t>(counts), rows);
  return report;
}

void WindowBuilder::add_counts(const SampleInfo& info, std::span<const std::uint32_t> counts,
                               std::span<const std::int32_t> recorded) {
  state_->add(info, counts, recorded);
}

void WindowBuilder::merge(const Window& part, const std::string& where) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  const WindowArrays& arrays = part.arrays();
  const WindowBuilderOptions& own = state.options;
  if (part.kind() == WindowKind::Aggregate) fail(where, "found an aggregate, wanted a window with samples");
  if (arrays.experts != own.experts) fail(where, "experts: found {}, wanted {}", arrays.experts, own.experts);
  if (arrays.top_k != own.top_k) fail(where, "top_k: found {}, wanted {}", arrays.top_k, own.top_k);
  if (!arrays.layer_numbers.empty() && !own.layer_numbers.empty() && arrays.layer_numbers != own.layer_numbers) {
    fail(where, "layers: found [{}], wanted [{}]", fmt::join(arrays.layer_numbers, ", "),
         fmt::join(own.layer_numbers, ", "));
  }
  if (!arrays.model.empty() && !own.model.empty() && arrays.model != own.model) {
    fail(where, "model: found {}, wanted {}", arrays.model, own.model);
  }
  if (!arrays.pad_counts.empty() && !std::ranges::equal(arrays.pad_counts, own.pad_counts)) {
    fail(where, "pad_counts: found other values, wanted those of the builder");
  }
  state.check_layers(arrays.layers, where);

  // Everything is checked before the first sample is kept.
  std::vector<SampleInfo> infos;
  std::vector<std::vector<std::int32_t>> rows;
  const auto layers = static_cast<std::size_t>(arrays.layers);
  for (const SampleId i : part.sample_ids()) {
    SampleInfo info{.length = part.length(i)};
    if (!arrays.ids.empty()) info.id = arrays.ids[i];
    if (!arrays.groups.empty()) info.group = arrays.groups[i];
    if (!arrays.atomic.empty()) info.atomic = arrays.atomic[i];
    const std::string sample = fmt::format("{}: {}", where, name_of_sample(info, i));
    state.check_info(info, sample);
    std::vector<std::int32_t> recorded;
    for (std::size_t l = 0; l < layers && !arrays.recorded.empty(); ++l) {
      recorded.push_back(*part.recorded(i, LayerId(l)));
    }
    rows.push_back(
        part.visit_counts(i, [&](auto counts) { return state.check_counts(info, counts, recorded, sample); }));
    infos.push_back(info);
  }
  std::vector<std::int64_t> sorted(arrays.ids.begin(), arrays.ids.end());
  std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    fail(where, "ids: found {} twice, wanted each id once", *twice);
  }
  const std::size_t before = state.kept.size();
  const std::uint64_t spilled = state.spill.end();
  try {
    for (const SampleId i : part.sample_ids()) {
      part.visit_counts(i, [&](auto counts) { state.keep(infos[i], counts, rows[i]); });
    }
  } catch (...) {  // the disk is full: all of the part or nothing of it
    state.forget_from(before);
    state.spill.rewind(spilled);
    throw;
  }
}

std::int64_t WindowBuilder::samples() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::int64_t>(state_->kept.size());
}

Window WindowBuilder::window() const {
  const std::lock_guard lock(state_->mutex);
  state_->require_samples();
  return state_->wide() ? state_->in_memory<std::uint32_t>() : state_->in_memory<std::uint16_t>();
}

void WindowBuilder::seal(const std::filesystem::path& path) {
  const std::lock_guard lock(state_->mutex);
  state_->require_samples();
  if (state_->wide()) {
    state_->write<std::uint32_t>(path);
  } else {
    state_->write<std::uint16_t>(path);
  }
  state_->clear();
}

}  // namespace routepack
