// SPDX-License-Identifier: Apache-2.0
#include "transfer/meeting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <thread>

#include "core/assert.h"

namespace routepack {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kYields = 1000;  // then naps: others may need this core to get on

}  // namespace

void wait_for_all(Transport& transport, std::vector<Transport::Ticket>& open, std::chrono::milliseconds patience) {
  auto last_progress = Clock::now();
  for (int idle = 0; !open.empty();) {
    // Done from the front: messages of a pair arrive in order, so most polls of the rest would be in vain.
    const auto still_open = std::ranges::find_if(open, [&](Transport::Ticket t) { return !transport.poll(t); });
    std::size_t done = static_cast<std::size_t>(still_open - open.begin());
    open.erase(open.begin(), still_open);
    if (!open.empty()) {
      const auto rest =
          std::ranges::remove_if(open.begin() + 1, open.end(), [&](Transport::Ticket t) { return transport.poll(t); });
      done += rest.size();
      open.erase(rest.begin(), rest.end());
    }
    if (done > 0) {
      last_progress = Clock::now();
      idle = 0;
    } else if (++idle < kYields) {
      std::this_thread::yield();
    } else {
      if (Clock::now() - last_progress > patience) {
        throw Error(fmt::format("rank {}: no message came or went for {} ms", transport.rank(), patience.count()));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

void Meeting::meet(std::span<std::byte> message, const Fold& fold) {
  outbox_.assign(message.begin(), message.end());
  if (transport_.rank() != 0) {
    open_.push_back(transport_.send(0, outbox_));
    wait_for_all(transport_, open_, patience_);
    open_.push_back(transport_.receive(0, outbox_));
    wait_for_all(transport_, open_, patience_);
  } else {
    inbox_.resize(static_cast<std::size_t>(transport_.ranks()));
    for (std::int32_t r = 1; r < transport_.ranks(); ++r) {
      auto& place = inbox_[static_cast<std::size_t>(r)];
      place.resize(message.size());
      open_.push_back(transport_.receive(r, place));
    }
    wait_for_all(transport_, open_, patience_);
    for (std::int32_t r = 1; r < transport_.ranks(); ++r) fold(outbox_, inbox_[static_cast<std::size_t>(r)]);
    for (std::int32_t r = 1; r < transport_.ranks(); ++r) open_.push_back(transport_.send(r, outbox_));
    wait_for_all(transport_, open_, patience_);
  }
  std::ranges::copy(outbox_, message.begin());
}

void Meeting::barrier() {
  std::byte nothing{};
  meet({&nothing, 1}, [](std::span<std::byte>, std::span<const std::byte>) {});
}

}  // namespace routepack
