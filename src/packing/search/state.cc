// SPDX-License-Identifier: Apache-2.0
#include "packing/search/state.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/assert.h"

namespace routepack::search {

template <class Lane>
const Lane* State::loads_of(Index item) const {
  const std::size_t at = item == Move::kNobody ? problem_->loads.items() : item;
  if constexpr (std::is_same_v<Lane, std::int16_t>) {
    return problem_->loads.narrow(at);
  } else {
    return problem_->loads.wide(at);
  }
}

template <class Lane>
const Lane* State::row_loads(Index row_shard) const {
  const std::size_t at = row_shard * problem_->loads.shape().lanes();
  if constexpr (std::is_same_v<Lane, std::int16_t>) {
    return relative_.data() + at;
  } else {
    return loads_.data() + at;
  }
}

State::State(const Problem& problem, const Arrangement& arrangement) : problem_(&problem) {
  const LaneShape& shape = problem.loads.shape();
  const std::size_t stages = problem.instance.cost.stages().size();
  const std::size_t row_shards = problem.row_shards();
  ROUTEPACK_ASSERT(arrangement.cells.size() == problem.cells(), "an arrangement of another size");
  cell_of_.resize(problem.items.items.size());
  place_in_cell_.resize(problem.items.items.size());
  members_.resize(problem.cells());
  cells_.resize(problem.cells());
  stage_costs_.resize(problem.cells() * stages);
  slowest_.resize(row_shards * stages);
  pads_.resize(row_shards);
  loads_.resize(row_shards * shape.lanes());
  if (problem.loads.narrow()) relative_.resize(row_shards * shape.lanes());
  peaks_.resize(row_shards * shape.layer_lanes());
  peak_sums_.resize(row_shards);
  expert_.resize(row_shards);
  joint_.resize(row_shards);
  dense_.resize(row_shards);
  fixed_.resize(row_shards);

  for (std::size_t at = 0; at < arrangement.cells.size(); ++at) {
    const auto cell = static_cast<Index>(at / problem.slots * problem.slots + problem.column_of[at % problem.slots]);
    const auto& items = arrangement.cells[at].items;
    set_members(cell, std::vector<Index>(items.begin(), items.end()), arrangement.cells[at].closed);
  }
  for (Index rs = 0; rs < row_shards; ++rs) make_anew(rs);
}

void State::set_members(Index cell, std::vector<Index> items, bool closed) {
  members_[cell] = std::move(items);
  place_members(cell);
  CellSums sums{.closed = closed};
  for (const Index item : members_[cell]) sums = changed(sums, Move::kNobody, item);
  set_sums(cell, sums);
}

void State::place_members(Index cell) {
  for (std::size_t place = 0; place < members_[cell].size(); ++place) {
    const Index item = members_[cell][place];
    cell_of_[item] = cell;
    place_in_cell_[item] = static_cast<Index>(place);
  }
}

/// From its members and their sums.
void State::make_anew(Index row_shard) {
  const LaneShape& shape = problem_->loads.shape();
  std::int32_t* const loads = loads_.data() + row_shard * shape.lanes();
  std::int32_t* const peaks = peaks_.data() + row_shard * shape.layer_lanes();
  std::fill_n(loads, shape.lanes(), 0);
  for (Index cell = problem_->first_cell(row_shard); cell < problem_->end_cell(row_shard); ++cell) {
    for (const Index item : members_[cell]) {
      if (problem_->loads.narrow()) {
        kernels::apply(shape, loads_of<std::int16_t>(Move::kNobody), loads_of<std::int16_t>(item), loads, peaks);
      } else {
        kernels::apply(shape, loads_of<std::int32_t>(Move::kNobody), loads_of<std::int32_t>(item), loads, peaks);
      }
    }
  }
  derive(row_shard);
}

/// All but the loads, from them and the sums of the cells.
void State::derive(Index row_shard) {
  const LaneShape& shape = problem_->loads.shape();
  const std::size_t stages = problem_->instance.cost.stages().size();
  exchange_loads(row_shard, Move::kNobody, Move::kNobody);
  pads_[row_shard] = 0;
  for (Index cell = problem_->first_cell(row_shard); cell < problem_->end_cell(row_shard); ++cell) {
    pads_[row_shard] += pads(cells_[cell]);
  }
  refresh_slowest(row_shard);
  // A move of nothing prices the row-shard as it is.
  Totals room{.score = {}, .shard_totals = {}, .scratch = std::vector<std::int32_t>(2 * shape.layer_lanes())};
  Outcome now;
  const Move nothing{.item = Move::kNobody, .partner = Move::kNobody, .to = 0};
  const Dense dense{.pads_a = pads_[row_shard]};
  const bool kept = expert_after(nothing, row_shard, row_shard, dense, room, now);
  ROUTEPACK_ASSERT(kept, "a layout puts more than max_rank_tokens on a rank");
  double attention = 0.0;
  for (std::size_t s = 0; s < stages; ++s) attention += slowest_[row_shard * stages + s].first;
  expert_[row_shard] = now.expert_a;
  dense_[row_shard] = attention;
  joint_[row_shard] = attention + expert_[row_shard];
  fixed_[row_shard] = problem_->to_fixed(joint_[row_shard]);
}

void State::give(std::span<const Index> row_shards, std::vector<std::byte>& out) const {
  const std::size_t lanes = problem_->loads.shape().lanes();
  put(out, static_cast<std::uint64_t>(row_shards.size()));
  for (const Index rs : row_shards) {
    put(out, rs);
    for (Index cell = problem_->first_cell(rs); cell < problem_->end_cell(rs); ++cell) {
      put_list(out, std::span<const Index>(members_[cell]));
      put(out, cells_[cell]);
    }
    const auto loads = std::as_bytes(std::span(loads_).subspan(rs * lanes, lanes));
    out.insert(out.end(), loads.begin(), loads.end());
  }
}

void State::take(ByteReader& bytes) {
  const std::size_t lanes = problem_->loads.shape().lanes();
  for (auto row_shards = bytes.get<std::uint64_t>(); row_shards > 0; --row_shards) {
    const auto rs = bytes.get<Index>();
    for (Index cell = problem_->first_cell(rs); cell < problem_->end_cell(rs); ++cell) {
      members_[cell] = bytes.get_list<Index>();
      place_members(cell);
      set_sums(cell, bytes.get<CellSums>());
    }
    const auto loads = bytes.take(lanes * sizeof(std::int32_t));
    std::memcpy(loads_.data() + rs * lanes, loads.data(), loads.size());
    derive(rs);
    ROUTEPACK_HEAVY_ASSERT(agrees_with_scratch(rs), "a row-shard that was taken over differs from scratch");
  }
}

State::CellSums State::changed(const CellSums& cell, Index leaves, Index joins) const {
  CellSums result = cell;
  if (leaves != Move::kNobody) {
    const ItemFacts& item = problem_->facts[leaves];
    result.tokens -= item.tokens;
    result.squares -= item.squares;
    result.aligned -= item.aligned;
    result.samples -= item.samples;
  }
  if (joins != Move::kNobody) {
    const ItemFacts& item = problem_->facts[joins];
    result.tokens += item.tokens;
    result.squares += item.squares;
    result.aligned += item.aligned;
    result.samples += item.samples;
  }
  return result;
}

double State::stage_cost(const Stage& stage, const CellSums& cell) const {
  const double tokens = static_cast<double>(cell.tokens) / problem_->capacity;
  const double pairs = static_cast<double>(cell.squares) / problem_->capacity_squared;
  return stage.alpha * tokens + stage.beta * pairs;
}

std::int64_t State::pads(const CellSums& cell) const {
  return problem_->pad_rates.empty() ? 0 : problem_->instance.aligned_cell(cell.aligned) - cell.tokens;
}

bool State::fits(const Move& move) const {
  const Problem& p = *problem_;
  const Index from = cell_of_[move.item];
  const CellSums& a = cells_[from];
  const CellSums& b = cells_[move.to];
  const ItemFacts& item = p.facts[move.item];
  const bool same_slot = !p.equal_count || from % p.slots == move.to % p.slots;
  if (move.partner == Move::kNobody) {
    return same_slot && !b.closed && members_[from].size() > 1 && b.aligned + item.aligned <= p.room &&
           b.samples + item.samples <= p.max_samples;
  }
  const ItemFacts& partner = p.facts[move.partner];
  const std::int64_t more = std::int64_t{partner.aligned} - item.aligned;
  const std::int64_t samples = std::int64_t{partner.samples} - item.samples;
  return a.aligned + more <= p.room && b.aligned - more <= p.room && (samples == 0 || same_slot) &&
         a.samples + samples <= p.max_samples && b.samples - samples <= p.max_samples;
}

State::Dense State::dense_after(const Move& move, Index from, Index a, Index b) const {
  const auto stages = problem_->instance.cost.stages();
  const CellSums cell_a = changed(cells_[from], move.item, move.partner);
  const CellSums cell_b = changed(cells_[move.to], move.partner, move.item);
  Dense dense;
  if (a != b) {
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const Slowest& slow_a = slowest_[a * stages.size() + s];
      const Slowest& slow_b = slowest_[b * stages.size() + s];
      dense.a += std::max(slow_a.cell == from ? slow_a.second : slow_a.first, stage_cost(stages[s], cell_a));
      dense.b += std::max(slow_b.cell == move.to ? slow_b.second : slow_b.first, stage_cost(stages[s], cell_b));
    }
  } else {
    for (std::size_t s = 0; s < stages.size(); ++s) {
      double most = std::max(stage_cost(stages[s], cell_a), stage_cost(stages[s], cell_b));
      for (Index cell = problem_->first_cell(a); cell < problem_->end_cell(a); ++cell) {
        if (cell != from && cell != move.to) most = std::max(most, stage_costs_[cell * stages.size() + s]);
      }
      dense.a += most;
    }
  }
  if (!problem_->pad_rates.empty()) {
    const std::int64_t more_a = pads(cell_a) - pads(cells_[from]);
    const std::int64_t more_b = pads(cell_b) - pads(cells_[move.to]);
    dense.pads_a = pads_[a] + more_a + (a == b ? more_b : 0);
    dense.pads_b = pads_[b] + more_b;
  }
  return dense;
}

