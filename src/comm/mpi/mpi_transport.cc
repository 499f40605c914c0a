// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <string>
#include <thread>
#include <utility>

#include "core/assert.h"

namespace routepack {
namespace {

constexpr int kTag = 0;
/// Between the last message and MPI_Finalize. MPICH before 4.2 over UCX and TCP: a rank in MPI_Finalize waits for
/// answers to what it sends there, and ranks that are done there answer no more (pmodels/mpich pull request 6596). A
/// rank that is still busy with MPI answers early and comes late, and waits for ever. When none has driven MPI since
/// the goodbye, every rank sends before it answers, and none is late.
constexpr std::chrono::milliseconds kSilence{200};

std::string text_of(int error) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) return fmt::format("MPI error {}", error);
  std::string line(text, static_cast<std::size_t>(length));
  std::ranges::replace(line, '\n', ' ');
  return line;
}

bool cut_short(int error) {
  int kind = MPI_SUCCESS;
  return MPI_Error_class(error, &kind) == MPI_SUCCESS && kind == MPI_ERR_TRUNCATE;
}

MPI_Comm duplicate_of_world() {
  MPI_Comm copy = MPI_COMM_NULL;
  int status = MPI_Comm_dup(MPI_COMM_WORLD, &copy);
  if (status == MPI_SUCCESS) status = MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  if (status != MPI_SUCCESS) throw Error(fmt::format("MPI: no communicator: {}", text_of(status)));
  return copy;
}

}  // namespace

MpiTransport::MpiTransport() : bulk_(duplicate_of_world()), notes_(duplicate_of_world()) {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(bulk_, &rank);
  MPI_Comm_size(bulk_, &ranks);
  rank_ = rank;
  ranks_ = ranks;
  outgoing_.resize(static_cast<std::size_t>(ranks));
  deaf_.resize(static_cast<std::size_t>(ranks));
}

/// The count for MPI.
int MpiTransport::checked(std::int32_t peer, std::size_t size) const {
  if (peer < 0 || peer >= ranks_) throw InvalidInput(fmt::format("found rank {}, wanted 0 to {}", peer, ranks_ - 1));
  if (peer == rank_) throw InvalidInput(fmt::format("rank {}: found itself as the peer of a bulk message", rank_));
  if (size > INT_MAX) {
    throw InvalidInput(fmt::format("message with rank {}: found {} bytes, wanted at most {}", peer, size, INT_MAX));
  }
  return static_cast<int>(size);
}

Transport::Ticket MpiTransport::keep(Message message, int status, const char* what) {
  if (status != MPI_SUCCESS) {
    throw PeerLost(message.peer, fmt::format("rank {}: {} failed: {}", message.peer, what, text_of(status)));
  }
  messages_.emplace(++last_ticket_, message);
  return last_ticket_;
}

Transport::Ticket MpiTransport::send(std::int32_t to, std::span<const std::byte> bytes) {
  const Watchdog::Call call(watchdog_);
  Message message{.peer = to, .size = bytes.size(), .incoming = false};
  const int count = checked(to, bytes.size());
  const int status = MPI_Isend(bytes.data(), count, MPI_BYTE, to, kTag, bulk_, &message.request);
  return keep(message, status, "sending to it");
}

Transport::Ticket MpiTransport::receive(std::int32_t from, std::span<std::byte> bytes) {
  const Watchdog::Call call(watchdog_);
  Message message{.peer = from, .size = bytes.size(), .incoming = true};
  const int count = checked(from, bytes.size());
  const int status = MPI_Irecv(bytes.data(), count, MPI_BYTE, from, kTag, bulk_, &message.request);
  return keep(message, status, "receiving from it");
}

bool MpiTransport::poll(Ticket ticket) {
  const Watchdog::Call call(watchdog_);
  const auto found = messages_.find(ticket);
  ROUTEPACK_ASSERT(found != messages_.end(), fmt::format("rank {}: no ticket {}", rank_, ticket));
  int done = 0;
  MPI_Status status{};
  const int error = MPI_Test(&found->second.request, &done, &status);
  if (error == MPI_SUCCESS && done == 0) return false;
  const Message message = found->second;
  messages_.erase(found);
  if (error != MPI_SUCCESS) {
    if (message.incoming && cut_short(error)) {
      throw FormatError(fmt::format("message from rank {} to rank {}: found more bytes, wanted {}", message.peer, rank_,
                                    message.size));
    }
    throw PeerLost(message.peer, fmt::format("rank {}: {} failed: {}", message.peer,
                                             message.incoming ? "receiving from it" : "sending to it", text_of(error)));
  }
  if (message.incoming) {
    int size = 0;
    MPI_Get_count(&status, MPI_BYTE, &size);
    if (std::cmp_not_equal(size, message.size)) {
      throw FormatError(fmt::format("message from rank {} to rank {}: found {} bytes, wanted {}", message.peer, rank_,
                                    size, message.size));
    }
  }
  return true;
}

