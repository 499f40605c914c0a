// SPDX-License-Identifier: Apache-2.0
#include "transfer/move.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <new>
#include <thread>
#include <utility>

#include "core/assert.h"

namespace routepack {
namespace {

using Clock = std::chrono::steady_clock;

/// What all ranks must say alike before anything moves.
struct Agreement {
  static constexpr std::array kNames{"the layout",          "the placement before", "the placement asked for",
                                     "the options",         "the epoch now",        "the epoch asked for",
                                     "the optimizer steps", "the number of moves"};
  std::array<std::uint64_t, kNames.size()> values{};
  std::int32_t rank = -1;
  friend auto operator<=>(const Agreement&, const Agreement&) = default;
};

/// Joined over all ranks: unequal lowest and highest mean that somebody differs.
struct Preparation {
  Agreement lowest, highest;
  FailureRecord failure;
};

std::uint64_t number_of(const std::string& fingerprint) {
  return std::stoull(fingerprint.substr(fingerprint.find(':') + 1), nullptr, 16);
}

std::string differing(const Agreement& a, const Agreement& b) {
  for (std::size_t i = 0; i < Agreement::kNames.size(); ++i) {
    if (a.values[i] == b.values[i]) continue;
    const bool plain = i == 4 || i == 5;
    return plain ? fmt::format("{} is {} on rank {} and {} on rank {}", Agreement::kNames[i],
                               static_cast<std::int64_t>(a.values[i]), a.rank, static_cast<std::int64_t>(b.values[i]),
                               b.rank)
                 : fmt::format("{} differs between ranks: {:016x} on rank {}, {:016x} on rank {}", Agreement::kNames[i],
                               a.values[i], a.rank, b.values[i], b.rank);
  }
  return {};
}

/// Between polls: first gives the core to whoever shares it, then sleeps a little.
class Idle {
 public:
  void rest() {
    if (++rests_ < 200) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(rests_ - 150, 500)));
    }
  }
  void reset() { rests_ = 0; }

 private:
  int rests_ = 0;
};

double& seconds_of(TransferOutcome& outcome, TransferPhase phase) {
  switch (phase) {
    case TransferPhase::Transfer:
      return outcome.transfer_seconds;
    case TransferPhase::Verify:
      return outcome.verify_seconds;
    case TransferPhase::Commit:
      return outcome.commit_seconds;
    case TransferPhase::Confirm:
      return outcome.confirm_seconds;
    default:
      return outcome.prepare_seconds;
  }
}

}  // namespace

Move::Move(Council& council, StateMover& mover, const GridLayout& layout, const Maps& maps,
           const TransferOptions& options, Watcher watcher)
    : council_(council),
      mover_(mover),
      layout_(layout),
      maps_(maps),
      options_(options),
      watcher_(std::move(watcher)),
      schedule_(schedule_moves(layout, maps.from, maps.to, council.rank(), options.route)),
      entered_(Clock::now()) {
  const std::size_t per_unit = options_.atomic == Atomic::Step ? std::max<std::size_t>(1, schedule_.size()) : 1;
  for (std::size_t begin = 0; begin < schedule_.size(); begin += per_unit) {
    units_.push_back({begin, std::min(begin + per_unit, schedule_.size())});
  }
  for (const LayerSchedule& layer : schedule_) expected_.emplace_back(layer.copies.size());
  for (const Unit& unit : units_) {
    std::int64_t bytes = 0;
    for (const LayerSchedule& layer : layers_of(unit)) bytes += layer.staging_bytes;
    outcome_.staging_bytes = std::max(outcome_.staging_bytes, bytes);
  }
  outcome_.layers.assign(static_cast<std::size_t>(layout.layers()), LayerState::Old);
}

TransferOutcome Move::run() {
  try {
    prepare();
    for (const Unit& unit : units_) {
      transfer(unit);
      verify(unit);
      commit(unit);
    }
    confirm();
    outcome_.complete = true;
    enter(TransferPhase::Done);
  } catch (const Refused& refused) {
    leave_together(refused.failure);
  } catch (const Stopped& stopped) {
    settle(stopped.failure);
  } catch (...) {
    spent_ = true;  // as good as dead to the others
    throw;
  }
  mover_.release();
  return std::move(outcome_);
}

