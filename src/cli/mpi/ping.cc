// SPDX-License-Identifier: Apache-2.0
#include "cli/mpi/ping.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cli/command.h"
#include "cli/program.h"
#include "cli/report.h"
#include "routepack/error.h"
#include "routepack/version.h"

namespace routepack::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

struct PingOptions {
  std::int64_t bytes = 1 << 20;  ///< of a message
  std::int32_t messages = 16;    ///< one way, all started at once
  std::int32_t rounds = 100;     ///< of one byte, there and back
  std::int32_t timeout_s = 30;   ///< without an answer
};

/// What the first rank of a pair measured, as a note to all.
struct Result {
  std::int32_t from = 0, to = 0;
  double latency_us = 0.0;  ///< half a round
  double gigabytes_per_second = 0.0;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Differs between messages, pairs and directions, and along a message.
void fill(Bytes& bytes, const Result& pair, std::int32_t message) {
  auto state = static_cast<std::uint32_t>(1 + pair.from * 40503 + pair.to * 257 + message);
  for (std::byte& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
}

class Ping {
 public:
  Ping(Transport& end, const PingOptions& options) : end_(end), options_(options) {
    messages_.resize(static_cast<std::size_t>(options.messages));
    for (Bytes& message : messages_) message.resize(static_cast<std::size_t>(options.bytes));
    wanted_.resize(static_cast<std::size_t>(options.bytes));
  }

  /// One pair after the other, so that none disturbs another; the results of all pairs.
  std::vector<Result> all_pairs() {
    std::vector<Result> results;
    for (std::int32_t from = 0; from < end_.ranks(); ++from) {
      for (std::int32_t to = 0; to < end_.ranks(); ++to) {
        if (from == to) continue;
        Result pair{.from = from, .to = to};
        if (end_.rank() == from) announce(lead(pair));
        if (end_.rank() == to) follow(pair);
        results.push_back(hear(pair));
      }
    }
    return results;
  }

 private:
  void until(const std::function<bool()>& done, const Result& pair) {
    const auto last = Clock::now() + std::chrono::seconds(options_.timeout_s);
    while (!done()) {
      if (Clock::now() > last) {
        throw Error(fmt::format("rank {}: nothing for {} s while rank {} sends to rank {}", end_.rank(),
                                options_.timeout_s, pair.from, pair.to));
      }
      std::this_thread::yield();
    }
  }
  void await(Transport::Ticket ticket, const Result& pair) {
    until([&] { return end_.poll(ticket); }, pair);
  }

  Result lead(Result pair) {
    await(end_.receive(pair.to, byte_), pair);  // the other is there
    auto start = Clock::now();
    for (std::int32_t round = 0; round < options_.rounds; ++round) {
      await(end_.send(pair.to, byte_), pair);
      await(end_.receive(pair.to, byte_), pair);
    }
    pair.latency_us = seconds_since(start) / (2.0 * options_.rounds) * 1e6;
    for (std::size_t i = 0; i < messages_.size(); ++i) fill(messages_[i], pair, static_cast<std::int32_t>(i));
    await(end_.receive(pair.to, byte_), pair);  // the other has posted its receives
    start = Clock::now();
    std::vector<Transport::Ticket> tickets;
    for (const Bytes& message : messages_) tickets.push_back(end_.send(pair.to, message));
    for (const Transport::Ticket ticket : tickets) await(ticket, pair);
    await(end_.receive(pair.to, byte_), pair);  // the other has them all
    const double bytes = static_cast<double>(options_.bytes) * options_.messages;
    pair.gigabytes_per_second = bytes / seconds_since(start) / 1e9;
    return pair;
  }

  void follow(const Result& pair) {
    await(end_.send(pair.from, byte_), pair);
    for (std::int32_t round = 0; round < options_.rounds; ++round) {
      await(end_.receive(pair.from, byte_), pair);
      await(end_.send(pair.from, byte_), pair);
    }
    std::vector<Transport::Ticket> tickets;
    for (Bytes& message : messages_) {
      std::ranges::fill(message, std::byte{0});
      tickets.push_back(end_.receive(pair.from, message));
    }
    await(end_.send(pair.from, byte_), pair);
    for (const Transport::Ticket ticket : tickets) await(ticket, pair);
    await(end_.send(pair.from, byte_), pair);
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      fill(wanted_, pair, static_cast<std::int32_t>(i));
      if (messages_[i] != wanted_) {
        throw Error(fmt::format("rank {}: message {} of {} bytes from rank {}: found other bytes than were sent",
                                end_.rank(), i, wanted_.size(), pair.from));
      }
    }
  }

  void announce(const Result& result) {
    for (std::int32_t to = 0; to < end_.ranks(); ++to) end_.post(to, std::as_bytes(std::span(&result, 1)));
  }
  Result hear(const Result& pair) {
    Result result;
    until(
        [&] {
          const auto note = end_.note();
          if (!note) return false;
          if (note->bytes.size() != sizeof result) throw Error("a note that nobody sent");
          std::memcpy(&result, note->bytes.data(), sizeof result);
          return true;
        },
        pair);
    return result;
  }

  Transport& end_;
  PingOptions options_;
  std::array<std::byte, 1> byte_{};
  std::vector<Bytes> messages_;
  Bytes wanted_;
};

int report(const Transport& end, const PingOptions& options, const std::vector<Result>& results) {
  if (end.rank() != 0) return kFine;
  Table table;
  table.row({"from", "to", "latency, us", "GB/s"});
  for (const Result& pair : results) {
    table.row({std::to_string(pair.from), std::to_string(pair.to), fixed(pair.latency_us, 1),
               fixed(pair.gigabytes_per_second, 2)});
  }
  fmt::print("{} ranks; {} messages of {} bytes one way per pair, all right\n{}", end.ranks(), options.messages,
             with_commas(options.bytes), table.text());
  return finish(kFine);
}

}  // namespace

int run_ping_rank(int argc, char** argv, Transport& transport, std::string_view name) {
  const bool speaks = transport.rank() == 0;
  CLI::App app{"Checks and measures the network between all pairs of ranks.", std::string(name)};
  app.require_subcommand(1);
  PingOptions options;
  CLI::App* ping = app.add_subcommand("ping", "every pair of ranks exchanges messages");
  ping->add_option("--bytes", options.bytes, "size of a message")->capture_default_str()->check(CLI::Range(0, 1 << 30));
  ping->add_option("--messages", options.messages, "messages one way, all started at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 100'000));
  ping->add_option("--rounds", options.rounds, "rounds of one byte for the latency")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  ping->add_option("--timeout", options.timeout_s, "seconds without an answer that are a failure")
      ->capture_default_str()
      ->check(CLI::Range(1, 86'400));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wish) {
    return speaks ? finish(app.exit(wish)) : int{kFine};
  } catch (const CLI::ParseError& error) {  // the same on all ranks: said once
    return speaks ? fail(kBadInput, fmt::format("{} (see {} ping --help)", error.what(), name)) : int{kBadInput};
  }
  // Never freed: after a failure the network may still be at its memory.
  static Ping* exchange = nullptr;
  return guarded([&] {
    exchange = new Ping(transport, options);
    return report(transport, options, exchange->all_pairs());
  });
}

}  // namespace routepack::cli
