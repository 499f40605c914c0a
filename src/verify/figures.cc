// SPDX-License-Identifier: Apache-2.0
#include "verify/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace routepack::judge {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::int64_t kExactSquares = std::int64_t{1} << 53;

/// What a cell costs on the dense side: real lengths; and how many padding tokens the alignment adds.
struct CellSums {
  std::int64_t tokens = 0;   // S1
  std::int64_t squares = 0;  // S2
  std::int64_t pads = 0;
};

CellSums sum_cell(const Window& window, const std::vector<std::int32_t>& cell, const Constraints& constraints) {
  CellSums sums;
  std::int64_t aligned = 0;
  for (const std::int32_t i : cell) {
    const std::int64_t length = window.length(SampleId(i));
    sums.tokens = add(sums.tokens, length);
    sums.squares = add(sums.squares, length * length);
    aligned = add(aligned, round_up(length, constraints.sample_multiple));
  }
  sums.pads = round_up(aligned, constraints.cell_multiple) - sums.tokens;
  return sums;
}

/// One pass over rows and shards. Members are sized once, so that nothing is allocated per cell.
class Pricing {
 public:
  Pricing(const Window& window, const PlanRecord& plan, Rule* rank_tokens, Rule& exact)
      : window_(window),
        plan_(plan),
        rank_tokens_(rank_tokens),
        exact_(exact),
        layers_(static_cast<std::size_t>(window.layers())),
        experts_(static_cast<std::size_t>(window.experts())),
        ranks_(static_cast<std::size_t>(plan.ep)),
        owner_(layers_ * experts_),
        load_(layers_ * ranks_),
        demand_(layers_ * ranks_),
        pad_load_(window.arrays().pad_counts.empty() ? 0 : layers_ * ranks_) {
    const std::size_t per_rank = experts_ / ranks_;
    for (std::size_t l = 0; l < layers_; ++l) {
      for (std::size_t v = 0; v < experts_; ++v) {
        const auto e = static_cast<std::size_t>(plan.physical_to_logical[l][v]);
        owner_[l * experts_ + e] = static_cast<std::uint32_t>(v / per_rank);
        if (!pad_load_.empty()) {
          pad_load_[l * ranks_ + v / per_rank] += window.arrays().pad_counts[l * experts_ + e];
        }
      }
    }
  }

  std::optional<Figures> run();

 private:
  void accumulate(std::size_t r, std::size_t g);
  void add_padding(std::int64_t pads);
  double dense_cost(std::size_t g) const;
  double expert_cost(std::size_t r, std::size_t g);
  double demand_cv() const;

  const Window& window_;
  const PlanRecord& plan_;
  Rule* rank_tokens_;
  Rule& exact_;
  std::size_t layers_, experts_, ranks_;
  std::vector<std::uint32_t> owner_;     // [L, E] rank of an expert
  std::vector<std::uint64_t> load_;      // [L, P] W of the current row and shard
  std::vector<std::uint64_t> demand_;    // [L, P] Σ_i q so far
  std::vector<std::uint64_t> pad_load_;  // [L, P] load of one padding token, in 1/65536
  std::vector<CellSums> cells_;          // [D] of the current row
  std::vector<std::int64_t> row_peak_;   // [L] max_{g,p} W of the current row
  std::vector<std::int64_t> row_total_;  // [L] max_g Σ_p W of the current row
};

void Pricing::accumulate(std::size_t r, std::size_t g) {
  std::fill(load_.begin(), load_.end(), 0);
  for (const std::int32_t d : plan_.shards[g]) {
    for (const std::int32_t i : plan_.layout[r][static_cast<std::size_t>(d)]) {
      if (i >= window_.samples()) continue;  // a dummy has no routes
      window_.visit_counts(SampleId(i), [&](auto counts) {
        for (std::size_t l = 0; l < layers_; ++l) {
          const auto* count = counts.data() + l * experts_;
          const std::uint32_t* owner = owner_.data() + l * experts_;
          std::uint64_t* load = load_.data() + l * ranks_;
          for (std::size_t e = 0; e < experts_; ++e) load[owner[e]] += count[e];
        }
      });
    }
  }
  for (std::size_t at = 0; at < load_.size(); ++at) demand_[at] += load_[at];
}

void Pricing::add_padding(std::int64_t pads) {
  if (pad_load_.empty() || pads == 0) return;
  for (std::size_t at = 0; at < load_.size(); ++at) {
    const Wide load = ((static_cast<Wide>(pads) * pad_load_[at] + 32768) >> 16) + load_[at];
    load_[at] = static_cast<std::uint64_t>(std::min(load, static_cast<Wide>(kSaturated)));
  }
}

double Pricing::dense_cost(std::size_t g) const {
  const auto capacity = static_cast<double>(plan_.capacity);
  double cost = 0.0;
  for (const Stage& stage : plan_.stages) {
    double slowest = 0.0;
    for (const std::int32_t d : plan_.shards[g]) {
      const CellSums& cell = cells_[static_cast<std::size_t>(d)];
      const double mean = static_cast<double>(cell.tokens) / capacity;
      const double square = static_cast<double>(cell.squares) / (capacity * capacity);
      slowest = std::max(slowest, stage.alpha * mean + stage.beta * square);
    }
    cost += slowest;
  }
  return cost;
}

