// SPDX-License-Identifier: Apache-2.0
#include "comm/in_process.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/assert.h"

namespace routepack {
namespace {

/// A message that its sender has published. Shared by the sender's ticket and the receiver's inbox.
struct Offer {
  const std::byte* bytes = nullptr;
  std::size_t size = 0;
  bool copying = false;           // guarded by the inbox that holds it
  std::atomic<bool> done{false};  // the bytes are not needed any more
};

/// What has arrived for one rank and was not taken yet.
struct Inbox {
  explicit Inbox(std::size_t ranks) : offers(ranks) {}

  std::mutex mutex;
  std::vector<std::deque<std::shared_ptr<Offer>>> offers;  // [from], in the order of sending
  std::deque<Note> notes;
  // Sizes of the queues, so that a poll in vain takes no lock.
  std::atomic<std::size_t> offers_waiting{0};
  std::atomic<std::size_t> notes_waiting{0};
};

struct Receipt {
  std::int32_t from = 0;
  std::span<std::byte> bytes;
  bool done = false;
  std::string refusal;  ///< the message had another size
};

}  // namespace

class InProcessNetwork::End final : public Transport {
 public:
  End(InProcessNetwork& network, std::int32_t rank, std::int32_t ranks)
      : network_(network), rank_(rank), inbox_(static_cast<std::size_t>(ranks)), posted_(inbox_.offers.size()) {}

  [[nodiscard]] std::int32_t rank() const override { return rank_; }
  [[nodiscard]] std::int32_t ranks() const override { return network_.ranks(); }

  Ticket send(std::int32_t to, std::span<const std::byte> bytes) override;
  Ticket receive(std::int32_t from, std::span<std::byte> bytes) override;
  bool poll(Ticket ticket) override;
  void post(std::int32_t to, std::span<const std::byte> bytes) override;
  std::optional<Note> note() override;
  void kill();

 private:
  void check_alive() const {
    if (dead_.load(std::memory_order_acquire)) {
      throw PeerLost(rank_, fmt::format("rank {}: found killed", rank_));
    }
  }
  End& peer(std::int32_t rank) const;
  bool copy_one(std::int32_t first);
  void copy(Offer& offer, Receipt& receipt) const;
  void withdraw(Inbox& inbox) const;

  InProcessNetwork& network_;
  const std::int32_t rank_;
  std::atomic<bool> dead_{false};
  Inbox inbox_;  // shared with all ranks

