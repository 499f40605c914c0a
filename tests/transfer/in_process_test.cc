// SPDX-License-Identifier: Apache-2.0
#include "comm/in_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <latch>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "routepack/error.h"

namespace routepack {
namespace {

using Bytes = std::vector<std::byte>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Bytes bytes_of(const std::string& text) {
  Bytes bytes(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) bytes[i] = static_cast<std::byte>(text[i]);
  return bytes;
}
std::string text_of(const Bytes& bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += static_cast<char>(byte);
  return text;
}

/// What message `index` from one rank to another holds.
Bytes pattern(std::int32_t from, std::int32_t to, std::int32_t index, std::size_t size) {
  std::minstd_rand random(static_cast<unsigned>(1 + from * 10007 + to * 101 + index));
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() >> 8);
  return bytes;
}

/// Polls until done; false after ten seconds.
bool wait(Transport& end, Transport::Ticket ticket) {
  const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!end.poll(ticket)) {
    if (std::chrono::steady_clock::now() > last) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(InProcess, knows_its_ranks_and_refuses_others) {
  InProcessNetwork network(3);
  EXPECT_EQ(network.ranks(), 3);
  EXPECT_EQ(network.end(2).rank(), 2);
  EXPECT_EQ(network.end(2).ranks(), 3);
  EXPECT_THROW(network.end(3), InvalidInput);
  EXPECT_THROW(network.end(-1), InvalidInput);
  EXPECT_THROW(InProcessNetwork(0), InvalidInput);
  Bytes bytes(4);
  EXPECT_THROW(network.end(0).send(3, bytes), InvalidInput);
  EXPECT_THROW(network.end(0).receive(-1, bytes), InvalidInput);
  EXPECT_THROW(network.end(0).send(0, bytes), InvalidInput);
  EXPECT_THROW(network.end(0).receive(0, bytes), InvalidInput);
  EXPECT_THROW(network.end(0).post(3, bytes), InvalidInput);
}

TEST(InProcess, messages_between_two_ranks_match_in_the_order_of_starting) {
  InProcessNetwork network(2);
  const Bytes first = bytes_of("first"), second = bytes_of("other");
  Bytes in_first(5), in_second(5);
  const auto s1 = network.end(0).send(1, first), s2 = network.end(0).send(1, second);
  const auto r1 = network.end(1).receive(0, in_first), r2 = network.end(1).receive(0, in_second);
  EXPECT_FALSE(network.end(0).poll(s1));
  ASSERT_TRUE(wait(network.end(1), r2));  // asked for in the other order
  ASSERT_TRUE(wait(network.end(1), r1));
  EXPECT_EQ(text_of(in_first), "first");
  EXPECT_EQ(text_of(in_second), "other");
  EXPECT_TRUE(network.end(0).poll(s2));
  EXPECT_TRUE(network.end(0).poll(s1));
}

TEST(InProcess, a_receive_may_be_posted_before_the_send) {
  InProcessNetwork network(2);
  Bytes in(3);
  const auto receipt = network.end(1).receive(0, in);
  EXPECT_FALSE(network.end(1).poll(receipt));
  const Bytes out = bytes_of("abc");
  const auto sent = network.end(0).send(1, out);
  EXPECT_TRUE(wait(network.end(1), receipt));
  EXPECT_TRUE(wait(network.end(0), sent));
  EXPECT_EQ(in, out);
}

TEST(InProcess, empty_messages_count) {
  InProcessNetwork network(2);
  const Bytes out = bytes_of("x");
  Bytes in(1);
  network.end(0).send(1, {});
  network.end(0).send(1, out);
  const auto empty = network.end(1).receive(0, {});
  const auto full = network.end(1).receive(0, in);
  EXPECT_TRUE(wait(network.end(1), full));
  EXPECT_TRUE(wait(network.end(1), empty));
  EXPECT_EQ(in, out);
}

TEST(InProcess, a_rank_that_waits_for_its_send_serves_those_of_others) {
  InProcessNetwork network(2);
  const Bytes out0 = bytes_of("from0"), out1 = bytes_of("from1");
  Bytes in1(5);
  const auto nobody_takes_it = network.end(1).send(0, out1);
  network.end(1).receive(0, in1);
  const auto sent = network.end(0).send(1, out0);
  EXPECT_FALSE(network.end(1).poll(nobody_takes_it));
  EXPECT_TRUE(network.end(0).poll(sent));
  EXPECT_EQ(in1, out0);
}

TEST(InProcess, another_size_is_refused_by_the_receiver_of_that_message_alone) {
  InProcessNetwork network(2);
  const Bytes out = bytes_of("abc");
  Bytes in(4, std::byte{'-'}), next(3);
  const auto sent = network.end(0).send(1, out);
  network.end(0).send(1, out);
  const auto bad = network.end(1).receive(0, in);
  const auto good = network.end(1).receive(0, next);
  EXPECT_TRUE(wait(network.end(1), good));
  EXPECT_EQ(next, out);
  try {
    wait(network.end(1), bad);
    FAIL() << "not refused";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), HasSubstr("from rank 0 to rank 1: found 3 bytes, wanted 4"));
  }
  EXPECT_EQ(text_of(in), "----");
  EXPECT_TRUE(network.end(0).poll(sent));
}

