// SPDX-License-Identifier: Apache-2.0
// From the expert ids that routing replay recorded to the counts of a window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "routepack/window.h"

namespace routepack {

/// Types in which frameworks send expert ids, little-endian.
enum class IdType { U8, I8, U16, I16, I32, I64 };
std::size_t size_of(IdType type);
/// As numpy spells it, "uint8" for instance.
std::string_view name_of(IdType type);

/// Experts (or physical slots) per layer that can be counted at most.
inline constexpr std::int64_t kMaxCountedExperts = 65536;

/// A view of the ids of one sample, [tokens, layers, top_k]. Strides are in bytes and may be anything, also negative;
/// nothing needs to be aligned.
struct RouteIds {
  const std::byte* data = nullptr;  ///< the id of token 0, layer 0, choice 0
  IdType type = IdType::I32;
  std::int64_t tokens = 0;
  std::int64_t layers = 0;
  std::int64_t top_k = 0;
  std::int64_t token_stride = 0;
  std::int64_t layer_stride = 0;
  std::int64_t id_stride = 0;

  /// Raw bytes in C order. Without `tokens` there are as many as the bytes hold.
  /// @throws InvalidInput, with `where` in front, unless the number of bytes is tokens · layers · top_k · size of an
  /// id.
  static RouteIds from_bytes(std::span<const std::byte> bytes, IdType type, std::int64_t layers, std::int64_t top_k,
                             std::optional<std::int64_t> tokens = std::nullopt, const std::string& where = "ids");
};

/// What becomes of a token whose route at a layer is not known.
enum class MissingRoutes {
  LeaveOut,  ///< it adds no load
  Spread,    ///< it adds top_k ids, distributed like the known routes of the same sample and layer
  Refuse
};
/// What becomes of a row with an id that no expert has, or with −1 beside ids.
enum class InvalidRoutes { Refuse, LeaveOut };

struct CountOptions {
  std::int64_t experts = 0;  ///< E
  /// Indices into the layer axis of the ids, in the order of the result; empty: all. For tensors that hold dense
  /// layers.
  std::vector<std::int64_t> layers = {};
  MissingRoutes missing = MissingRoutes::LeaveOut;
  InvalidRoutes invalid = InvalidRoutes::Refuse;
  /// When ids are physical: the logical expert in each slot, [layers of the result, slots]; several slots may hold the
  /// same expert. Empty: ids are logical.
  std::span<const std::int32_t> physical_to_logical = {};
};

/// The routes of one sample and which of its tokens count.
struct SampleRoutes {
  RouteIds ids;
  /// The sample's tokens when there may be more than rows of ids: rows at the end that were never recorded (the last
  /// sampled token, for instance) are missing. Unset: as many as rows.
  std::optional<std::int64_t> length = std::nullopt;
  /// One byte per token (of `length`, or of the rows): 0 leaves the token out. Empty: all count.
  std::span<const std::uint8_t> mask = {};
};

/// What the rows of one sample and layer were. recorded + missing() = tokens that count.
struct LayerReport {
  std::int32_t recorded = 0;    ///< rows that were counted
  std::int32_t absent = 0;      ///< tokens beyond the last row
  std::int32_t sentinel = 0;    ///< rows of −1
  std::int32_t zero = 0;        ///< rows of nothing but 0 («not captured»); with top_k = 1 only when the whole layer is
  std::int32_t invalid = 0;     ///< rows left out because of InvalidRoutes::LeaveOut
  std::int32_t spread = 0;      ///< missing rows whose load was spread
  std::int32_t duplicates = 0;  ///< recorded rows that name an expert twice; they are counted as they are
  [[nodiscard]] std::int32_t missing() const { return absent + sentinel + zero + invalid; }
  friend bool operator==(const LayerReport&, const LayerReport&) = default;
};
using CountReport = std::vector<LayerReport>;  ///< one per counted layer

/// Runs body(0) … body(count − 1), possibly at the same time, and rethrows the exception of the least index. An empty
/// function runs them one after another.
using ParallelFor = std::function<void(std::size_t count, const std::function<void(std::size_t)>& body)>;

/// Layers that will be counted: the selected ones, or all of the ids.
std::int64_t counted_layers(const RouteIds& ids, const CountOptions& options);

/// Counts one sample into `counts` [L, E], which is overwritten. One pass over the ids; memory besides: a block of
/// rows.
/// @throws InvalidInput «where, layer l, token t: found …, wanted …»; l counts on the ids' layer axis
CountReport count_routes(const SampleRoutes& sample, const CountOptions& options, std::span<std::uint32_t> counts,
                         const std::string& where = "ids");

/// Counts many samples into `counts` [N, L, E]. All have equally many layers and the same top_k.
/// @throws InvalidInput naming the sample «where[i]»; which one of several bad samples is the first by index
std::vector<CountReport> count_routes_batch(std::span<const SampleRoutes> samples, const CountOptions& options,
                                            std::span<std::uint32_t> counts, const ParallelFor& parallel = {},
                                            const std::string& where = "ids");

/// What a window says of a sample beside its counts.
struct SampleInfo {
  std::int64_t length = 0;                            ///< tokens that will be trained, ≥ 1
  std::optional<std::int64_t> id = std::nullopt;      ///< the caller's; all samples of a window have one, or none
  std::optional<std::int32_t> group = std::nullopt;   ///< −1 in the window where others have one
  std::optional<std::int32_t> atomic = std::nullopt;  ///< ≥ 0: must share a cell with equal values
};

struct WindowBuilderOptions {
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::int64_t layers = 0;  ///< 0: as many as the first sample has
  std::string model = {};
  std::vector<std::int64_t> layer_numbers = {};  ///< global numbers of the layers, or empty
  std::vector<std::uint32_t> pad_counts = {};    ///< [L, E], or empty
  /// Counts beyond this many bytes wait in an unnamed temporary file.
  std::size_t memory_bytes = std::size_t{64} << 20;
  std::filesystem::path spill_folder = {};  ///< empty: the system's folder for temporary files
};

/// Collects samples as rollouts finish, and seals them into a window. Safe to use from several threads; counting runs
/// outside the lock. Memory: memory_bytes, and 4·L + about 100 bytes per sample. A call that throws changes nothing.
///
/// The window's samples are in the order of their ids, or of arrival when they have none; counts are stored as U16 when
/// all fit.
class WindowBuilder {
 public:
  /// @throws InvalidInput
  explicit WindowBuilder(WindowBuilderOptions options);
  ~WindowBuilder();
  WindowBuilder(const WindowBuilder&) = delete;
  WindowBuilder& operator=(const WindowBuilder&) = delete;