template <class Lane>
kernels::PeakSums State::sums_after(const Move& move, Index a, Index b) const {
  const LaneShape& shape = problem_->loads.shape();
  kernels::PeakSums sums = kernels::exchange_sums(shape, loads_of<Lane>(move.item), loads_of<Lane>(move.partner),
                                                  row_loads<Lane>(a), row_loads<Lane>(b));
  if constexpr (std::is_same_v<Lane, std::int16_t>) {
    const auto offset = static_cast<std::int64_t>(shape.layers()) * kernels::kNarrowLimit;
    sums.a += peak_sums_[a] - offset;
    sums.b += peak_sums_[b] - offset;
  }
  return sums;
}

template <class Lane>
bool State::weighed_after(const Move& move, Index a, Index b, Totals& totals, Outcome& outcome) const {
  const LaneShape& shape = problem_->loads.shape();
  // Lanes of 16 bits need half the room.
  auto* const peaks_a = reinterpret_cast<Lane*>(totals.scratch.data());
  Lane* const peaks_b = peaks_a + shape.layer_lanes();
  kernels::exchange_peaks(shape, loads_of<Lane>(move.item), loads_of<Lane>(move.partner), row_loads<Lane>(a),
                          row_loads<Lane>(b), peaks_a, peaks_b);
  const std::int32_t* const old_a = peaks_.data() + a * shape.layer_lanes();
  const std::int32_t* const old_b = peaks_.data() + b * shape.layer_lanes();
  double sum_a = 0.0;
  double sum_b = 0.0;
  std::int64_t most = 0;
  for (std::size_t l = 0; l < shape.layers(); ++l) {
    std::int64_t peak_a = peaks_a[l];
    std::int64_t peak_b = peaks_b[l];
    if constexpr (std::is_same_v<Lane, std::int16_t>) {
      peak_a += old_a[l] - kernels::kNarrowLimit;
      peak_b += old_b[l] - kernels::kNarrowLimit;
    }
    most = std::max({most, peak_a, peak_b});
    sum_a += problem_->layer_weights[l] * static_cast<double>(peak_a);
    sum_b += problem_->layer_weights[l] * static_cast<double>(peak_b);
  }
  outcome.expert_a = sum_a / problem_->capacity;
  outcome.expert_b = sum_b / problem_->capacity;
  return problem_->rank_limit == 0 || most <= problem_->rank_limit;
}

