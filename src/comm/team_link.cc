// SPDX-License-Identifier: Apache-2.0
#include "comm/team_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace routepack {

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

void TeamLink::exchange(Mail& mail) {
  struct Pending {
    Transport::Ticket ticket;
    std::int32_t peer;
    bool receives;
  };
  // A message to nobody is none; both sides know its size.
  std::vector<Pending> pending;
  const auto shared = std::make_shared<Mail>(std::move(mail));
  const auto fail = [&](std::int32_t peer, const std::string& why) {
    transport_.keep(shared);
    throw PeerLost(peer, why);
  };
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
      if (std::chrono::steady_clock::now() > last) {
        const Pending& message = pending.front();
        fail(message.peer,
             fmt::format("rank {} {} for {:.1f} s", message.peer, message.receives ? "was silent" : "took no message",
                         std::chrono::duration<double>(limit_).count()));
      }
      std::this_thread::yield();
    }
  } catch (const PeerLost&) {
    transport_.keep(shared);
    throw;
  }
  mail = std::move(*shared);
}

}  // namespace routepack