TEST(InProcess, a_ticket_that_is_done_is_forgotten) {
  InProcessNetwork network(2);
  network.end(0).send(1, {});
  const auto receipt = network.end(1).receive(0, {});
  ASSERT_TRUE(wait(network.end(1), receipt));
  EXPECT_THROW(network.end(1).poll(receipt), InternalError);
}

TEST(InProcess, notes_arrive_as_copies_in_order_and_from_oneself) {
  InProcessNetwork network(2);
  EXPECT_EQ(network.end(1).note(), std::nullopt);
  Bytes bytes = bytes_of("one");
  network.end(0).post(1, bytes);
  bytes = bytes_of("two");
  network.end(0).post(1, bytes);
  network.end(1).post(1, bytes_of("mine"));
  network.end(0).post(1, {});
  std::vector<std::pair<std::int32_t, std::string>> seen;
  while (const auto note = network.end(1).note()) seen.emplace_back(note->from, text_of(note->bytes));
  EXPECT_THAT(seen, ElementsAre(std::pair{0, "one"}, std::pair{0, "two"}, std::pair{1, "mine"}, std::pair{0, ""}));
}

TEST(InProcess, a_note_has_a_largest_size) {
  InProcessNetwork network(2);
  Bytes most(Transport::kMostNoteBytes), more(Transport::kMostNoteBytes + 1);
  network.end(0).post(1, most);
  EXPECT_THROW(network.end(0).post(1, more), InvalidInput);
  ASSERT_TRUE(network.end(1).note());
  EXPECT_EQ(network.end(1).note(), std::nullopt);
}

TEST(InProcess, a_killed_rank_throws_and_the_others_hear_nothing) {
  InProcessNetwork network(3);
  const Bytes out = bytes_of("abc");
  Bytes in(3);
  const auto lost = network.end(0).send(1, out);
  network.end(0).post(1, bytes_of("before"));
  network.kill(0);
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { network.end(0).send(1, out); }, [&] { network.end(0).receive(1, in); },
           [&] { network.end(0).poll(lost); }, [&] { network.end(0).post(1, out); }, [&] { network.end(0).note(); }}) {
    try {
      call();
      ADD_FAILURE() << "the dead rank was served";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.rank(), 0);
    }
  }
  ASSERT_TRUE(network.end(1).note());
  EXPECT_EQ(network.end(1).note(), std::nullopt);
  const auto receipt = network.end(1).receive(0, in);
  const auto sent = network.end(1).send(0, out);
  network.end(1).post(0, out);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(network.end(1).poll(receipt));
    EXPECT_FALSE(network.end(1).poll(sent));
  }
  const auto alive = network.end(1).send(2, out);  // the living go on
  EXPECT_TRUE(wait(network.end(2), network.end(2).receive(1, in)));
  EXPECT_TRUE(wait(network.end(1), alive));
}

TEST(InProcess, a_killed_rank_has_its_bytes_back) {
  InProcessNetwork network(2);
  Bytes in(3);
  {
    const Bytes out = bytes_of("abc");
    network.end(0).send(1, out);
    network.kill(0);
  }  // gone: a later copy would read freed memory
  const auto receipt = network.end(1).receive(0, in);
  EXPECT_FALSE(network.end(1).poll(receipt));
  EXPECT_THROW(network.end(0).note(), PeerLost);
}

constexpr std::int32_t kThreads = 6;