  // Of this end's thread alone.
  Ticket last_ticket_ = 0;
  std::unordered_map<Ticket, std::shared_ptr<Offer>> sends_;
  std::unordered_map<Ticket, Receipt> receipts_;
  std::vector<std::deque<Ticket>> posted_;  // [from], receipts that have no message yet
  std::size_t receipts_open_ = 0;           // in posted_
  std::int32_t turn_ = 0;                   // whose message is copied next when any will do
};

InProcessNetwork::End& InProcessNetwork::End::peer(std::int32_t rank) const {
  if (rank == rank_) throw InvalidInput(fmt::format("rank {}: found itself as the peer of a bulk message", rank_));
  return network_.at(rank);
}

Transport::Ticket InProcessNetwork::End::send(std::int32_t to, std::span<const std::byte> bytes) {
  Inbox& inbox = peer(to).inbox_;
  auto offer = std::make_shared<Offer>();
  offer->bytes = bytes.data();
  offer->size = bytes.size();
  {
    const std::scoped_lock lock(inbox.mutex);
    check_alive();  // under the lock: whoever kills this rank afterwards finds the offer and withdraws it
    // The dead take nothing in, which looks like silence.
    if (!network_.at(to).dead_.load(std::memory_order_acquire)) {
      inbox.offers[static_cast<std::size_t>(rank_)].push_back(offer);
      inbox.offers_waiting.fetch_add(1, std::memory_order_release);
    }
  }
  sends_.emplace(++last_ticket_, std::move(offer));
  return last_ticket_;
}

Transport::Ticket InProcessNetwork::End::receive(std::int32_t from, std::span<std::byte> bytes) {
  peer(from);
  check_alive();
  receipts_.emplace(++last_ticket_, Receipt{.from = from, .bytes = bytes, .done = false, .refusal = {}});
  posted_[static_cast<std::size_t>(from)].push_back(last_ticket_);
  ++receipts_open_;
  return last_ticket_;
}

bool InProcessNetwork::End::poll(Ticket ticket) {
  check_alive();
  if (const auto sent = sends_.find(ticket); sent != sends_.end()) {
    // Ranks that only wait for their sends still have to serve each other's.
    if (!sent->second->done.load(std::memory_order_acquire)) {
      copy_one(turn_);
      if (!sent->second->done.load(std::memory_order_acquire)) return false;
    }
    sends_.erase(sent);
    return true;
  }
  const auto found = receipts_.find(ticket);
  ROUTEPACK_ASSERT(found != receipts_.end(), fmt::format("rank {}: no ticket {}", rank_, ticket));
  Receipt& receipt = found->second;
  if (!receipt.done) copy_one(receipt.from);
  if (!receipt.done) return false;
  const std::string refusal = std::move(receipt.refusal);
  receipts_.erase(found);
  if (!refusal.empty()) throw FormatError(refusal);
  return true;
}

/// Copies at most one message, of rank `first` if there is one and else of the next rank that has one.
bool InProcessNetwork::End::copy_one(std::int32_t first) {
  if (receipts_open_ == 0 || inbox_.offers_waiting.load(std::memory_order_acquire) == 0) return false;
  std::shared_ptr<Offer> offer;
  std::size_t from = static_cast<std::size_t>(first);
  {
    const std::scoped_lock lock(inbox_.mutex);
    for (std::size_t i = 0; i < posted_.size(); ++i, from = (from + 1) % posted_.size()) {
      if (posted_[from].empty() || inbox_.offers[from].empty()) continue;
      offer = inbox_.offers[from].front();
      offer->copying = true;  // stays in the queue, where a sender that gives up finds it and waits
      break;
    }
  }
  if (!offer) return false;
  turn_ = static_cast<std::int32_t>((from + 1) % posted_.size());
  copy(*offer, receipts_.at(posted_[from].front()));
  posted_[from].pop_front();
  --receipts_open_;
  offer->done.store(true, std::memory_order_release);
  const std::scoped_lock lock(inbox_.mutex);
  inbox_.offers[from].pop_front();
  inbox_.offers_waiting.fetch_sub(1, std::memory_order_release);
  return true;
}

void InProcessNetwork::End::copy(Offer& offer, Receipt& receipt) const {
  if (offer.size == receipt.bytes.size()) {
    if (offer.size != 0) std::memcpy(receipt.bytes.data(), offer.bytes, offer.size);
  } else {
    receipt.refusal = fmt::format("message from rank {} to rank {}: found {} bytes, wanted {}", receipt.from, rank_,
                                  offer.size, receipt.bytes.size());
  }
  receipt.done = true;
}

void InProcessNetwork::End::post(std::int32_t to, std::span<const std::byte> bytes) {
  if (bytes.size() > kMostNoteBytes) {
    throw InvalidInput(
        fmt::format("note to rank {}: found {} bytes, wanted at most {}", to, bytes.size(), kMostNoteBytes));
  }
  End& end = network_.at(to);
  Note note{.from = rank_, .bytes{bytes.begin(), bytes.end()}};
  const std::scoped_lock lock(end.inbox_.mutex);
  check_alive();
  if (end.dead_.load(std::memory_order_acquire)) return;
  end.inbox_.notes.push_back(std::move(note));
  end.inbox_.notes_waiting.fetch_add(1, std::memory_order_release);
}

std::optional<Note> InProcessNetwork::End::note() {
  check_alive();
  if (inbox_.notes_waiting.load(std::memory_order_acquire) == 0) return std::nullopt;
  const std::scoped_lock lock(inbox_.mutex);
  Note note = std::move(inbox_.notes.front());
  inbox_.notes.pop_front();
  inbox_.notes_waiting.fetch_sub(1, std::memory_order_release);
  return note;
}

void InProcessNetwork::End::kill() {
  dead_.store(true, std::memory_order_release);
  for (const std::unique_ptr<End>& end : network_.ends_) {
    if (end.get() != this) withdraw(end->inbox_);
  }
}

/// Takes back what this rank has published in another's inbox; on return nobody reads this rank's bytes.
void InProcessNetwork::End::withdraw(Inbox& inbox) const {
  std::shared_ptr<Offer> in_progress;
  {
    const std::scoped_lock lock(inbox.mutex);
    auto& offers = inbox.offers[static_cast<std::size_t>(rank_)];
    const std::size_t before = offers.size();
    if (!offers.empty() && offers.front()->copying) in_progress = offers.front();
    offers.resize(in_progress ? 1 : 0);  // the receiver takes the one it copies out itself
    inbox.offers_waiting.fetch_sub(before - offers.size(), std::memory_order_release);
  }
  while (in_progress && !in_progress->done.load(std::memory_order_acquire)) std::this_thread::yield();
}

InProcessNetwork::InProcessNetwork(std::int32_t ranks) {
  if (ranks < 1) throw InvalidInput(fmt::format("network: found {} ranks, wanted at least 1", ranks));
  for (std::int32_t rank = 0; rank < ranks; ++rank) ends_.push_back(std::make_unique<End>(*this, rank, ranks));
}

InProcessNetwork::~InProcessNetwork() = default;

std::int32_t InProcessNetwork::ranks() const {
  return static_cast<std::int32_t>(ends_.size());
}

InProcessNetwork::End& InProcessNetwork::at(std::int32_t rank) const {
  if (rank < 0 || rank >= ranks()) {
    throw InvalidInput(fmt::format("found rank {}, wanted 0 to {}", rank, ranks() - 1));
  }
  return *ends_[static_cast<std::size_t>(rank)];
}

Transport& InProcessNetwork::end(std::int32_t rank) {
  return at(rank);
}

void InProcessNetwork::kill(std::int32_t rank) {
  at(rank).kill();
}

}  // namespace routepack