void Move::prepare() {
  enter(TransferPhase::Prepare);
  Agreement mine;
  const auto options = static_cast<std::uint64_t>(options_.route) | static_cast<std::uint64_t>(options_.atomic) << 8U;
  const std::optional<TransferFailure> unfit = fitness();
  mine.values = {number_of(layout_.fingerprint()),
                 number_of(maps_.from.fingerprint()),
                 number_of(maps_.to.fingerprint()),
                 options,
                 static_cast<std::uint64_t>(maps_.epoch_now),
                 static_cast<std::uint64_t>(maps_.epoch_next),
                 unfit ? 0 : mover_.equal_digest(),
                 units_.size()};
  mine.rank = council_.rank();
  Preparation preparation{mine, mine, {}};
  if (unfit) preparation.failure = FailureRecord(*unfit, false);

  Council::Joining<Preparation> joining(council_, 0, preparation);
  const auto join = [](Preparation& all, const Preparation& other) {
    all.lowest = std::min(all.lowest, other.lowest);
    all.highest = std::max(all.highest, other.highest);
    all.failure.join(other.failure);
  };
  wait([&](bool& progressed) { return joining.advance(join, progressed); }, [&] { return joining.waiting_for(); });
  const Preparation& all = joining.record();
  if (all.failure.present != 0) throw Refused{all.failure};
  if (all.lowest.values != all.highest.values) {
    TransferFailure differs = failure(-1, -1, -1, differing(all.lowest, all.highest));
    differs.rank = all.highest.rank;
    throw Refused{FailureRecord(differs, false)};
  }
}

/// What forbids the move on this rank.
std::optional<TransferFailure> Move::fitness() {
  try {
    mover_.facts().refuse_unmovable();
  } catch (const std::exception& refusal) {
    return failure(-1, -1, -1, fmt::format("rank {}: {}", council_.rank(), refusal.what()));
  }
  if (options_.staging_limit && outcome_.staging_bytes > *options_.staging_limit) {
    return failure(-1, -1, -1,
                   fmt::format("rank {}: the move needs {} bytes of staging, the limit is {}", council_.rank(),
                               outcome_.staging_bytes, *options_.staging_limit));
  }
  const std::int32_t first = layout_.grid().ep_rank(council_.rank()) * layout_.slots();
  for (const LayerId l : IdRange<LayerId>(layout_.layers())) {
    for (std::int32_t slot = 0; slot < layout_.slots(); ++slot) {
      const auto index = static_cast<std::size_t>(first) + static_cast<std::size_t>(slot);
      const auto wanted = maps_.from.physical_to_logical()[l][index];
      const auto found = mover_.canary(l, slot);
      if (found == std::array<std::int64_t, 2>{l.value(), wanted.value()}) continue;
      return failure(
          l.value(), wanted.value(), layout_.canary(),
          fmt::format("rank {}: layer {}, local slot {} should hold expert {}, but its canary says layer {}, "
                      "expert {}",
                      council_.rank(), l.value(), slot, wanted.value(), found[0], found[1]));
    }
  }
  try {
    return mover_.inspect(schedule_);
  } catch (const std::exception& error) {
    return failure(-1, -1, -1, fmt::format("rank {}: {}", council_.rank(), error.what()));
  }
}

void Move::transfer(const Unit& unit) {
  enter(TransferPhase::Transfer, schedule_[unit.begin].layer.value());
  try {
    mover_.stage(layers_of(unit));
  } catch (const std::bad_alloc&) {
    throw Stopped{FailureRecord(
        failure(layer_, -1, -1,
                fmt::format("rank {}: no memory for {} bytes of staging", council_.rank(), outcome_.staging_bytes)),
        false)};
  }
  for (std::size_t layer = unit.begin; layer < unit.end; ++layer) {
    enter(TransferPhase::Transfer, schedule_[layer].layer.value());
    for (const std::int32_t hop : {1, 2}) {
      run_hop(layer, hop);
      exchange_checksums(layer, hop);
    }
  }
}

