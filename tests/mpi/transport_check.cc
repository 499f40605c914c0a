// SPDX-License-Identifier: Apache-2.0
// What the MPI transport promises, seen from every rank. Usage: transport_check FOLDER exchange|mismatch|kill|abandon
// Each rank writes FOLDER/rank-N.json: {"ok": …, "what": "…", …}. tests/mpi/test_transport.py starts it and reads them.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/mpi/mpi_world.h"
#include "comm/mpi/watchdog.h"
#include "routepack/error.h"

namespace routepack {
namespace {

using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::chrono::seconds kPatience{30};

void require(bool condition, const std::string& what) {
  if (!condition) throw Error(what);
}

/// What message `index` from one rank to another holds.
Bytes pattern(std::int32_t from, std::int32_t to, std::size_t index, std::size_t size) {
  std::minstd_rand random(static_cast<unsigned>(1 + from * 10007 + to * 101) + static_cast<unsigned>(index));
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() >> 8);
  return bytes;
}

/// Asks until `done` or the deadline.
bool until(const std::function<bool()>& done, Clock::duration patience = kPatience) {
  for (const auto last = Clock::now() + patience; Clock::now() < last; std::this_thread::yield()) {
    if (done()) return true;
  }
  return false;
}

void await(Transport& end, Transport::Ticket ticket, std::string_view what) {
  require(until([&] { return end.poll(ticket); }), fmt::format("{}: not done in time", what));
}

/// Meetings by notes: everybody tells everybody, and has heard everybody. Some may be a meeting ahead.
class Meetings {
 public:
  explicit Meetings(Transport& end) : end_(end), heard_(static_cast<std::size_t>(end.ranks()), 0) {}

  void meet(std::int32_t without = -1) {
    const Bytes hello(1, std::byte{42});
    ++held_;
    for (std::int32_t to = 0; to < end_.ranks(); ++to) {
      if (to != without) end_.post(to, hello);
    }
    const auto all_here = [&] {
      for (std::int32_t from = 0; from < end_.ranks(); ++from) {
        if (from != without && heard_[static_cast<std::size_t>(from)] < held_) return false;
      }
      return true;
    };
    require(until([&] {
              while (const auto note = end_.note()) {
                require(note->bytes == hello, "a note that nobody sent");
                ++heard_[static_cast<std::size_t>(note->from)];
              }
              return all_here();
            }),
            "meeting: notes missing");
  }