bool State::padded_after(Index row_shard, Index leaves, Index joins, std::int64_t pads, double& expert) const {
  const LaneShape& shape = problem_->loads.shape();
  const std::int32_t* const loads = loads_.data() + row_shard * shape.lanes();
  const auto load_of = [&](Index item, std::size_t lane) -> std::int64_t {
    return problem_->loads.narrow() ? loads_of<std::int16_t>(item)[lane] : loads_of<std::int32_t>(item)[lane];
  };
  double sum = 0.0;
  std::int64_t most = 0;
  for (std::size_t l = 0; l < shape.layers(); ++l) {
    std::int64_t peak = 0;
    for (std::size_t p = 0; p < shape.ranks(); ++p) {
      const std::size_t lane = shape.lane(l, p);
      const std::int64_t load = loads[lane] + load_of(joins, lane) - load_of(leaves, lane);
      peak = std::max(peak, load + ((pads * problem_->pad_rates[lane] + 32768) >> 16));
    }
    most = std::max(most, peak);
    sum += problem_->layer_weights[l] * static_cast<double>(peak);
  }
  expert = sum / problem_->capacity;
  return problem_->rank_limit == 0 || most <= problem_->rank_limit;
}

bool State::expert_after(const Move& move, Index a, Index b, const Dense& dense, Totals& totals,
                         Outcome& outcome) const {
  if (!problem_->pad_rates.empty()) {
    if (a == b) return padded_after(a, Move::kNobody, Move::kNobody, dense.pads_a, outcome.expert_a);
    return padded_after(a, move.item, move.partner, dense.pads_a, outcome.expert_a) &&
           padded_after(b, move.partner, move.item, dense.pads_b, outcome.expert_b);
  }
  const bool narrow = problem_->loads.narrow();
  if (problem_->plain_weights && problem_->rank_limit == 0) {
    const auto sums = narrow ? sums_after<std::int16_t>(move, a, b) : sums_after<std::int32_t>(move, a, b);
    const double weight = problem_->layer_weights.front();
    outcome.expert_a = weight * static_cast<double>(sums.a) / problem_->capacity;
    outcome.expert_b = weight * static_cast<double>(sums.b) / problem_->capacity;
    return true;
  }
  return narrow ? weighed_after<std::int16_t>(move, a, b, totals, outcome)
                : weighed_after<std::int32_t>(move, a, b, totals, outcome);
}