void Move::run_hop(std::size_t index, std::int32_t hop) {
  const LayerSchedule& layer = schedule_[index];
  try {
    mover_.start(layer, hop);
    wait([&](bool& progressed) { return mover_.advance(progressed); }, [&] { return mover_.waiting_for(); });
  } catch (const PeerLost& lost) {
    if (lost.rank() == council_.rank()) throw;
    throw Stopped{silence(lost.rank())};
  } catch (const Error& error) {
    throw Stopped{FailureRecord(
        failure(layer_, -1, -1, fmt::format("rank {}: layer {}: {}", council_.rank(), layer_, error.what())), false)};
  }
  for (const Copy& copy : layer.copies) {
    if (copy.hop != hop || copy.piece.tensor == layout_.canary()) continue;
    auto& bytes = copy.kind == CopyKind::Local  ? outcome_.bytes_local
                  : copy.kind == CopyKind::Send ? outcome_.bytes_sent
                                                : outcome_.bytes_received;
    bytes += copy.bytes;
  }
}

/// Origins say what they sent; who passes a piece on passes its checksum on too, so that the last rank compares with
/// the first.
void Move::exchange_checksums(std::size_t index, std::int32_t hop) {
  const LayerSchedule& layer = schedule_[index];
  const auto topic = static_cast<std::uint32_t>(2 * index) + static_cast<std::uint32_t>(hop);
  std::map<std::int64_t, std::size_t> in_transit;  // staging offset → the hop-1 copy that filled it
  std::map<std::int32_t, std::vector<std::uint64_t>> outgoing;
  std::map<std::int32_t, std::vector<std::size_t>> incoming;
  for (std::size_t i = 0; i < layer.copies.size(); ++i) {
    const Copy& copy = layer.copies[i];
    if (copy.kind == CopyKind::Receive && !copy.to_final) in_transit[copy.staging_offset] = i;
    if (copy.hop != hop) continue;
    switch (copy.kind) {
      case CopyKind::Local:
        if (copy.from_live) {
          expected_[index][i] = mover_.source_checksum(layer, i);
        } else {
          expected_[index][i] = expected_[index][in_transit.at(copy.staging_offset)];
        }
        break;
      case CopyKind::Send: {
        const auto origin = copy.from_live ? std::optional(mover_.source_checksum(layer, i))
                                           : expected_[index][in_transit.at(copy.staging_offset)];
        ROUTEPACK_ASSERT(origin.has_value(), "a piece is passed on before its checksum came");
        outgoing[copy.peer].push_back(*origin);
        break;
      }
      case CopyKind::Receive:
        incoming[copy.peer].push_back(i);
        break;
    }
  }
  for (const auto& [peer, values] : outgoing) council_.send_checksums(peer, topic, values);

  for (const auto& [peer, copies] : incoming) {
    std::vector<std::uint64_t> values;
    wait(
        [&, from = peer, wanted = copies.size()](bool& progressed) {
          progressed |= council_.take_checksums(from, topic, values);
          return values.size() >= wanted;
        },
        [from = peer] { return from; });
    for (std::size_t i = 0; i < copies.size(); ++i) expected_[index][copies[i]] = values[i];
  }
}

void Move::verify(const Unit& unit) {
  enter(TransferPhase::Verify, schedule_[unit.begin].layer.value());
  const std::optional<TransferFailure> defect = first_defect(unit);
  voted_ = !defect;
  vote(static_cast<std::uint32_t>(decided_) + 1, TransferPhase::Verify, defect);
  ++decided_;
  voted_ = false;
}