  /// Counts the routes of a sample and keeps the result. `options.experts` may be left 0.
  /// @throws InvalidInput, IoError (spilling)
  CountReport add_routes(const SampleInfo& info, SampleRoutes routes, CountOptions options);
  /// Keeps counts [L, E]. `recorded`: [L] or [1] rows they were counted from; empty: Σ counts / top_k, which must be
  /// whole.
  void add_counts(const SampleInfo& info, std::span<const std::uint32_t> counts,
                  std::span<const std::int32_t> recorded = {});
  /// Adds every sample of a window: the partial result of another worker.
  /// @throws InvalidInput when E, top_k, L, layer numbers, model or pad_counts contradict; `where` goes in front
  void merge(const Window& part, const std::string& where = "window");

  [[nodiscard]] std::int64_t samples() const;
  /// The window so far; the builder keeps its samples. @throws InvalidInput when it is empty
  [[nodiscard]] Window window() const;
  /// Writes the window whole or not at all, and starts the next one empty. When that fails, nothing is lost.
  /// @throws InvalidInput when it is empty; IoError
  void seal(const std::filesystem::path& path);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// One window of all samples of `parts`, part after part. Optional tensors are kept when any part has them: groups and
/// atomic are filled up with −1, and equal values mean the same in all parts; ids must be in all parts or in none.
/// @throws InvalidInput when the parts differ in E, top_k, L, layer numbers, model or pad_counts, or share an id;
///         aggregates cannot be joined
Window join_windows(std::span<const Window> parts);

}  // namespace routepack
