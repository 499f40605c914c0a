// SPDX-License-Identifier: Apache-2.0
// Named random streams: what a number is for decides its value, never who drew before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace routepack {

/// What a stream is used for. Part of the recipe: values must never be renumbered.
enum class Purpose : std::uint32_t {
  Popularity = 1,
  PromptPopularity = 2,
  Loadings = 3,
  Drift = 4,
  Topic = 5,
  GroupDeviation = 6,
  Variation = 7,
  RolloutDeviation = 8,
  PromptLength = 9,
  GroupLength = 10,
  RolloutLength = 11,
  PromptTokens = 12,
  AnswerTokens = 13,
};

/// Names one stream. The same name gives the same numbers on any machine and in any thread.
struct StreamName {
  std::int64_t seed = 0;
  Purpose purpose = Purpose::Popularity;
  std::int64_t step = 0;   ///< window of a run, below 2^32
  std::int64_t item = 0;   ///< prompt group or sample, below 2^32
  std::int64_t layer = 0;  ///< below 2^24
};

/// Philox4x32-10 (Salmon et al. 2011): the seed is the key, the name the counter. At most 2^34 numbers.
class RandomStream {
 public:
  explicit RandomStream(const StreamName& name);

  /// 32 random bits.
  std::uint32_t next() {
    if (used_ == buffer_.size()) refill();
    return buffer_[used_++];
  }
  /// A number of (0, 1), never an end: (bits + ½) / 2^32.
  double uniform() { return (static_cast<double>(next()) + 0.5) * 0x1p-32; }
  /// A standard normal number.
  double normal();
  /// Fills with standard normal numbers.
  void normals(std::span<double> values);

 private:
  void refill();

  static constexpr std::size_t kBuffered = 128;
  std::uint64_t key_ = 0;
  std::array<std::uint32_t, 4> counter_{};
  std::size_t used_ = kBuffered;
  std::size_t next_size_ = 4;  ///< grows, so that short streams stay cheap
  std::array<std::uint32_t, kBuffered> buffer_;
};

}  // namespace routepack