std::optional<TransferFailure> Move::first_defect(const Unit& unit) {
  for (std::size_t index = unit.begin; index < unit.end; ++index) {
    const LayerSchedule& layer = schedule_[index];
    for (std::size_t i = 0; i < layer.copies.size(); ++i) {
      const Copy& copy = layer.copies[i];
      if (copy.kind == CopyKind::Send) continue;
      const Piece& piece = copy.piece;
      const auto found = mover_.staged_checksum(layer, i);
      if (found != expected_[index][i]) {
        return failure(
            piece.layer.value(), piece.expert.value(), piece.tensor,
            fmt::format("rank {}: layer {}, expert {}, tensor «{}», elements {} to {}{}: checksum {:016x}, the "
                        "origin says {:016x}",
                        council_.rank(), piece.layer.value(), piece.expert.value(),
                        layout_.tensors()[static_cast<std::size_t>(piece.tensor)].name, piece.begin, piece.end,
                        copy.peer < 0 ? std::string() : fmt::format(", from rank {}", copy.peer), found,
                        expected_[index][i].value_or(0)));
      }
      if (piece.tensor != layout_.canary() || !copy.to_final) continue;
      const auto canary = mover_.staged_canary(layer, i);
      if (canary != std::array<std::int64_t, 2>{piece.layer.value(), piece.expert.value()}) {
        return failure(piece.layer.value(), piece.expert.value(), piece.tensor,
                       fmt::format("rank {}: layer {}: expert {} was due, the canary says layer {}, expert {}",
                                   council_.rank(), piece.layer.value(), piece.expert.value(), canary[0], canary[1]));
      }
    }
  }
  return std::nullopt;
}

/// Everyone's staging is whole, so everyone can finish alone.
void Move::commit(const Unit& unit) {
  std::optional<TransferFailure> failed;
  for (const LayerSchedule& layer : layers_of(unit)) {
    enter(TransferPhase::Commit, layer.layer.value());
    std::optional<TransferFailure> torn = write(layer);
    if (torn) torn = write(layer);
    outcome_.layers[layer.layer] = torn ? LayerState::Torn : LayerState::New;
    if (torn && !failed) failed = torn;
  }
  if (failed) throw Stopped{FailureRecord(*failed, false)};
}

std::optional<TransferFailure> Move::write(const LayerSchedule& layer) {
  for (const bool canaries : {false, true}) {  // a slot says whose it is only when it is
    for (std::size_t i = 0; i < layer.copies.size(); ++i) {
      const Copy& copy = layer.copies[i];
      if (!copy.to_final || (copy.piece.tensor == layout_.canary()) != canaries) continue;
      try {
        mover_.commit(layer, i, options_.read_back || canaries);
      } catch (const std::exception& error) {  // the trainer's own kinds included: a torn layer must never go unnamed
        return failure(copy.piece.layer.value(), copy.piece.expert.value(), copy.piece.tensor,
                       fmt::format("rank {}: layer {}, expert {}, tensor «{}»: {}", council_.rank(),
                                   copy.piece.layer.value(), copy.piece.expert.value(),
                                   layout_.tensors()[static_cast<std::size_t>(copy.piece.tensor)].name, error.what()));
      }
    }
  }
  return std::nullopt;
}

void Move::confirm() {
  enter(TransferPhase::Confirm);
  vote(static_cast<std::uint32_t>(units_.size()) + 1, TransferPhase::Confirm, std::nullopt);
}

void Move::vote(std::uint32_t topic, TransferPhase phase, const std::optional<TransferFailure>& mine) {
  FailureRecord record;
  if (mine) record = FailureRecord(*mine, false);
  Council::Joining<FailureRecord> joining(council_, topic, record);
  const auto join = [](FailureRecord& all, const FailureRecord& other) { all.join(other); };
  phase_ = phase;
  wait([&](bool& progressed) { return joining.advance(join, progressed); }, [&] { return joining.waiting_for(); });
  if (joining.record().present != 0) throw Refused{joining.record()};
}

/// Polls `step` until it is done, somebody else stops, or nothing has happened for the timeout; `who` says whom we
/// wait for.
template <class Step, class Who>
void Move::wait(const Step& step, const Who& who) {
  Idle idle;
  auto since = Clock::now();
  for (;;) {
    try {
      bool progressed = council_.listen();
      if (step(progressed)) return;
      if (council_.somebody_stopped()) throw Stopped{};
      if (progressed) {
        since = Clock::now();
        idle.reset();
        continue;
      }
    } catch (const PeerLost& lost) {
      if (lost.rank() == council_.rank()) throw;
      FailureRecord record = silence(lost.rank());
      throw Stopped{record};
    }
    if (Clock::now() - since >= options_.timeout) throw Stopped{silence(who())};
    idle.rest();
  }
}

FailureRecord Move::silence(std::int32_t rank) const {
  TransferFailure silent = failure(layer_, -1, -1, {});
  silent.rank = rank;
  silent.what = rank < 0 ? std::string("the network does not carry notes any more")
                         : fmt::format("rank {} did not answer within {} ms", rank, options_.timeout.count());
  return {silent, true};
}

