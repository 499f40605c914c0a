// SPDX-License-Identifier: Apache-2.0
// The window: what one optimizer step will train on, with the routes that replay recorded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "routepack/ids.h"

namespace routepack {

/// Whether a window holds samples, or only the summed demand of many (N = 1; placement accepts it, packing refuses).
enum class WindowKind { Samples, Aggregate };

/// Routed-token counts a[i, l, e], C order [N, L, E], in the type they were stored in.
using CountArray = std::variant<std::span<const std::uint16_t>, std::span<const std::uint32_t>>;

/// Non-owning views of a window's tensors, before validation. Optional tensors are absent when empty.
struct WindowArrays {
  std::int64_t samples = 0;  ///< N
  std::int64_t layers = 0;   ///< L, MoE layers
  std::int64_t experts = 0;  ///< E, routed experts per layer
  std::int64_t top_k = 0;    ///< k, experts chosen per token
  WindowKind kind = WindowKind::Samples;

  std::span<const std::int32_t> lengths;      ///< [N] tokens, ≥ 1; may be absent in an aggregate
  CountArray counts;                          ///< [N, L, E]; empty in a window that was joined from parts
  std::span<const std::int32_t> recorded;     ///< [N] or [N, L] tokens with a recorded route
  std::span<const std::int32_t> groups;       ///< [N] prompt group or topic, for statistics only
  std::span<const std::int32_t> atomic;       ///< [N] equal values ≥ 0 must share a cell; −1 = free
  std::span<const std::uint32_t> pad_counts;  ///< [L, E] expert load of one padding token, in 1/65536
  std::span<const std::int64_t> ids;          ///< [N] the caller's sample ids

  std::string model;                        ///< free text, may be empty
  std::vector<std::int64_t> layer_numbers;  ///< [L] global layer numbers, or empty
  /// Other metadata of the file (source, licence, …), kept when the window is saved again.
  std::vector<std::pair<std::string, std::string>> metadata;
};

/// A validated, immutable window. Copies share the tensors; reading from several threads is safe.
///
/// A window may be joined from parts, windows themselves: its counts stay where the parts have them, and some parts may
/// have left theirs in other processes.
class Window {
 public:
  /// Checks `arrays` and keeps them alive through `owner`. One pass over the counts, no copy.
  /// @throws InvalidInput naming the tensor, the index, what was found and what was wanted; `where` (a file name, say)
  ///         goes in front.
  Window(WindowArrays arrays, std::shared_ptr<const void> owner, const std::string& where = "window");

  /// Memory-maps a `routepack.window/1` safetensors file, or the files that a `routepack.manifest/1` names
  /// (docs/formats.md). Counts are used in place.
  /// @throws IoError, FormatError, InvalidInput; also for a file that is not the one that the manifest means
  static Window load(const std::filesystem::path& path);

  /// The samples of `parts` one after another. Parts agree in L, E, top_k, kind, layer numbers, pad_counts and which
  /// tensors there are; the numbers of groups and atomic groups are each part's own, and renumbered.
  /// @param divided whether other processes that work with the window lack counts, so that it is not whole() here
  /// either
  /// @throws InvalidInput naming the part, `names[k]`, and what differs from the first
  static Window join(std::vector<Window> parts, std::span<const std::string> names, bool divided = false);

  /// A part whose counts are in another process, with the fingerprint that it has there.
  /// @throws InvalidInput as the constructor, but for what only counts can tell
  static Window without_counts(WindowArrays arrays, std::shared_ptr<const void> owner, std::string fingerprint,
                               const std::string& where);

  /// Writes the window as one `routepack.window/1` file; the file appears whole or not at all.
  /// @throws IoError; InvalidInput when counts are in another process
  void save(const std::filesystem::path& path) const;

  [[nodiscard]] std::int32_t samples() const { return static_cast<std::int32_t>(arrays_.samples); }
  [[nodiscard]] std::int32_t layers() const { return static_cast<std::int32_t>(arrays_.layers); }
  [[nodiscard]] std::int32_t experts() const { return static_cast<std::int32_t>(arrays_.experts); }
  [[nodiscard]] std::int32_t top_k() const { return static_cast<std::int32_t>(arrays_.top_k); }
  [[nodiscard]] WindowKind kind() const { return arrays_.kind; }
  [[nodiscard]] const WindowArrays& arrays() const { return arrays_; }

