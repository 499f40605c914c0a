// SPDX-License-Identifier: Apache-2.0
#include "simulate/step_loads.h"

#include <algorithm>
#include <span>

#include "core/integer.h"
#include "cost/row_cost.h"
#include "routepack/plan.h"

namespace routepack {
namespace {

/// Sums over the samples of a cell: tokens routed to each expert [L, E].
void add_routes(const Window& window, SampleId i, std::span<std::int64_t> experts) {
  if (i.value() >= window.samples()) return;  // a dummy has no routes
  window.visit_counts(i, [&](auto counts) {
    for (std::size_t k = 0; k < counts.size(); ++k) experts[k] += static_cast<std::int64_t>(counts[k]);
  });
}

}  // namespace

StepLoads step_loads(const Instance& instance, const Placement& placement, const Layout& layout, std::int64_t tile) {
  require_fits(placement, instance, "placement");
  const Window& window = instance.window;
  const Topology& topology = instance.topology;
  const auto experts = static_cast<std::size_t>(window.experts());
  const auto layers = static_cast<std::size_t>(window.layers());
  const auto ranks = static_cast<std::size_t>(topology.ranks());
  StepLoads loads{.rows = layout.rows(),
                  .slots = topology.slots(),
                  .shards = topology.shards(),
                  .layers = window.layers(),
                  .ranks = topology.ranks()};
  const auto rows = static_cast<std::size_t>(loads.rows);
  loads.cells.resize(rows * static_cast<std::size_t>(loads.slots));
  loads.sent.resize(loads.cells.size() * layers);
  loads.rank.resize(rows * static_cast<std::size_t>(loads.shards) * layers * ranks);

  const auto pad_rates = pad_rank_rates(window, placement);
  std::vector<std::int64_t> of_cell(layers * experts), of_shard(layers * experts);
  std::vector<std::int64_t> padding(pad_rates.size());
  RankWork* out = loads.rank.data();
  for (const RowId r : layout.row_ids()) {
    for (const ShardId g : topology.shard_ids()) {
      std::ranges::fill(of_shard, 0);
      std::int64_t pads = 0;
      for (const SlotId d : topology.slots_of(g)) {
        const std::size_t index = loads.cell_index(r.value(), d);
        std::ranges::fill(of_cell, 0);
        std::int64_t tokens = 0, aligned = 0;
        for (const SampleId i : layout.cell(r, d)) {
          const std::int64_t length = window.length(i);
          tokens += length;
          aligned += instance.aligned_length(i);
          loads.cells[index].squares += static_cast<double>(length) * static_cast<double>(length);
          add_routes(window, i, of_cell);
        }
        loads.cells[index].tokens = static_cast<double>(tokens);
        pads += instance.aligned_cell(aligned) - tokens;
        for (std::size_t l = 0; l < layers; ++l) {
          std::int64_t sent = 0;
          for (std::size_t e = 0; e < experts; ++e) {
            sent += of_cell[l * experts + e];
            of_shard[l * experts + e] += of_cell[l * experts + e];
          }
          loads.sent[index * layers + l] = sent;
        }
      }
      std::ranges::fill(padding, 0);
      add_pad_loads(pad_rates, pads, padding);
      for (const LayerId l : window.layer_ids()) {
        const std::int32_t* rank_of = placement.ranks_of_layer(l).data();
        for (std::size_t e = 0; e < experts; ++e) {
          const std::int64_t load = of_shard[l * experts + e];
          if (load == 0) continue;
          RankWork& rank = out[rank_of[e]];
          rank.tokens += load;
          rank.computed += (load + tile - 1) / tile * tile;
          ++rank.active;
        }
        for (std::size_t p = 0; p < ranks && !padding.empty(); ++p) {
          out[p].tokens += padding[l * ranks + p];
          out[p].computed += padding[l * ranks + p];
        }
        out += ranks;
      }
    }
  }
  return loads;
}

}  // namespace routepack
