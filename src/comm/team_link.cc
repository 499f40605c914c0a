// SPDX-License-Identifier: Apache-2.0
#include "comm/team_link.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

namespace routepack {

/// One message to every other member and one from each. It outlives a failed call: the transport may still touch it.
struct TeamLink::Mail {
  std::vector<std::byte> out;
  std::vector<std::vector<std::byte>> in;  // [rank], as long as what will come
};

std::vector<std::vector<std::byte>> TeamLink::all_gather(std::span<const std::byte> mine) {
  const auto count = static_cast<std::size_t>(ranks());
  const auto me = static_cast<std::size_t>(rank());
  Mail sizes{.out = std::vector<std::byte>(sizeof(std::uint64_t)),
             .in = std::vector<std::vector<std::byte>>(count, std::vector<std::byte>(sizeof(std::uint64_t)))};
  const std::uint64_t size = mine.size();
  std::memcpy(sizes.out.data(), &size, sizeof size);
  exchange(sizes);
  Mail mail{.out = {mine.begin(), mine.end()}, .in = std::vector<std::vector<std::byte>>(count)};
  for (std::size_t r = 0; r < count; ++r) {
    if (r == me) continue;
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, sizes.in[r].data(), sizeof theirs);
    mail.in[r].resize(theirs);
  }
  exchange(mail);
  mail.in[me] = std::move(mail.out);
  return std::move(mail.in);
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
      if (shared->out.empty()) continue;
      pending.push_back({transport_.send(peer, shared->out), peer, false});
      sent_bytes_ += static_cast<std::int64_t>(shared->out.size());
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
