// SPDX-License-Identifier: Apache-2.0
// What the ranks of a grid tell each other in notes: joined records, checksums, and where everybody stands after a
// failure.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include "routepack/transfer_engine.h"

namespace routepack {

/// A failure as it travels. Ordered by how much it explains: something concrete before a silence, then by rank and
/// place, so that all ranks pick the same one.
struct FailureRecord {
  static constexpr std::size_t kMostText = 400;
  std::uint8_t present = 0;
  std::uint8_t silence = 0;  ///< only that somebody did not answer in time
  std::int32_t phase = 0, rank = -1, layer = -1, expert = -1, tensor = -1;
  std::array<char, kMostText> what{};

  FailureRecord() = default;
  FailureRecord(const TransferFailure& failure, bool is_silence);
  [[nodiscard]] TransferFailure failure() const;
  /// Keeps the one that explains more.
  void join(const FailureRecord& other);
};

/// Where a rank stands when something went wrong.
struct Standing {
  std::int32_t decided = 0;  ///< units that this rank knows everyone voted for
  std::uint8_t agreed = 0;   ///< the ranks ended this together: nobody has to stop because of this note
  FailureRecord failure;
};

class Council {
 public:
  explicit Council(Postbox& postbox) : postbox_(postbox) {}

  /// A new move; notes of earlier ones are forgotten.
  void open(std::uint32_t move);
  /// Takes in the notes that have arrived. @returns whether there were any
  bool listen();

  [[nodiscard]] std::int32_t rank() const { return postbox_.rank(); }
  [[nodiscard]] std::int32_t ranks() const { return postbox_.ranks(); }

  /// One step of joining a record over all ranks by dissemination: ⌈log₂ N⌉ notes each. `join` must be associative,
  /// commutative and idempotent.
  template <class Record>
  class Joining {
   public:
    Joining(Council& council, std::uint32_t topic, const Record& mine)
        : council_(council), topic_(topic), record_(mine) {
      static_assert(std::is_trivially_copyable_v<Record>);
      tell();
    }
    /// @returns whether all ranks are in
    template <class Join>
    bool advance(const Join& join, bool& progressed) {
      while (distance_ < council_.ranks()) {
        const std::int32_t from = waiting_for();
        Record other;
        if (!council_.take(kVote, topic_, step_, from, std::as_writable_bytes(std::span(&other, 1)))) return false;
        join(record_, other);
        progressed = true;
        distance_ *= 2;
        ++step_;
        tell();
      }
      return true;
    }
    [[nodiscard]] std::int32_t waiting_for() const {
      return (council_.rank() - distance_ % council_.ranks() + council_.ranks()) % council_.ranks();
    }
    [[nodiscard]] const Record& record() const { return record_; }

   private:
    void tell() {
      if (distance_ >= council_.ranks()) return;
      council_.post((council_.rank() + distance_) % council_.ranks(), kVote, topic_, step_,
                    std::as_bytes(std::span(&record_, 1)));
    }
    Council& council_;
    std::uint32_t topic_;
    Record record_;
    std::int32_t distance_ = 1;
    std::uint32_t step_ = 0;
  };

  /// Checksums of a hop for one peer, in the order of the schedule.
  void send_checksums(std::int32_t to, std::uint32_t topic, std::span<const std::uint64_t> values);
  /// Appends what has come from a peer for a topic. @returns whether anything was new
  bool take_checksums(std::int32_t from, std::uint32_t topic, std::vector<std::uint64_t>& values);

  /// Tells everybody where this rank stands: round 0 on its own account, round 1 with what round 0 brought.
  void declare(std::uint32_t round, const Standing& standing);
  /// What a rank declared, if it did.
  [[nodiscard]] std::optional<Standing> standing_of(std::int32_t rank, std::uint32_t round) const;
  /// Whether anybody has left the move on its own account.
  [[nodiscard]] bool somebody_stopped() const { return stopped_; }

 private:
  enum Kind : std::uint8_t { kVote, kChecksums, kStanding };
  using Key = std::tuple<std::uint8_t, std::uint32_t, std::uint32_t, std::int32_t>;  // kind, topic, step, from

  void post(std::int32_t to, Kind kind, std::uint32_t topic, std::uint32_t step, std::span<const std::byte> payload);
  bool take(Kind kind, std::uint32_t topic, std::uint32_t step, std::int32_t from, std::span<std::byte> into);
  void look_for_stops();

  Postbox& postbox_;
  std::uint32_t move_ = 0;
  bool stopped_ = false;
  std::map<std::uint32_t, std::map<Key, std::deque<std::vector<std::byte>>>> inbox_;  // by move
};

}  // namespace routepack
