// SPDX-License-Identifier: Apache-2.0
#include "transfer/self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/philox.h"
#include "routepack/error.h"
#include "transfer/bare_copy.h"
#include "transfer/meeting.h"
#include "transfer/synthetic_state.h"

namespace routepack {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// A permutation per layer, the same on every rank and machine.
Placement random_placement(const GridLayout& layout, std::uint64_t seed, std::int32_t move) {
  std::vector<std::vector<ExpertId>> maps;
  for (std::int32_t l = 0; l < layout.layers(); ++l) {
    auto& map = maps.emplace_back();
    for (const ExpertId e : IdRange<ExpertId>(layout.experts())) map.push_back(e);
    for (std::uint32_t left = static_cast<std::uint32_t>(map.size()); left > 1; --left) {
      const auto bits = philox(seed, {static_cast<std::uint32_t>(move), static_cast<std::uint32_t>(l), left, 0});
      std::swap(map[left - 1], map[scaled(bits[0], left)]);
    }
  }
  return Placement::from_maps(layout.grid().ep, std::move(maps));
}

enum Second { kMove, kPrepare, kTransfer, kVerify, kCommit, kConfirm, kBare, kCheck, kSeconds };

/// What one rank found in one move; folded over the ranks it is what all found.
struct Tally {
  std::array<double, kSeconds> slowest{};
  std::int64_t state_bytes = 0, bytes = 0, bytes_sent = 0;  // sums
  std::int64_t staging = 0, promised = 0;                   // most of a rank
  std::array<char, 512> problem{};                          // of the lowest rank that has one; empty: none

  void complain(const std::string& what) {
    if (problem[0] != 0) return;
    const std::size_t length = std::min(what.size(), problem.size() - 1);
    std::memcpy(problem.data(), what.data(), length);
  }
  void fold(const Tally& other) {
    for (std::size_t s = 0; s < kSeconds; ++s) slowest[s] = std::max(slowest[s], other.slowest[s]);
    state_bytes += other.state_bytes;
    bytes += other.bytes;
    bytes_sent += other.bytes_sent;
    staging = std::max(staging, other.staging);
    promised = std::max(promised, other.promised);
    if (problem[0] == 0) problem = other.problem;
  }
};
static_assert(std::is_trivially_copyable_v<Tally>);

std::string described(const TransferOutcome& outcome, std::int64_t move) {
  if (!outcome.failure) return fmt::format("move {} ended incomplete and named no reason", move);
  return fmt::format("move {} failed in {}: {}", move, name_of(outcome.failure->phase), outcome.failure->what);
}

/// What messages read and write, beside the engine's own.
struct Memory {
  Memory(Transport& transport, const GridLayout& grid_layout, const Placement& home, const SelfTestOptions& options)
      : layout(grid_layout),
        state(layout, transport.rank(), home, options.seed),
        bare(transport, layout, state, options.transfer.timeout),
        meeting(transport, options.transfer.timeout) {}

  const GridLayout layout;
  SyntheticState state;
  BareCopy bare;
  Meeting meeting;
};

/// One rank of a self-test.
class Tester {
 public:
  Tester(Transport& transport, const Placement& home, const SelfTestOptions& options, Memory& memory)
      : transport_(transport),
        layout_(memory.layout),
        options_(options),
        home_(home),
        state_(memory.state),
        bare_(memory.bare),
        meeting_(memory.meeting),
        engine_(transport, layout_, state_, home, 0, options.transfer) {}

  void run(SelfTestReport& report) {
    meeting_.barrier();
    Placement at = home_;
    for (std::int32_t move = 0; move <= options_.moves; ++move) {
      const Placement to = move < options_.moves ? random_placement(layout_, options_.seed, move) : home_;
      Tally tally = try_move(at, to);
      if (tally.problem[0] == 0) tally = try_bare(at, to, tally);
      if (!add(tally, report)) return;
      ++report.moves;
      at = to;
    }
    report.verified = true;
  }

 private:
  /// The engine's move, looked at byte by byte: there and back, which makes staging warm, and there again, timed.
  Tally try_move(const Placement& from, const Placement& to) {
    for (const Placement* const next : {&to, &from}) {
      move(*next);
      Tally tally;
      look(*next, tally);
      tally = agreed(tally);
      if (tally.problem[0] != 0) return tally;
    }
    Tally tally;
    const TrafficForecast forecast = forecast_traffic(layout_, from, to, options_.transfer.route);
    const RankLoad& promise = forecast.ranks[static_cast<std::size_t>(transport_.rank())];
    meeting_.barrier();
    const auto begin = Clock::now();
    const TransferOutcome outcome = move(to);
    tally.slowest[kMove] = seconds_since(begin);
    tally.slowest[kPrepare] = outcome.prepare_seconds;
    tally.slowest[kTransfer] = outcome.transfer_seconds;
    tally.slowest[kVerify] = outcome.verify_seconds;
    tally.slowest[kCommit] = outcome.commit_seconds;
    tally.slowest[kConfirm] = outcome.confirm_seconds;
    tally.state_bytes = state_.size();
    tally.bytes_sent = outcome.bytes_sent;
    tally.bytes = outcome.bytes_sent + outcome.bytes_local;
    tally.staging = outcome.staging_bytes;
    tally.promised = options_.transfer.atomic == Atomic::Step ? promise.staging_total : promise.staging_peak;
    check_promise(tally, promise);
    look(to, tally);
    return agreed(tally);
  }

