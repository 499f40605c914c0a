// SPDX-License-Identifier: Apache-2.0
#include "packing/search/proposal.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "core/portable_math.h"

namespace routepack::search {
namespace {

constexpr std::uint32_t kSearchStream = 0x5ea6c400;  // keeps clear of other users of the same seed
constexpr std::size_t kQuantiles = 4096;

/// −ln u at the middle of 4096 equal steps of u: no libm, no branch.
const std::array<double, kQuantiles>& quantiles() {
  static const auto kTable = [] {
    std::array<double, kQuantiles> made{};
    for (std::size_t k = 0; k < kQuantiles; ++k) {
      made[k] = -portable::log((static_cast<double>(k) + 0.5) / static_cast<double>(kQuantiles));
    }
    return made;
  }();
  return kTable;
}

std::uint32_t of_16_bits(double share) {
  return static_cast<std::uint32_t>(std::lround(share * 65536.0));
}

}  // namespace

Proposer::Proposer(const Problem& problem, const Region& region, const SearchParams& params, const Task& task)
    : problem_(problem),
      region_(region),
      key_(static_cast<std::uint64_t>(task.seed)),
      name_{task.chain, task.level, kSearchStream},
      movable_(static_cast<std::uint32_t>(region.movable.size())) {
  guided_below_ = of_16_bits(params.guided_share);
  relocation_below_ = guided_below_ + of_16_bits((1.0 - params.guided_share) * params.relocation_share);
  const double swaps = (1.0 - params.guided_share) * (1.0 - params.relocation_share);
  near_below_ = relocation_below_ + of_16_bits(swaps * params.near_share);
  near_width_ = std::max<std::uint32_t>(4, static_cast<std::uint32_t>(params.near_width * movable_));
  guided_relocation_below_ = of_16_bits(params.relocation_share);
  if (guided_below_ == 0) return;
  for (const Index cell : region.cells) row_shards_.push_back(problem.row_shard_of[cell]);
  std::ranges::sort(row_shards_);
  row_shards_.erase(std::ranges::unique(row_shards_).begin(), row_shards_.end());
}

Bits Proposer::bits(std::int64_t step) const {
  // Steps of a task stay below 2^32.
  return philox(key_, {static_cast<std::uint32_t>(step), name_[0], name_[1], name_[2]});
}

Proposer::Kind Proposer::kind(const Bits& bits) const {
  const std::uint32_t at = bits[2] >> 16;
  if (at < guided_below_) return Kind::Guided;
  if (at < relocation_below_) return Kind::Relocation;
  return at < near_below_ ? Kind::Near : Kind::Anywhere;
}

Index Proposer::item(const Bits& bits) const {
  return region_.movable[scaled(bits[0], movable_)];
}

Index Proposer::partner(Kind kind, const Bits& bits) const {
  if (kind == Kind::Anywhere) return region_.movable[scaled(bits[1], movable_)];
  // A neighbour in length: 1 … near_width before or after, around the ends.
  const std::uint32_t here = scaled(bits[0], movable_);
  const std::uint32_t width = std::min(near_width_, movable_ - 1);
  const std::uint32_t offset = 1 + scaled(bits[1] << 1, width);
  const std::uint32_t at = (bits[1] >> 31) != 0 ? here + offset : here + movable_ - offset;
  return region_.movable[at >= movable_ ? at - movable_ : at];
}

void Proposer::prefetch(const Bits& bits) const {
  const Kind now = kind(bits);
  if (now == Kind::Guided) return;
  const auto fetch = [&](Index i) {
    const std::size_t lanes = problem_.loads.shape().lanes();
    const char* at = problem_.loads.narrow() ? reinterpret_cast<const char*>(problem_.loads.narrow(i))
                                             : reinterpret_cast<const char*>(problem_.loads.wide(i));
    const std::size_t bytes = std::min<std::size_t>(512, lanes * (problem_.loads.narrow() ? 2 : 4));
    for (std::size_t b = 0; b < bytes; b += 64) __builtin_prefetch(at + b);
  };
  fetch(item(bits));
  if (now != Kind::Relocation) fetch(partner(now, bits));
}

bool Proposer::draw(const State& state, const Bits& bits, Move& move) const {
  const Kind now = kind(bits);
  if (now == Kind::Guided) return draw_guided(state, bits, move);
  move.item = item(bits);
  if (now == Kind::Relocation) {
    move.partner = Move::kNobody;
    move.to = region_.cells[scaled(bits[1], static_cast<std::uint32_t>(region_.cells.size()))];
  } else {
    move.partner = partner(now, bits);
    move.to = state.cell_of(move.partner);
  }
  return move.to != state.cell_of(move.item);
}

bool Proposer::draw_guided(const State& state, const Bits& bits, Move& move) const {
  // A second block: a guided step takes more decisions.
  const Bits more = philox(key_ ^ 0x9e3779b97f4a7c15ULL, {bits[0], bits[1], bits[2], bits[3]});
  const auto row_shards = static_cast<std::uint32_t>(row_shards_.size());
  const auto duel = [&](std::uint32_t x, std::uint32_t y, bool larger) {
    const Index a = row_shards_[scaled(x, row_shards)];
    const Index b = row_shards_[scaled(y, row_shards)];
    return (state.fixed_joint(a) > state.fixed_joint(b)) == larger ? a : b;
  };
  const Index source = duel(bits[0], bits[1], true);
  const Index target = duel(more[0], more[1], false);
  // The attention straggler in proportion to what attention contributes to J, else any cell.
  const double joint = state.joint()[source];
  Index from = state.dense_straggler(source);
  if (static_cast<double>(more[2]) * 0x1p-32 * joint >= state.dense_part(source)) {
    const Index first = problem_.first_cell(source);
    from = first + scaled(more[2] << 7, problem_.end_cell(source) - first);
  }
  const Index first = problem_.first_cell(target);
  move.to = first + scaled(more[3], problem_.end_cell(target) - first);
  if (move.to == from) return false;
  const auto source_items = state.items_in(from);
  move.item = source_items[scaled(bits[3], static_cast<std::uint32_t>(source_items.size()))];
  if (!problem_.is_movable[move.item]) return false;
  if ((more[0] & 0xffff) < guided_relocation_below_) {
    move.partner = Move::kNobody;
    return true;
  }
  const auto target_items = state.items_in(move.to);
  move.partner = target_items[scaled(more[3] << 9, static_cast<std::uint32_t>(target_items.size()))];
  return problem_.is_movable[move.partner];
}

double Proposer::exponential(const Bits& bits) {
  return quantiles()[bits[3] >> 20];
}

}  // namespace routepack::search