 private:
  Transport& end_;
  std::vector<int> heard_;
  int held_ = 0;
};

void ring(Transport& end) {
  const std::int32_t next = (end.rank() + 1) % end.ranks(), previous = (end.rank() + end.ranks() - 1) % end.ranks();
  Bytes in(kMiB);
  Bytes out = pattern(0, 0, 0, kMiB);
  if (end.rank() == 0) await(end, end.send(next, out), "ring: start");
  await(end, end.receive(previous, in), "ring: receive");
  require(in == out, "ring: other bytes");
  if (end.rank() != 0) await(end, end.send(next, in), "ring: pass on");
}

/// Every ordered pair, all sizes, many messages at once, tickets asked in another order than they were made.
void all_pairs(Transport& end) {
  struct Open {
    Transport::Ticket ticket = 0;
    Bytes memory, wanted;
  };
  const std::vector<std::size_t> sizes = {1, 0, kMiB, 3, 0, 70'000, 1, kMiB, 4096};
  std::vector<Open> open;
  for (std::size_t index = 0; index < sizes.size(); ++index) {
    for (std::int32_t peer = 0; peer < end.ranks(); ++peer) {
      if (peer == end.rank()) continue;
      Open& in = open.emplace_back(0, Bytes(sizes[index]), pattern(peer, end.rank(), index, sizes[index]));
      in.ticket = end.receive(peer, in.memory);
      Open& out = open.emplace_back(0, pattern(end.rank(), peer, index, sizes[index]), Bytes());
      out.ticket = end.send(peer, out.memory);
    }
  }
  std::shuffle(open.begin(), open.end(), std::minstd_rand(static_cast<unsigned>(end.rank()) + 1));
  require(until([&] {
            std::erase_if(open, [&](const Open& message) {
              if (!end.poll(message.ticket)) return false;
              require(message.wanted.empty() || message.memory == message.wanted, "pairs: other bytes");
              return true;
            });
            return open.empty();
          }),
          fmt::format("pairs: {} messages not done in time", open.size()));
}

/// Notes of every size, many more than fit into any buffer of the library, before anybody listens.
void flood(Transport& end) {
  constexpr std::size_t kNotes = 3000;
  const auto size = [](std::size_t index) { return index * 131 % (Transport::kMostNoteBytes + 1); };
  for (std::size_t index = 0; index < kNotes; ++index) {
    for (std::int32_t to = 0; to < end.ranks(); ++to) end.post(to, pattern(end.rank(), to, index, size(index)));
  }
  std::vector<std::size_t> next(static_cast<std::size_t>(end.ranks()), 0);
  std::size_t missing = kNotes * next.size();
  require(until([&] {
            while (const auto note = end.note()) {
              const std::size_t index = next[static_cast<std::size_t>(note->from)]++;
              const Bytes wanted = pattern(note->from, end.rank(), index, size(index));
              require(
                  note->bytes == wanted,
                  fmt::format("flood: note {} from rank {}: found other bytes ({} of them), or another note, wanted {}",
                              index, note->from, note->bytes.size(), wanted.size()));
              --missing;
            }
            return missing == 0;
          }),
          fmt::format("flood: {} notes missing", missing));
}

void exchange(Transport& end) {
  ring(end);
  all_pairs(end);
  flood(end);
  bool refused = false;
  try {
    end.send(end.rank(), {});
  } catch (const InvalidInput&) {
    refused = true;
  }
  require(refused, "a message to oneself was taken");
}

/// Ranks 0 and 1: messages shorter and longer than the receiver asked for.
void mismatch(Transport& end, bool longer) {
  Bytes out(longer ? 9 : 7), in(8);
  if (end.rank() == 0) await(end, end.send(1, out), "mismatch: send");
  if (end.rank() == 1) {
    bool refused = false;
    try {
      await(end, end.receive(0, in), "mismatch: receive");
    } catch (const FormatError&) {
      refused = true;
    }
    require(refused, "a message of another size was taken");
  }
}

/// The last rank dies with messages half-way. The others look at what MPI says about it, then go on among themselves.
/// A call of MPI that does not come back, as seen by the watchdog.
void stay_in_a_call() {
  std::atomic<int> barked = 0;
  Watchdog dog;
  dog.set(std::chrono::milliseconds(40), [&] { ++barked; });
  for (int i = 0; i < 20; ++i) {
    const Watchdog::Call call(dog);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  require(barked == 0, "the watchdog barks at short calls");
  const Watchdog::Call call(dog);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  require(barked == 1, "the watchdog does not bark, or twice");
}

void kill_one(Transport& end, nlohmann::json& report) {
  const std::int32_t victim = end.ranks() - 1;
  std::map<std::string, Bytes> memory = {
      {"receive small", Bytes(1)}, {"receive big", Bytes(kMiB)}, {"send small", Bytes(1)}, {"send big", Bytes(kMiB)}};
  Meetings meetings(end);
  meetings.meet();
  if (end.rank() == victim) {
    const Bytes big(kMiB);
    for (std::int32_t to = 0; to < victim; ++to) end.send(to, big);
    std::raise(SIGKILL);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // it is dead; what it announced has arrived
  std::map<std::string, Transport::Ticket> tickets;
  nlohmann::json& seen = report["dead_rank"];
  const auto watch = [&](const std::string& name, const std::function<Transport::Ticket()>& start) {
    try {
      tickets[name] = start();
      seen[name] = "pending";
    } catch (const PeerLost& error) {
      seen[name] = error.what();
    }
  };
  watch("receive big", [&] { return end.receive(victim, memory["receive big"]); });
  watch("receive small", [&] { return end.receive(victim, memory["receive small"]); });
  watch("send small", [&] { return end.send(victim, memory["send small"]); });
  watch("send big", [&] { return end.send(victim, memory["send big"]); });
  const auto started = Clock::now();
  until(
      [&] {
        std::erase_if(tickets, [&](const auto& item) {
          try {
            if (!end.poll(item.second)) return false;
            seen[item.first] = "done";
          } catch (const Error& error) {
            seen[item.first] = fmt::format("after {:.1f} s: {}",
                                           std::chrono::duration<double>(Clock::now() - started).count(), error.what());
          }
          return true;
        });
        return false;
      },
      std::chrono::seconds(3));
  end.post(victim, Bytes(Transport::kMostNoteBytes));  // must not hurt
  meetings.meet(victim);
  if (victim > 1) {
    const std::int32_t peer = (end.rank() + 1) % victim, other = (end.rank() + victim - 1) % victim;
    Bytes in(kMiB);
    const Bytes out = pattern(end.rank(), peer, 1, kMiB);
    const auto receipt = end.receive(other, in);
    await(end, end.send(peer, out), "survivors: send");
    await(end, receipt, "survivors: receive");
    require(in == pattern(other, end.rank(), 1, kMiB), "survivors: other bytes");
  }
}

int rank_main(int argc, char** argv) {
  MpiWorld world(argc, argv);
  if (argc != 3) return 2;
  Transport& end = world.transport();
  const std::filesystem::path folder = argv[1];
  const std::string_view mode = argv[2];
  nlohmann::json report = {{"ok", true}, {"what", ""}, {"ranks", end.ranks()}, {"library", world.library()}};
  const auto path = folder / fmt::format("rank-{}.json", end.rank());
  const auto write = [path](const nlohmann::json& what) {
    std::ofstream(path.string() + ".part") << what.dump() << '\n';
    std::filesystem::rename(path.string() + ".part", path);
  };
  world.when_stuck(std::chrono::seconds(10), [write] { write({{"ok", true}, {"what", ""}, {"stuck", true}}); });
  try {
    if (mode == "exchange") exchange(end);
    if (mode == "mismatch") mismatch(end, false), mismatch(end, true);
    if (mode == "kill") kill_one(end, report);
    if (mode == "stuck") stay_in_a_call();
    if (mode == "abandon" && end.rank() == 0) end.receive(1, std::span(new std::byte[8], 8));  // never sent
  } catch (const std::exception& error) {
    report["ok"] = false;
    report["what"] = error.what();
  }
  write(report);
  if (mode == "kill" || !report["ok"]) world.leave(report["ok"] ? 0 : 1);
  return 0;  // through ~MpiWorld
}

}  // namespace
}  // namespace routepack

int main(int argc, char** argv) {
  return routepack::rank_main(argc, argv);
}