  TransferOutcome move(const Placement& to) {
    TransferOutcome outcome = engine_.move(to, ++epoch_);
    // Ranks that failed may not be able to talk: what they know, they agreed on before they gave up.
    if (!outcome.complete) throw Error(described(outcome, epoch_));
    return outcome;
  }

  void look(const Placement& at, Tally& tally) {
    const auto begin = Clock::now();
    if (const auto wrong = state_.mismatch(at)) tally.complain(fmt::format("after move {}: {}", epoch_, *wrong));
    if (engine_.placement() != at) tally.complain(fmt::format("after move {}: the engine names other slots", epoch_));
    tally.slowest[kCheck] = seconds_since(begin);
  }

  void check_promise(Tally& tally, const RankLoad& promise) const {
    const std::int64_t sent = promise.out.across_ep + promise.out.within_edp + promise.out.across_both;
    const auto complain = [&](const char* what, std::int64_t found, std::int64_t wanted) {
      tally.complain(
          fmt::format("rank {}: found {} bytes {}, wanted {} as forecast", transport_.rank(), found, what, wanted));
    };
    if (tally.bytes_sent != sent) complain("sent", tally.bytes_sent, sent);
    if (tally.bytes != sent + promise.out.local) complain("moved", tally.bytes, sent + promise.out.local);
    if (tally.staging > tally.promised) complain("of staging", tally.staging, tally.promised);
  }

  /// The same without checks: back, which makes staging warm, and there again, timed. A wrong byte here would be a bug
  /// of the yardstick.
  Tally try_bare(const Placement& from, const Placement& to, const Tally& before) {
    bare_.run(schedule_moves(layout_, to, from, transport_.rank(), options_.transfer.route));
    const auto schedule = schedule_moves(layout_, from, to, transport_.rank(), options_.transfer.route);
    Tally tally;
    meeting_.barrier();
    const auto begin = Clock::now();
    bare_.run(schedule);
    tally.slowest[kBare] = seconds_since(begin);
    if (const auto wrong = state_.mismatch(to)) tally.complain(fmt::format("after a bare copy: {}", *wrong));
    tally = agreed(tally);
    Tally both = before;
    both.slowest[kBare] = tally.slowest[kBare];
    both.problem = tally.problem;
    return both;
  }

  Tally agreed(Tally tally) {
    meeting_.meet(std::as_writable_bytes(std::span(&tally, 1)),
                  [](std::span<std::byte> into, std::span<const std::byte> from) {
                    Tally sum;
                    Tally other;
                    std::memcpy(&sum, into.data(), sizeof(sum));
                    std::memcpy(&other, from.data(), sizeof(other));
                    sum.fold(other);
                    std::memcpy(into.data(), &sum, sizeof(sum));
                  });
    return tally;
  }

  /// False when the tally has a problem.
  static bool add(const Tally& tally, SelfTestReport& report) {
    if (tally.problem[0] != 0) {
      report.problem = tally.problem.data();
      report.problem_shared = true;
      return false;
    }
    report.state_bytes = tally.state_bytes;
    report.bytes += tally.bytes;
    report.bytes_sent += tally.bytes_sent;
    report.staging_bytes = std::max(report.staging_bytes, tally.staging);
    report.staging_promised = std::max(report.staging_promised, tally.promised);
    report.seconds += tally.slowest[kMove];
    report.prepare_seconds += tally.slowest[kPrepare];
    report.transfer_seconds += tally.slowest[kTransfer];
    report.verify_seconds += tally.slowest[kVerify];
    report.commit_seconds += tally.slowest[kCommit];
    report.confirm_seconds += tally.slowest[kConfirm];
    report.bare_seconds += tally.slowest[kBare];
    report.check_seconds += tally.slowest[kCheck];
    return true;
  }

  Transport& transport_;
  const GridLayout& layout_;
  const SelfTestOptions& options_;
  const Placement& home_;
  SyntheticState& state_;
  BareCopy& bare_;
  Meeting& meeting_;
  TransferEngine engine_;
  std::int64_t epoch_ = 0;
};

}  // namespace

double SelfTestReport::bytes_per_second() const {
  return seconds > 0.0 ? static_cast<double>(bytes) / seconds : 0.0;
}

double SelfTestReport::bare_share() const {
  return seconds > 0.0 ? bare_seconds / seconds : 0.0;
}

SelfTestReport self_test(Transport& transport, const GridLayout& layout, const SelfTestOptions& options) {
  if (transport.ranks() != layout.grid().ranks()) {
    throw InvalidInput(fmt::format("self-test: found {} ranks, wanted {}, those of a grid of EP {} and EDP {}",
                                   transport.ranks(), layout.grid().ranks(), layout.grid().ep, layout.grid().edp));
  }
  if (options.moves < 1) throw InvalidInput(fmt::format("moves: found {}, wanted at least 1", options.moves));
  SelfTestReport report;
  const Placement home = Placement::identity(layout.layers(), layout.experts(), layout.grid().ep);
  const auto memory = std::make_shared<Memory>(transport, layout, home, options);
  try {
    Tester(transport, home, options, *memory).run(report);
  } catch (const std::exception& error) {  // whatever it is, others may still copy from this rank's memory
    report.problem = error.what();
  }
  if (!report.verified) transport.keep(memory);
  return report;
}

}  // namespace routepack