double Pricing::expert_cost(std::size_t r, std::size_t g) {
  double cost = 0.0;
  for (std::size_t l = 0; l < layers_; ++l) {
    std::int64_t peak = 0;
    std::int64_t total = 0;
    for (std::size_t p = 0; p < ranks_; ++p) {
      const auto load =
          static_cast<std::int64_t>(std::min(load_[l * ranks_ + p], static_cast<std::uint64_t>(kSaturated)));
      peak = std::max(peak, load);
      total = add(total, load);
      if (rank_tokens_ != nullptr && load > plan_.constraints.max_rank_tokens) {
        rank_tokens_->broken([&] {
          return fmt::format("row {}, shard {}, layer {}, rank {}: found {} routed tokens, wanted at most {}", r, g, l,
                             p, load, plan_.constraints.max_rank_tokens);
        });
      }
    }
    if (total == kSaturated) {
      exact_.broken([&] {
        return fmt::format("row {}, shard {}, layer {}: routed tokens do not fit 63 bits, wanted less", r, g, l);
      });
    }
    row_peak_[l] = std::max(row_peak_[l], peak);
    row_total_[l] = std::max(row_total_[l], total);
    cost += (plan_.expert.size() == 1 ? plan_.expert[0] : plan_.expert[l]) * static_cast<double>(peak);
  }
  return cost / static_cast<double>(plan_.capacity);
}

double Pricing::demand_cv() const {
  double sum = 0.0;
  std::int64_t layers_with_load = 0;
  for (std::size_t l = 0; l < layers_; ++l) {
    std::uint64_t total = 0;
    for (std::size_t p = 0; p < ranks_; ++p) total += demand_[l * ranks_ + p];
    if (total == 0) continue;
    const double mean = static_cast<double>(total) / static_cast<double>(ranks_);
    double squares = 0.0;
    for (std::size_t p = 0; p < ranks_; ++p) {
      const double off = static_cast<double>(demand_[l * ranks_ + p]) - mean;
      squares += off * off;
    }
    sum += std::sqrt(squares / static_cast<double>(ranks_)) / mean;
    ++layers_with_load;
  }
  return layers_with_load == 0 ? 0.0 : sum / static_cast<double>(layers_with_load);
}

std::optional<Figures> Pricing::run() {
  Figures figures;
  std::vector<double> shard_cost(plan_.shards.size(), 0.0);  // U_g
  double meeting_in_rows = 0.0;                              // Σ_r max_g J
  std::int64_t row_totals = 0;
  cells_.resize(plan_.layout.front().size());
  for (std::size_t r = 0; r < plan_.layout.size(); ++r) {
    for (std::size_t d = 0; d < cells_.size(); ++d)
      cells_[d] = sum_cell(window_, plan_.layout[r][d], plan_.constraints);
    for (std::size_t d = 0; d < cells_.size(); ++d) {
      if (cells_[d].squares < kExactSquares) continue;
      exact_.broken(
          [&] { return fmt::format("row {}, slot {}: the sum of squared lengths reaches 2^53, wanted less", r, d); });
    }
    row_peak_.assign(layers_, 0);
    row_total_.assign(layers_, 0);
    double slowest = 0.0;
    for (std::size_t g = 0; g < plan_.shards.size(); ++g) {
      accumulate(r, g);
      std::int64_t pads = 0;
      for (const std::int32_t d : plan_.shards[g]) pads = add(pads, cells_[static_cast<std::size_t>(d)].pads);
      add_padding(pads);
      const double dense = dense_cost(g);
      const double joint = dense + expert_cost(r, g);
      figures.attention += dense;
      shard_cost[g] += joint;
      slowest = std::max(slowest, joint);
    }
    meeting_in_rows += slowest;
    figures.score.worst_row = std::max(figures.score.worst_row, slowest);
    for (std::size_t l = 0; l < layers_; ++l) {
      figures.expert_peak_sum = add(figures.expert_peak_sum, row_peak_[l]);
      figures.tail_peak = std::max(figures.tail_peak, row_peak_[l]);
      row_totals = add(row_totals, row_total_[l]);
    }
  }
  if (row_totals == kSaturated) {
    exact_.broken([] { return std::string("routed tokens of all rows do not fit 63 bits, wanted less"); });
  }
  if (!exact_.holds()) return std::nullopt;
  for (const double cost : shard_cost) {
    figures.score.max_shard = std::max(figures.score.max_shard, cost);
    figures.score.total += cost;
  }
  if (plan_.sync == Sync::Row) figures.score.max_shard = meeting_in_rows;
  if (figures.expert_peak_sum > 0) {
    figures.ep_efficiency =
        static_cast<double>(row_totals) / static_cast<double>(ranks_) / static_cast<double>(figures.expert_peak_sum);
  }
  figures.cv_global = demand_cv();
  return figures;
}

}  // namespace

std::optional<Figures> recompute(const Window& window, const PlanRecord& plan, Rule* rank_tokens, Rule& exact) {
  return Pricing(window, plan, rank_tokens, exact).run();
}

}  // namespace routepack::judge