void MpiTransport::post(std::int32_t to, std::span<const std::byte> bytes) {
  const Watchdog::Call call(watchdog_);
  if (to < 0 || to >= ranks_) throw InvalidInput(fmt::format("found rank {}, wanted 0 to {}", to, ranks_ - 1));
  if (bytes.size() > kMostNoteBytes) {
    throw InvalidInput(
        fmt::format("note to rank {}: found {} bytes, wanted at most {}", to, bytes.size(), kMostNoteBytes));
  }
  reap_notes();
  if (to == rank_) {
    incoming_.push_back({.note = {.from = rank_, .bytes{bytes.begin(), bytes.end()}}});
    return;
  }
  auto& queue = outgoing_[static_cast<std::size_t>(to)];
  NoteInTransit& out = queue.emplace_back(NoteInTransit{.note = {.from = to, .bytes{bytes.begin(), bytes.end()}}});
  const int count = static_cast<int>(bytes.size());
  if (MPI_Isend(out.note.bytes.data(), count, MPI_BYTE, to, kTag, notes_, &out.request) != MPI_SUCCESS) {
    queue.pop_back();  // best effort: who waits for an answer will see the silence
  }
}

/// Forgets the notes that MPI has no more need of.
void MpiTransport::reap_notes() {
  for (auto& queue : outgoing_) {
    while (!queue.empty()) {
      int done = 0;
      const int error = MPI_Test(&queue.front().request, &done, MPI_STATUS_IGNORE);
      if (error == MPI_SUCCESS && done == 0) break;
      queue.pop_front();
    }
  }
}

/// Whether the probe itself worked; what it found has joined incoming_.
bool MpiTransport::probe_notes(int source) {
  for (;;) {
    int there = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status{};
    if (MPI_Improbe(source, kTag, notes_, &there, &message, &status) != MPI_SUCCESS) return false;
    if (there == 0) return true;
    int size = 0;
    MPI_Get_count(&status, MPI_BYTE, &size);
    NoteInTransit& in = incoming_.emplace_back();
    in.note.from = status.MPI_SOURCE;
    in.note.bytes.resize(static_cast<std::size_t>(size));
    if (MPI_Imrecv(in.note.bytes.data(), size, MPI_BYTE, &message, &in.request) != MPI_SUCCESS) incoming_.pop_back();
  }
}

std::optional<Note> MpiTransport::note() {
  const Watchdog::Call call(watchdog_);
  reap_notes();
  if (any_source_) any_source_ = probe_notes(MPI_ANY_SOURCE);
  if (!any_source_) {  // some rank is lost, and MPI does not say which: ask one by one
    for (int source = 0; source < ranks_; ++source) {
      const auto index = static_cast<std::size_t>(source);
      if (source != rank_ && !deaf_[index]) deaf_[index] = !probe_notes(source);
    }
  }
  while (!incoming_.empty()) {
    NoteInTransit& first = incoming_.front();
    int done = 1;
    const int error = MPI_Test(&first.request, &done, MPI_STATUS_IGNORE);  // at once true for MPI_REQUEST_NULL
    if (error == MPI_SUCCESS && done == 0) return std::nullopt;
    Note note = std::move(first.note);
    incoming_.pop_front();
    if (error == MPI_SUCCESS) return note;
  }
  return std::nullopt;
}

bool MpiTransport::say_goodbye(std::chrono::milliseconds patience) noexcept {
  if (!messages_.empty() || !incoming_.empty()) return false;
  const auto last = std::chrono::steady_clock::now() + patience;
  // The barrier runs on the communicator of the notes, beside the notes: collectives match apart from messages.
  MPI_Request barrier = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(notes_, &barrier) != MPI_SUCCESS) return false;
  for (;;) {
    const Watchdog::Call call(watchdog_);
    reap_notes();
    int met = 0;
    if (MPI_Test(&barrier, &met, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    const bool sent = std::ranges::all_of(outgoing_, [](const auto& queue) { return queue.empty(); });
    if (met != 0 && sent) break;
    if (std::chrono::steady_clock::now() > last) return false;
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(kSilence);
  return true;
}

}  // namespace routepack