TEST(InProcess, many_threads_exchange_many_messages_of_all_sizes) {
  constexpr std::int32_t kMessages = 60;
  const auto size = [](std::int32_t from, std::int32_t to, std::int32_t index) {
    return index % 7 == 0 ? 0 : static_cast<std::size_t>((from * 31 + to * 17 + index * 997) % 9000);
  };
  InProcessNetwork network(kThreads);
  std::atomic<int> wrong{0};
  const auto rank_main = [&](std::int32_t me) {
    Transport& end = network.end(me);
    std::vector<std::tuple<Transport::Ticket, Bytes, Bytes>> open;  // ticket, memory, wanted (empty for a send)
    for (std::int32_t index = 0; index < kMessages; ++index) {
      for (std::int32_t peer = 0; peer < kThreads; ++peer) {
        if (peer == me) continue;
        auto& [receipt, in, wanted] =
            open.emplace_back(0, Bytes(size(peer, me, index)), pattern(peer, me, index, size(peer, me, index)));
        receipt = end.receive(peer, in);
        auto& [sent, out, nothing] = open.emplace_back(0, pattern(me, peer, index, size(me, peer, index)), Bytes());
        sent = end.send(peer, out);
        end.post(peer, std::as_bytes(std::span(&index, 1)));
      }
    }
    std::vector<std::int32_t> next(kThreads, 0);
    std::int32_t notes = 0;
    const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while ((!open.empty() || notes < kMessages * (kThreads - 1)) && std::chrono::steady_clock::now() < last) {
      std::erase_if(open, [&](auto& item) {
        auto& [ticket, memory, wanted] = item;
        if (!end.poll(ticket)) return false;
        wrong += !wanted.empty() && memory != wanted ? 1 : 0;
        return true;
      });
      while (const auto note = end.note()) {
        std::int32_t index = -1;
        std::memcpy(&index, note->bytes.data(), sizeof index);
        wrong += index == next[static_cast<std::size_t>(note->from)]++ ? 0 : 1;
        ++notes;
      }
      std::this_thread::yield();
    }
    wrong += open.empty() && notes == kMessages * (kThreads - 1) ? 0 : 1;
  };
  {
    std::vector<std::jthread> threads;
    for (std::int32_t rank = 0; rank < kThreads; ++rank) threads.emplace_back(rank_main, rank);
  }
  EXPECT_EQ(wrong, 0);
}

// A rank dies, and its memory with it, while others copy from it. AddressSanitizer and ThreadSanitizer are the judges
// of the reads; this test sees that what did arrive is whole.
TEST(InProcess, a_rank_may_die_while_others_copy_from_it) {
  for (int round = 0; round < 20; ++round) {
    constexpr std::size_t kSize = 1 << 18;
    InProcessNetwork network(kThreads);
    std::atomic<std::int32_t> torn{0}, survivors{0}, first{0};
    std::latch posted(kThreads);
    std::vector<std::jthread> threads;
    for (std::int32_t me = 0; me < kThreads; ++me) {
      threads.emplace_back([&, me] {
        Transport& end = network.end(me);
        Bytes in(kSize, std::byte{1});
        Bytes out(kSize, std::byte{7});
        if (me == 0) {
          for (std::int32_t to = 1; to < kThreads; ++to) end.send(to, out);
          posted.arrive_and_wait();
          while (first == 0) std::this_thread::yield();
          network.kill(0);
          std::ranges::fill(out, std::byte{9});
          return;
        }
        const auto receipt = end.receive(0, in);
        posted.arrive_and_wait();
        bool arrived = false;
        for (int i = 0; i < 50 && !arrived; ++i) {
          first = 1;
          arrived = end.poll(receipt);
          std::this_thread::yield();
        }
        const std::byte wanted = arrived ? std::byte{7} : std::byte{1};
        for (const std::byte byte : in) {
          if (byte != wanted) {
            ++torn;
            break;
          }
        }
        ++survivors;
      });
    }
    threads.clear();
    EXPECT_EQ(torn, 0);
    EXPECT_EQ(survivors, kThreads - 1);
  }
}

TEST(InProcess, another_thread_may_kill_a_rank_in_the_middle_of_its_work) {
  InProcessNetwork network(2);
  std::atomic<bool> threw{false};
  std::jthread victim([&] {
    const Bytes out(1 << 12), small(8);
    try {
      for (;;) {
        network.end(1).send(0, out);
        network.end(1).post(0, small);
        network.end(1).note();
      }
    } catch (const PeerLost& error) {
      threw = error.rank() == 1;
    }
  });
  std::int32_t heard = 0;
  while (heard < 100) heard += network.end(0).note() ? 1 : 0;
  network.kill(1);
  victim.join();
  EXPECT_TRUE(threw);
}

}  // namespace
}  // namespace routepack