std::int64_t State::row_peak(std::size_t row) const {
  return *std::max_element(fixed_.begin() + static_cast<std::ptrdiff_t>(row * problem_->shards),
                           fixed_.begin() + static_cast<std::ptrdiff_t>((row + 1) * problem_->shards));
}

FixedScore State::score_after(Index a, Index b, const Outcome& outcome, bool with_worst, const Totals& totals) const {
  const std::size_t shards = problem_->shards;
  const std::int64_t more_a = outcome.fixed_a - fixed_[a];
  const std::int64_t more_b = a == b ? 0 : outcome.fixed_b - fixed_[b];
  FixedScore after;
  after.total = totals.score.total + more_a + more_b;
  if (shards == 1) {
    after.primary = after.total;
  } else if (problem_->instance.sync == Sync::Step) {
    const std::size_t ga = a % shards;
    const std::size_t gb = b % shards;
    for (std::size_t g = 0; g < shards; ++g) {
      const std::int64_t total = totals.shard_totals[g] + (g == ga ? more_a : 0) + (g == gb ? more_b : 0);
      after.primary = std::max(after.primary, total);
    }
  } else {
    const auto peak_after = [&](std::size_t row) {
      std::int64_t peak = 0;
      for (std::size_t rs = row * shards; rs < (row + 1) * shards; ++rs) {
        peak = std::max(peak, rs == a ? outcome.fixed_a : rs == b ? outcome.fixed_b : fixed_[rs]);
      }
      return peak;
    };
    const std::size_t row_a = a / shards;
    const std::size_t row_b = b / shards;
    after.primary = totals.score.primary + peak_after(row_a) - row_peak(row_a);
    if (row_b != row_a) after.primary += peak_after(row_b) - row_peak(row_b);
  }
  if (with_worst) {
    for (std::size_t rs = 0; rs < fixed_.size(); ++rs) {
      after.worst = std::max(after.worst, rs == a ? outcome.fixed_a : rs == b ? outcome.fixed_b : fixed_[rs]);
    }
  }
  return after;
}