  [[nodiscard]] IdRange<SampleId> sample_ids() const { return IdRange<SampleId>(arrays_.samples); }
  [[nodiscard]] IdRange<LayerId> layer_ids() const { return IdRange<LayerId>(arrays_.layers); }
  [[nodiscard]] IdRange<ExpertId> expert_ids() const { return IdRange<ExpertId>(arrays_.experts); }

  /// Tokens of a sample, t_i. An index at or past N is a dummy: one token without routes (docs/formats.md).
  [[nodiscard]] std::int32_t length(SampleId i) const {
    return i.value() < samples() ? arrays_.lengths[i] : std::int32_t{1};
  }
  /// Tokens of a sample whose route at a layer was recorded; empty when the window does not say.
  [[nodiscard]] std::optional<std::int32_t> recorded(SampleId i, LayerId l) const;
  /// True when the window says that no layer of the sample has a recorded route.
  [[nodiscard]] bool lacks_routes(SampleId i) const;
  /// The atomic group of a sample, −1 when it is free.
  [[nodiscard]] std::int32_t atomic_group(SampleId i) const {
    return arrays_.atomic.empty() || i.value() >= samples() ? -1 : arrays_.atomic[i];
  }

  /// The windows that this one was joined from, in the order of their samples; else this one.
  [[nodiscard]] std::span<const Window> parts() const& { return parts_.empty() ? std::span(this, 1) : parts_; }
  void parts() const&& = delete;  // they would be gone
  /// Whether all counts are in each process that works with the window: what is added up over samples is then known to
  /// all. The same in all members of a team, see load_window(); also in one that holds all counts while others do not.
  [[nodiscard]] bool whole() const { return whole_; }
  /// Whether all counts are in this process.
  [[nodiscard]] bool counts_here() const {
    return whole_ || (!parts_.empty() && std::ranges::all_of(parts_, [](const Window& part) { return part.whole_; }));
  }
  /// Whether the counts of a sample are in this process.
  [[nodiscard]] bool holds(SampleId i) const { return whole_ || part_of(i).first.whole_; }

  /// Calls `f(span of L·E counts)` with the counts of one sample in their stored type.
  /// @throws InvalidInput unless holds(i)
  template <class F>
  decltype(auto) visit_counts(SampleId i, F&& f) const {
    const auto [part, at] = part_of(i);
    if (!part.whole_) throw_not_here(i);
    const std::size_t size = static_cast<std::size_t>(arrays_.layers * arrays_.experts);
    return std::visit([&](auto all) -> decltype(auto) { return f(all.subspan(at * size, size)); }, part.arrays_.counts);
  }

  /// «xxh3:» and 16 hex digits over the content, independent of file layout and stored types (docs/formats.md).
  /// Streams over the counts at each call, unless it is known.
  [[nodiscard]] std::string fingerprint() const;
  /// The same window, which knows its fingerprint. Those of windows from a manifest do.
  [[nodiscard]] Window with_fingerprint() const;

 private:
  Window(WindowArrays arrays, std::shared_ptr<const void> owner, std::vector<Window> parts);
  [[noreturn]] static void throw_not_here(SampleId i);

  /// The part that holds a sample, and the sample's index there.
  [[nodiscard]] std::pair<const Window&, std::size_t> part_of(SampleId i) const {
    if (parts_.empty()) return {*this, static_cast<std::size_t>(i.value())};
    const auto behind = std::ranges::upper_bound(first_of_part_, i.value());
    const auto k = static_cast<std::size_t>(behind - first_of_part_.begin()) - 1;
    return {parts_[k], static_cast<std::size_t>(i.value() - first_of_part_[k])};
  }

  WindowArrays arrays_;
  std::shared_ptr<const void> owner_;
  std::vector<Window> parts_;                // of a joined window
  std::vector<std::int32_t> first_of_part_;  // their first samples
  std::string fingerprint_;                  // when it is known already
  bool whole_ = true;
};

}  // namespace routepack
