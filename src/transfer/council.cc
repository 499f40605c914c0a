// SPDX-License-Identifier: Apache-2.0
#include "transfer/council.h"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "core/assert.h"

namespace routepack {
namespace {

struct NoteHeader {
  static constexpr std::uint32_t kMagic = 0x52505431;  // «RPT1»: other layouts of notes have other numbers
  std::uint32_t magic = kMagic;
  std::uint32_t move = 0;
  std::uint32_t topic = 0;
  std::uint32_t step = 0;
  std::uint32_t kind = 0;
  std::uint32_t checksum = 0;  ///< of the whole note with 0 here: a note that came to harm counts as lost
};

std::uint32_t checksum_of(std::span<const std::byte> note) {
  return static_cast<std::uint32_t>(XXH3_64bits(note.data(), note.size()));
}

}  // namespace

FailureRecord::FailureRecord(const TransferFailure& failure, bool is_silence)
    : present(1),
      silence(is_silence ? 1 : 0),
      phase(static_cast<std::int32_t>(failure.phase)),
      rank(failure.rank),
      layer(failure.layer),
      expert(failure.expert),
      tensor(failure.tensor) {
  const std::size_t length = std::min(failure.what.size(), kMostText);
  // One line, whoever wrote it.
  std::ranges::transform(failure.what.begin(), failure.what.begin() + static_cast<std::ptrdiff_t>(length), what.begin(),
                         [](char c) { return c == '\n' || c == '\r' ? ' ' : c; });
}

TransferFailure FailureRecord::failure() const {
  const auto end = std::ranges::find(what, '\0');
  return {static_cast<TransferPhase>(phase), rank, layer, expert, tensor, std::string(what.begin(), end)};
}

void FailureRecord::join(const FailureRecord& other) {
  const auto key = [](const FailureRecord& f) {
    return std::tuple(f.present == 0, f.silence, f.rank, f.phase, f.layer, f.expert, f.tensor,
                      std::string_view(f.what.data(), f.what.size()));
  };
  if (key(other) < key(*this)) *this = other;
}

void Council::open(std::uint32_t move) {
  move_ = move;
  inbox_.erase(inbox_.begin(), inbox_.lower_bound(move));
  look_for_stops();
}

void Council::post(std::int32_t to, Kind kind, std::uint32_t topic, std::uint32_t step,
                   std::span<const std::byte> payload) {
  NoteHeader header;
  header.move = move_;
  header.topic = topic;
  header.step = step;
  header.kind = kind;
  const auto head = std::as_bytes(std::span(&header, 1));
  std::vector<std::byte> note(head.begin(), head.end());
  note.insert(note.end(), payload.begin(), payload.end());
  ROUTEPACK_ASSERT(note.size() <= Postbox::kMostNoteBytes, "a note is too long");
  header.checksum = checksum_of(note);
  std::memcpy(note.data(), &header, sizeof header);
  postbox_.post(to, note);
}

bool Council::listen() {
  bool any = false;
  while (auto note = postbox_.note()) {
    any = true;
    NoteHeader header;
    if (note->bytes.size() < sizeof header || note->from < 0 || note->from >= ranks()) continue;
    std::memcpy(&header, note->bytes.data(), sizeof header);
    if (header.magic != NoteHeader::kMagic || header.move < move_) continue;
    std::memset(note->bytes.data() + offsetof(NoteHeader, checksum), 0, sizeof header.checksum);
    if (checksum_of(note->bytes) != header.checksum) continue;
    note->bytes.erase(note->bytes.begin(), note->bytes.begin() + sizeof header);
    const Key key{static_cast<std::uint8_t>(header.kind), header.topic, header.step, note->from};
    inbox_[header.move][key].push_back(std::move(note->bytes));
    if (header.move == move_ && header.kind == kStanding) look_for_stops();
  }
  return any;
}

bool Council::take(Kind kind, std::uint32_t topic, std::uint32_t step, std::int32_t from, std::span<std::byte> into) {
  auto& notes = inbox_[move_];
  const auto found = notes.find({kind, topic, step, from});
  if (found == notes.end()) return false;
  const std::vector<std::byte> bytes = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) notes.erase(found);
  if (bytes.size() != into.size()) return false;  // another version's; it will be missed like a lost one
  std::ranges::copy(bytes, into.begin());
  return true;
}

void Council::send_checksums(std::int32_t to, std::uint32_t topic, std::span<const std::uint64_t> values) {
  constexpr std::size_t kMost = (Postbox::kMostNoteBytes - sizeof(NoteHeader)) / sizeof(std::uint64_t);
  for (std::size_t at = 0; at < values.size(); at += kMost) {
    post(to, kChecksums, topic, 0, std::as_bytes(values.subspan(at, std::min(kMost, values.size() - at))));
  }
}

bool Council::take_checksums(std::int32_t from, std::uint32_t topic, std::vector<std::uint64_t>& values) {
  auto& notes = inbox_[move_];
  const auto found = notes.find({kChecksums, topic, 0, from});
  if (found == notes.end()) return false;
  for (const auto& bytes : found->second) {
    const std::size_t count = bytes.size() / sizeof(std::uint64_t);
    const std::size_t before = values.size();
    values.resize(before + count);
    std::memcpy(values.data() + before, bytes.data(), count * sizeof(std::uint64_t));
  }
  notes.erase(found);
  return true;
}

void Council::declare(std::uint32_t round, const Standing& standing) {
  for (std::int32_t to = 0; to < ranks(); ++to) {
    if (to != rank()) post(to, kStanding, 0, round, std::as_bytes(std::span(&standing, 1)));
  }
}

std::optional<Standing> Council::standing_of(std::int32_t rank, std::uint32_t round) const {
  const auto notes = inbox_.find(move_);
  if (notes == inbox_.end()) return std::nullopt;
  const auto found = notes->second.find({kStanding, 0, round, rank});
  if (found == notes->second.end() || found->second.front().size() != sizeof(Standing)) return std::nullopt;
  Standing standing;
  std::memcpy(&standing, found->second.front().data(), sizeof standing);
  return standing;
}

void Council::look_for_stops() {
  stopped_ = false;
  for (std::int32_t r = 0; r < ranks(); ++r) {
    const auto standing = r == rank() ? std::nullopt : standing_of(r, 0);
    stopped_ |= standing && standing->agreed == 0;
  }
}

}  // namespace routepack