bool State::price(const Move& move, bool with_worst, Totals& totals, Outcome& outcome) const {
  const Index from = cell_of_[move.item];
  const Index a = problem_->row_shard_of[from];
  const Index b = problem_->row_shard_of[move.to];
  const Dense dense = dense_after(move, from, a, b);
  if (a == b && problem_->pad_rates.empty()) {
    outcome.expert_a = outcome.expert_b = expert_[a];
  } else if (!expert_after(move, a, b, dense, totals, outcome)) {
    return false;
  }
  outcome.dense_a = dense.a;
  outcome.dense_b = dense.b;
  outcome.joint_a = dense.a + outcome.expert_a;
  outcome.joint_b = dense.b + outcome.expert_b;
  outcome.fixed_a = problem_->to_fixed(outcome.joint_a);
  outcome.fixed_b = problem_->to_fixed(outcome.joint_b);
  outcome.score = score_after(a, b, outcome, with_worst, totals);
  return true;
}

double State::rough_cost(std::size_t stage, std::int64_t tokens, std::int64_t squares) const {
  return problem_->token_costs[stage] * static_cast<double>(tokens) +
         problem_->pair_costs[stage] * static_cast<double>(squares);
}

State::Estimate State::estimate(const Move& move, Totals& totals) const {
  const Problem& p = *problem_;
  const Index from = cell_of_[move.item];
  const Index a = p.row_shard_of[from];
  const Index b = p.row_shard_of[move.to];
  if (!p.pad_rates.empty() || !p.plain_weights || p.rank_limit != 0) {
    Outcome outcome;
    if (!price(move, false, totals, outcome)) return {std::numeric_limits<double>::infinity(), 0.0};
    if (a != b) return {outcome.joint_a - joint_[a], outcome.joint_b - joint_[b]};
    const double half = 0.5 * (outcome.joint_a - joint_[a]);
    return {half, half};
  }
  std::int64_t tokens = -p.facts[move.item].tokens;
  std::int64_t squares = -p.facts[move.item].squares;
  if (move.partner != Move::kNobody) {
    tokens += p.facts[move.partner].tokens;
    squares += p.facts[move.partner].squares;
  }
  const CellSums& cell_a = cells_[from];
  const CellSums& cell_b = cells_[move.to];
  const std::size_t stages = p.token_costs.size();
  double dense_a = 0.0;
  double dense_b = 0.0;
  if (a == b) {
    for (std::size_t s = 0; s < stages; ++s) {
      double most = std::max(rough_cost(s, cell_a.tokens + tokens, cell_a.squares + squares),
                             rough_cost(s, cell_b.tokens - tokens, cell_b.squares - squares));
      for (Index cell = p.first_cell(a); cell < p.end_cell(a); ++cell) {
        if (cell != from && cell != move.to) most = std::max(most, stage_costs_[cell * stages + s]);
      }
      dense_a += most;
    }
    const double half = 0.5 * (dense_a - dense_[a]);
    return {half, half};
  }
  const auto sums = p.loads.narrow() ? sums_after<std::int16_t>(move, a, b) : sums_after<std::int32_t>(move, a, b);
  for (std::size_t s = 0; s < stages; ++s) {
    const Slowest& slow_a = slowest_[a * stages + s];
    const Slowest& slow_b = slowest_[b * stages + s];
    dense_a += std::max(slow_a.cell == from ? slow_a.second : slow_a.first,
                        rough_cost(s, cell_a.tokens + tokens, cell_a.squares + squares));
    dense_b += std::max(slow_b.cell == move.to ? slow_b.second : slow_b.first,
                        rough_cost(s, cell_b.tokens - tokens, cell_b.squares - squares));
  }
  return {dense_a - dense_[a] + p.peak_cost * static_cast<double>(sums.a - peak_sums_[a]),
          dense_b - dense_[b] + p.peak_cost * static_cast<double>(sums.b - peak_sums_[b])};
}

