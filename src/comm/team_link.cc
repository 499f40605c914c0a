// SPDX-License-Identifier: Apache-2.0
#include "comm/team_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "core/bytes.h"
#include "routepack/error.h"

namespace routepack {
namespace {

/// In front of notes that name a lost member.
constexpr std::uint64_t kLostNote = 0x74736f4c6d616554;  // «TeamLost»

}  // namespace

/// One message to every other member and one from each. It outlives a failed call: the transport may still touch it.
struct TeamLink::Mail {
  explicit Mail(std::size_t members) : out(members), in(members) {}
  /// Keeps a copy, to be sent to everyone or in pieces.
  std::span<const std::byte> keep(std::span<const std::byte> bytes) {
    kept.assign(bytes.begin(), bytes.end());
    return kept;
  }

  std::vector<std::byte> kept;
  std::vector<std::span<const std::byte>> out;  // [rank], pieces of `kept`
  std::vector<std::vector<std::byte>> in;       // [rank], as long as what will come
};

std::vector<std::vector<std::byte>> TeamLink::all_gather(std::span<const std::byte> mine) {
  const auto count = static_cast<std::size_t>(ranks());
  const auto me = static_cast<std::size_t>(rank());
  const std::uint64_t size = mine.size();
  Mail sizes(count);
  std::ranges::fill(sizes.out, sizes.keep(std::as_bytes(std::span(&size, 1))));
  for (auto& in : sizes.in) in.resize(sizeof size);
  exchange(sizes);
  Mail mail(count);
  std::ranges::fill(mail.out, mail.keep(mine));
  for (std::size_t r = 0; r < count; ++r) {
    if (r == me) continue;
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, sizes.in[r].data(), sizeof theirs);
    mail.in[r].resize(theirs);
  }
  exchange(mail);
  mail.in[me] = std::move(mail.kept);
  return std::move(mail.in);
}

template <class T>
void TeamLink::sum_in_parts(std::span<T> values) {
  const auto count = static_cast<std::size_t>(ranks());
  const auto me = static_cast<std::size_t>(rank());
  constexpr std::size_t kAtOnce = std::size_t{1} << 22;
  while (!values.empty()) {
    const auto piece = values.first(std::min(kAtOnce, values.size()));
    values = values.subspan(piece.size());
    const auto part = [&](std::size_t r) {
      const std::size_t first = piece.size() * r / count;
      return piece.subspan(first, piece.size() * (r + 1) / count - first);
    };
    Mail parts(count);
    const auto all = parts.keep(std::as_bytes(piece));
    for (std::size_t r = 0; r < count; ++r) {
      parts.out[r] = all.subspan(piece.size() * r / count * sizeof(T), part(r).size_bytes());
      parts.in[r].resize(part(me).size_bytes());
    }
    exchange(parts);
    std::vector<T> theirs(part(me).size());
    for (std::size_t r = 0; r < count; ++r) {
      if (r == me || theirs.empty()) continue;
      std::memcpy(theirs.data(), parts.in[r].data(), parts.in[r].size());
      for (std::size_t i = 0; i < theirs.size(); ++i) part(me)[i] += theirs[i];
    }
    Mail sums(count);
    std::ranges::fill(sums.out, sums.keep(std::as_bytes(part(me))));
    for (std::size_t r = 0; r < count; ++r) sums.in[r].resize(part(r).size_bytes());
    exchange(sums);
    for (std::size_t r = 0; r < count; ++r) {
      if (r != me && !part(r).empty()) std::memcpy(part(r).data(), sums.in[r].data(), sums.in[r].size());
    }
  }
}

void TeamLink::sum(std::span<std::int64_t> values) {
  sum_in_parts(values);
}

void TeamLink::sum(std::span<std::int32_t> values) {
  sum_in_parts(values);
}

/// Tells the others who is lost, so that all end with one name. Best effort.
void TeamLink::tell_of_lost(std::int32_t lost) {
  if (lost == rank()) return;  // nobody hears this rank
  std::vector<std::byte> note;
  put(note, kLostNote);
  put(note, lost);
  try {
    for (std::int32_t peer = 0; peer < ranks(); ++peer) {
      if (peer != rank() && peer != lost) transport_.post(peer, note);
    }
    // NOLINTNEXTLINE(bugprone-empty-catch): the others will notice by themselves, later.
  } catch (const Error&) {
  }
}

/// Who is lost, as another member says.
std::optional<PeerLost> TeamLink::heard_of_lost() {
  while (const auto note = transport_.note()) {
    if (note->bytes.size() != sizeof kLostNote + sizeof(std::int32_t)) continue;
    ByteReader reader(note->bytes);
    if (reader.get<std::uint64_t>() != kLostNote) continue;
    const auto lost = reader.get<std::int32_t>();
    return PeerLost(lost, lost == rank() ? fmt::format("rank {} took this rank, {}, for lost", note->from, lost)
                                         : fmt::format("rank {} is lost, as rank {} says", lost, note->from));
  }
  return std::nullopt;
}

void TeamLink::exchange(Mail& mail) {
  struct Pending {
    Transport::Ticket ticket;
    std::int32_t peer;
    bool receives;
  };
  // A message to nobody is none; both sides know its size.
  std::vector<Pending> pending;
  const auto shared = std::make_shared<Mail>(std::move(mail));
  std::optional<PeerLost> heard;
  try {
    for (std::int32_t peer = 0; peer < ranks(); ++peer) {
      if (peer == rank()) continue;
      auto& in = shared->in[static_cast<std::size_t>(peer)];
      if (!in.empty()) pending.push_back({transport_.receive(peer, in), peer, true});
      const auto out = shared->out[static_cast<std::size_t>(peer)];
      if (out.empty()) continue;
      pending.push_back({transport_.send(peer, out), peer, false});
      sent_bytes_ += static_cast<std::int64_t>(out.size());
    }
    const auto last = std::chrono::steady_clock::now() + limit_;
    while (!pending.empty()) {
      std::erase_if(pending, [&](const Pending& message) { return transport_.poll(message.ticket); });
      if (pending.empty()) break;
      heard = heard_of_lost();
      if (heard) throw PeerLost(*heard);
      if (std::chrono::steady_clock::now() > last) {
        const Pending& message = pending.front();
        throw PeerLost(message.peer, fmt::format("rank {} {} for {:.1f} s", message.peer,
                                                 message.receives ? "was silent" : "took no message",
                                                 std::chrono::duration<double>(limit_).count()));
      }
      std::this_thread::yield();
    }
  } catch (const PeerLost& error) {
    transport_.keep(shared);
    if (!heard) tell_of_lost(error.rank());
    throw;
  }
  mail = std::move(*shared);
}

}  // namespace routepack
