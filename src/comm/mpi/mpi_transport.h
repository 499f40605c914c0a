// SPDX-License-Identifier: Apache-2.0
// The transport on MPI's point-to-point calls.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <chrono>
#include <deque>
#include <unordered_map>
#include <vector>

#include "comm/mpi/watchdog.h"
#include "routepack/transport.h"

namespace routepack {

/// Uses MPI_Isend, MPI_Irecv, MPI_Improbe, MPI_Imrecv and MPI_Test alone. Bulk messages and notes travel on
/// communicators of their own, so neither matches the other.
class MpiTransport final : public Transport {
 public:
  /// Collective: duplicates MPI_COMM_WORLD. @throws Error
  MpiTransport();

  [[nodiscard]] std::int32_t rank() const override { return rank_; }
  [[nodiscard]] std::int32_t ranks() const override { return ranks_; }

  /// Also InvalidInput for more than INT_MAX bytes.
  Ticket send(std::int32_t to, std::span<const std::byte> bytes) override;
  Ticket receive(std::int32_t from, std::span<std::byte> bytes) override;
  bool poll(Ticket ticket) override;
  void post(std::int32_t to, std::span<const std::byte> bytes) override;
  /// Never throws PeerLost for another rank: the notes of the living are heard to the end.
  std::optional<Note> note() override;

  /// What happens when MPI does not return from a call that must not wait.
  Watchdog& watchdog() { return watchdog_; }

  /// Nothing outstanding, and every rank said so too before `patience` was over: MPI_Finalize will not wait.
  bool say_goodbye(std::chrono::milliseconds patience) noexcept;

 private:
  struct Message {
    MPI_Request request = MPI_REQUEST_NULL;
    std::int32_t peer = 0;
    std::size_t size = 0;
    bool incoming = false;
  };
  struct NoteInTransit {
    MPI_Request request = MPI_REQUEST_NULL;
    Note note;
  };

  int checked(std::int32_t peer, std::size_t size) const;
  Ticket keep(Message message, int status, const char* what);
  void reap_notes();
  bool probe_notes(int source);

  Watchdog watchdog_;
  MPI_Comm bulk_ = MPI_COMM_NULL, notes_ = MPI_COMM_NULL;
  std::int32_t rank_ = 0, ranks_ = 0;
  Ticket last_ticket_ = 0;
  std::unordered_map<Ticket, Message> messages_;
  std::vector<std::deque<NoteInTransit>> outgoing_;  // [to]; in order, so only the first needs asking
  std::deque<NoteInTransit> incoming_;               // in the order of probing
  std::vector<bool> deaf_;                           // [from], ranks whose probes err: not asked again
  bool any_source_ = true;                           // a probe for all ranks at once still works
};

}  // namespace routepack