double State::energy_change(const EnergyWeights& weights, const Move& move, const Estimate& estimate,
                            const Totals& totals) const {
  const Problem& p = *problem_;
  const double total = (estimate.a + estimate.b) * p.fixed_scale;
  if (p.shards == 1) return (weights.primary + weights.total) * total;
  const Index a = p.row_shard_of[cell_of_[move.item]];
  const Index b = p.row_shard_of[move.to];
  Outcome outcome;
  outcome.fixed_a = fixed_[a] + static_cast<std::int64_t>((a == b ? 2.0 : 1.0) * estimate.a * p.fixed_scale);
  outcome.fixed_b = fixed_[b] + static_cast<std::int64_t>(estimate.b * p.fixed_scale);
  const FixedScore after = score_after(a, b, outcome, false, totals);
  return weights.primary * static_cast<double>(after.primary - totals.score.primary) + weights.total * total;
}

void State::move_member(Index item, Index to) {
  auto& old_home = members_[cell_of_[item]];
  const Index last = old_home.back();
  old_home[place_in_cell_[item]] = last;
  place_in_cell_[last] = place_in_cell_[item];
  old_home.pop_back();
  cell_of_[item] = to;
  place_in_cell_[item] = static_cast<Index>(members_[to].size());
  members_[to].push_back(item);
}

void State::exchange_loads(Index row_shard, Index leaves, Index joins) {
  const LaneShape& shape = problem_->loads.shape();
  std::int32_t* const loads = loads_.data() + row_shard * shape.lanes();
  std::int32_t* const peaks = peaks_.data() + row_shard * shape.layer_lanes();
  if (problem_->loads.narrow()) {
    kernels::apply(shape, loads_of<std::int16_t>(leaves), loads_of<std::int16_t>(joins), loads, peaks);
    kernels::relative_loads(shape, loads, peaks, relative_.data() + row_shard * shape.lanes());
  } else {
    kernels::apply(shape, loads_of<std::int32_t>(leaves), loads_of<std::int32_t>(joins), loads, peaks);
  }
  std::int64_t sum = 0;
  for (std::size_t l = 0; l < shape.layers(); ++l) sum += peaks[l];
  peak_sums_[row_shard] = sum;
}

void State::set_sums(Index cell, const CellSums& sums) {
  cells_[cell] = sums;
  const auto stages = problem_->instance.cost.stages();
  for (std::size_t s = 0; s < stages.size(); ++s) stage_costs_[cell * stages.size() + s] = stage_cost(stages[s], sums);
}

void State::refresh_slowest(Index row_shard) {
  const std::size_t stages = problem_->instance.cost.stages().size();
  for (std::size_t s = 0; s < stages; ++s) {
    Slowest slowest{.first = 0.0, .second = 0.0, .cell = problem_->first_cell(row_shard)};
    for (Index cell = problem_->first_cell(row_shard); cell < problem_->end_cell(row_shard); ++cell) {
      const double cost = stage_costs_[cell * stages + s];
      if (cost > slowest.first) {
        slowest = {.first = cost, .second = slowest.first, .cell = cell};
      } else if (cell != slowest.cell) {
        slowest.second = std::max(slowest.second, cost);
      }
    }
    slowest_[row_shard * stages + s] = slowest;
  }
}

void State::apply(const Move& move, const Outcome& outcome, Totals& totals) {
  const Index from = cell_of_[move.item];
  const Index a = problem_->row_shard_of[from];
  const Index b = problem_->row_shard_of[move.to];
  if (!problem_->pad_rates.empty()) {
    const Dense dense = dense_after(move, from, a, b);
    pads_[a] = dense.pads_a;
    if (a != b) pads_[b] = dense.pads_b;
  }
  set_sums(from, changed(cells_[from], move.item, move.partner));
  set_sums(move.to, changed(cells_[move.to], move.partner, move.item));
  move_member(move.item, move.to);
  if (move.partner != Move::kNobody) move_member(move.partner, from);
  refresh_slowest(a);
  if (a != b) {
    exchange_loads(a, move.item, move.partner);
    exchange_loads(b, move.partner, move.item);
    refresh_slowest(b);
    expert_[b] = outcome.expert_b;
    dense_[b] = outcome.dense_b;
    joint_[b] = outcome.joint_b;
  }
  expert_[a] = outcome.expert_a;
  dense_[a] = outcome.dense_a;
  joint_[a] = outcome.joint_a;
  totals.shard_totals[a % problem_->shards] += outcome.fixed_a - fixed_[a];
  fixed_[a] = outcome.fixed_a;
  if (a != b) {
    totals.shard_totals[b % problem_->shards] += outcome.fixed_b - fixed_[b];
    fixed_[b] = outcome.fixed_b;
  }
  totals.score = outcome.score;
}