TransferFailure Move::failure(std::int32_t layer, std::int32_t expert, std::int32_t tensor, std::string what) const {
  return {phase_, council_.rank(), layer, expert, tensor, std::move(what)};
}

/// A failure that all ranks know and after which nothing is under way: everyone leaves, and can try again.
void Move::leave_together(const FailureRecord& failure) {
  Standing standing;
  standing.decided = decided_;
  standing.agreed = 1;
  standing.failure = failure;
  try {
    for (const std::uint32_t round : {0U, 1U}) council_.declare(round, standing);  // for whoever missed the vote
  } catch (const PeerLost&) {
    spent_ = true;
  }
  outcome_.failure = failure.failure();
  enter(TransferPhase::Failed);
}

/// Everyone says which unit was decided last. Whoever voted for a unit but did not learn the decision follows those who
/// did; if nobody did, nobody wrote it. The second round passes on what a rank said that fell silent during the first.
void Move::settle(FailureRecord record) {
  spent_ = true;
  Standing standing;
  standing.decided = decided_;
  standing.failure = record;
  std::vector<bool> answered(static_cast<std::size_t>(council_.ranks()), true);
  try {
    for (const std::uint32_t round : {0U, 1U}) hear_out(round, standing, answered);
  } catch (const PeerLost& lost) {  // even notes do not get through any more
    if (lost.rank() == council_.rank()) throw;
    answered.assign(answered.size(), false);
    answered[static_cast<std::size_t>(council_.rank())] = true;
  }
  for (std::int32_t r = 0; r < council_.ranks(); ++r) {
    if (!answered[static_cast<std::size_t>(r)]) outcome_.silent.push_back(r);
  }
  if (voted_ && standing.decided > decided_) {
    const Unit& unit = units_[static_cast<std::size_t>(decided_)];
    ++decided_;
    voted_ = false;
    try {
      commit(unit);
    } catch (const Stopped& stopped) {
      standing.failure.join(stopped.failure);
    }
  }
  if (standing.failure.present == 0) {
    standing.failure = FailureRecord(failure(layer_, -1, -1, "another rank stopped without saying why"), true);
  }
  // The first silence heard of may be second-hand: a rank that waited for one that waited for the dead.
  if (standing.failure.silence != 0 && !outcome_.silent.empty()) {
    FailureRecord direct = silence(outcome_.silent.front());
    direct.phase = standing.failure.phase;
    direct.layer = standing.failure.layer;
    standing.failure = direct;
  }
  outcome_.failure = standing.failure.failure();
  enter(TransferPhase::Failed);
}

/// Tells everybody where this rank stands, and takes in what the others say, as far as they answered before.
void Move::hear_out(std::uint32_t round, Standing& standing, std::vector<bool>& answered) {
  council_.declare(round, standing);
  const auto until = Clock::now() + options_.timeout / 2;
  const auto all_in = [&] {
    for (std::int32_t r = 0; r < council_.ranks(); ++r) {
      if (r != council_.rank() && answered[static_cast<std::size_t>(r)] && !council_.standing_of(r, round))
        return false;
    }
    return true;
  };
  Idle idle;
  for (council_.listen(); !all_in() && Clock::now() < until;) {
    if (council_.listen()) idle.reset();
    idle.rest();
  }
  for (std::int32_t r = 0; r < council_.ranks(); ++r) {
    if (r == council_.rank()) continue;
    const auto other = council_.standing_of(r, round);
    if (round == 0) answered[static_cast<std::size_t>(r)] = other.has_value();
    if (!other) continue;
    standing.decided = std::max(standing.decided, other->decided);
    standing.failure.join(other->failure);
  }
}

void Move::enter(TransferPhase phase, std::int32_t layer) {
  const auto now = Clock::now();
  if (phase_ != TransferPhase::Idle) {
    seconds_of(outcome_, phase_) += std::chrono::duration<double>(now - entered_).count();
  }
  entered_ = now;
  phase_ = phase;
  if (layer >= 0) layer_ = layer;
  watcher_(phase, layer_, outcome_.layers);
}

}  // namespace routepack
