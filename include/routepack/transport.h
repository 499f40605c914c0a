// SPDX-License-Identifier: Apache-2.0
// What the data plane asks of a network: bulk messages in order, small notes, and never a call that waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "routepack/error.h"

namespace routepack {

/// A peer, or the link to it, is known to be gone. what() names the rank.
class PeerLost : public Error {
 public:
  PeerLost(std::int32_t rank, const std::string& what) : Error(what), rank_(rank) {}
  [[nodiscard]] std::int32_t rank() const { return rank_; }

 private:
  std::int32_t rank_;
};

/// A small message that nobody had to ask for.
struct Note {
  std::int32_t from = 0;
  std::vector<std::byte> bytes;
};

/// One rank's letter box: small notes from anyone to anyone, never a call that waits. Not thread-safe: one thread per
/// end.
class Postbox {
 public:
  static constexpr std::size_t kMostNoteBytes = 1024;

  Postbox() = default;
  Postbox(const Postbox&) = delete;
  Postbox& operator=(const Postbox&) = delete;
  virtual ~Postbox() = default;

  [[nodiscard]] virtual std::int32_t rank() const = 0;
  [[nodiscard]] virtual std::int32_t ranks() const = 0;
  /// Sends a copy of at most kMostNoteBytes; best effort, in order per pair, never waits for the peer. A peer that is
  /// gone is no error. To oneself is allowed.
  virtual void post(std::int32_t to, std::span<const std::byte> bytes) = 0;
  /// The next note that has arrived.
  virtual std::optional<Note> note() = 0;

  /// Numbers the moves over this box, whichever engine makes them, so that notes of one are not taken for another's.
  std::uint32_t next_move() { return ++moves_; }

 private:
  std::uint32_t moves_ = 0;
};

/// One rank's end of a network that also carries bulk messages. Every call returns at once; waiting is the caller's,
/// with a deadline.
class Transport : public Postbox {
 public:
  using Ticket = std::uint64_t;

  /// Starts a bulk message. Messages between two ranks match in the order in which each side started them; the sizes
  /// of both sides must agree. `bytes` must stay as they are until poll() said true, or the transport is destroyed.
  /// @throws PeerLost, InvalidInput for a rank that does not exist or this one
  virtual Ticket send(std::int32_t to, std::span<const std::byte> bytes) = 0;
  virtual Ticket receive(std::int32_t from, std::span<std::byte> bytes) = 0;
  /// Whether it is done; a ticket that is done is forgotten. Also drives progress.
  /// @throws PeerLost; FormatError when the message had another size
  virtual bool poll(Ticket ticket) = 0;

  /// Memory that unfinished messages may still touch: let go only after the transport has been destroyed.
  void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

 private:
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace routepack