Totals State::totals() const {
  const std::size_t shards = problem_->shards;
  Totals totals{.score = {},
                .shard_totals = std::vector<std::int64_t>(shards, 0),
                .scratch = std::vector<std::int32_t>(2 * problem_->loads.shape().layer_lanes())};
  for (std::size_t rs = 0; rs < fixed_.size(); ++rs) {
    totals.shard_totals[rs % shards] += fixed_[rs];
    totals.score.total += fixed_[rs];
    totals.score.worst = std::max(totals.score.worst, fixed_[rs]);
  }
  if (problem_->instance.sync == Sync::Step) {
    totals.score.primary = std::ranges::max(totals.shard_totals);
  } else {
    for (std::size_t row = 0; row < problem_->rows; ++row) totals.score.primary += row_peak(row);
  }
  return totals;
}

Score State::exact_score() const {
  return combine_rows(joint_, static_cast<std::int32_t>(problem_->rows), static_cast<std::int32_t>(problem_->shards),
                      problem_->instance.sync);
}

Index State::dense_straggler(Index row_shard) const {
  const std::size_t stages = problem_->instance.cost.stages().size();
  Index slowest = problem_->first_cell(row_shard);
  double most = -1.0;
  for (Index cell = problem_->first_cell(row_shard); cell < problem_->end_cell(row_shard); ++cell) {
    double cost = 0.0;
    for (std::size_t s = 0; s < stages; ++s) cost += stage_costs_[cell * stages + s];
    if (cost > most) {
      most = cost;
      slowest = cell;
    }
  }
  return slowest;
}

bool State::agrees_with_scratch(Index row_shard) const {
  const Problem& p = *problem_;
  const LaneShape& shape = p.loads.shape();
  const auto stages = p.instance.cost.stages();
  std::vector<std::int64_t> loads(shape.layers() * shape.ranks());
  std::vector<double> slowest(stages.size());
  std::int64_t padding = 0;
  bool same = true;
  for (Index cell = p.first_cell(row_shard); cell < p.end_cell(row_shard); ++cell) {
    CellSums sums{.closed = cells_[cell].closed};
    for (const Index item : members_[cell]) {
      sums = changed(sums, Move::kNobody, item);
      p.loads.add_to(item, loads);
      same = same && cell_of_[item] == cell;
    }
    padding += pads(sums);
    same = same && sums.tokens == cells_[cell].tokens && sums.squares == cells_[cell].squares &&
           sums.aligned == cells_[cell].aligned && sums.samples == cells_[cell].samples;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      slowest[s] = std::max(slowest[s], stage_cost(stages[s], sums));
    }
  }
  if (!p.pad_rates.empty()) add_pad_loads(pad_rank_rates(p.instance.window, p.placement), padding, loads);
  double attention = 0.0;
  for (const double cost : slowest) attention += cost;
  const double expert = expert_work(p.instance.cost, loads, p.placement.ranks(), p.instance.capacity);
  return same && pads_[row_shard] == padding && dense_[row_shard] == attention && expert_[row_shard] == expert &&
         joint_[row_shard] == attention + expert && fixed_[row_shard] == p.to_fixed(joint_[row_shard]);
}

bool State::agrees_with_scratch() const {
  const State scratch(*problem_, problem_->arrangement(cell_of_));
  const auto same_cells = [](const CellSums& x, const CellSums& y) {
    return x.tokens == y.tokens && x.squares == y.squares && x.aligned == y.aligned && x.samples == y.samples &&
           x.closed == y.closed;
  };
  return cell_of_ == scratch.cell_of_ && std::ranges::equal(cells_, scratch.cells_, same_cells) &&
         stage_costs_ == scratch.stage_costs_ && pads_ == scratch.pads_ && loads_ == scratch.loads_ &&
         relative_ == scratch.relative_ && peaks_ == scratch.peaks_ && peak_sums_ == scratch.peak_sums_ &&
         expert_ == scratch.expert_ && dense_ == scratch.dense_ && joint_ == scratch.joint_ && fixed_ == scratch.fixed_;
}

}  // namespace routepack::search
