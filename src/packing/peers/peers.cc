// SPDX-License-Identifier: Apache-2.0
#include "packing/peers/peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/integer.h"
#include "packing/peers/packers.h"

namespace routepack::peers {
namespace {

constexpr std::array kPeers = {
    Peer{"dp-local-ffd", "first-fit decreasing on each slot alone, fullest cells split to equal rows",
         "RoutePack paper, version 2: the baseline of its abstract", true, false, dp_local_ffd},
    Peer{"areal-ffd", "falling length into the cell with the fewest samples that holds it",
         "AReaL: areal/utils/seqpack.py, ffd_allocate", true, true, areal_ffd},
    Peer{"areal-kk", "Karmarkar-Karp on tokens, areal-ffd where that exceeds the cap",
         "AReaL: areal/utils/seqpack.py, kk_allocate", true, true, areal_kk},
    Peer{"verl-kk-strict", "Karmarkar-Karp on work, one more cell per slot until the cap holds",
         "verl: verl/utils/seqlen_balancing.py with pull request 7553", true, true, verl_kk_strict},
    Peer{"nemo-mffd", "modified first-fit decreasing, bins dealt round robin",
         "NeMo RL: nemo_rl/data/packing/algorithms.py", true, false, nemo_mffd},
    Peer{"slime-first-fit", "first fit in arrival order, fullest cells split, bins dealt round robin",
         "slime: slime/utils/dp_schedule.py", true, false, slime_first_fit},
    Peer{"ffd-sorted-rows", "first-fit decreasing, rows of cells with similar sums of squares",
         "torchtitan: pull request 3938, its description", true, false, ffd_sorted_rows},
    Peer{"kk-on-work", "Karmarkar-Karp on model work into the fewest cells; does not keep the cap",
         "slime: slime/utils/dp_schedule.py, balance_by_flops and balance_data", false, false, kk_on_work},
};

Lengths lengths_of(const Instance& instance, std::int64_t dummies) {
  const Constraints& constraints = instance.constraints;
  Lengths lengths{.of = {},
                  .capacity = instance.usable_capacity(),
                  .slots = static_cast<std::size_t>(instance.topology.slots()),
                  .min_rows = static_cast<std::size_t>(
                      std::max<std::int64_t>(constraints.min_rows, instance.topology.pipeline_stages())),
                  .row_multiple = static_cast<std::size_t>(constraints.row_multiple)};
  for (const SampleId i : IdRange<SampleId>(instance.window.samples() + dummies)) {
    lengths.of.push_back(instance.aligned_length(i));
  }
  return lengths;
}

/// The packer's cells row by row, without the samples from `samples` on.
std::variant<std::vector<std::vector<std::vector<SampleId>>>, Infeasible> rows_of(const SlotCells& packed,
                                                                                  std::size_t samples) {
  std::vector<std::vector<std::vector<SampleId>>> rows(packed.front().size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t d = 0; d < packed.size(); ++d) {
      auto& cell = rows[r].emplace_back();
      for (const std::size_t i : packed[d].at(r)) {
        if (i < samples) cell.emplace_back(i);
      }
      if (cell.empty()) {
        return Infeasible{fmt::format("the packer leaves the cell in row {} of slot {} without samples", r, d),
                          "more samples, or fewer slots"};
      }
    }
  }
  return rows;
}

}  // namespace

std::span<const Peer> all() {
  return kPeers;
}

const Peer* find(std::string_view name) {
  const auto found = std::ranges::find(kPeers, name, &Peer::name);
  return found == kPeers.end() ? nullptr : &*found;
}

std::variant<PeerLayout, Infeasible> pack_with(const Peer& peer, const Instance& instance) {
  const std::int64_t samples = instance.window.samples();
  const std::int64_t slots = instance.topology.slots();
  if (instance.usable_capacity() < 1) {
    return Infeasible{fmt::format("a cell of {} tokens holds no multiple of {}", instance.capacity,
                                  instance.constraints.cell_multiple),
                      "a larger --cap"};
  }
  if (samples < slots) return too_few(static_cast<std::size_t>(samples), static_cast<std::size_t>(slots));
  const std::int64_t dummies = peer.wants_equal_counts ? round_up(samples, slots) - samples : 0;
  const std::int64_t kept = instance.constraints.add_dummies ? dummies : 0;

  auto packed = peer.pack(lengths_of(instance, dummies));
  if (auto* why = std::get_if<Infeasible>(&packed)) return std::move(*why);
  auto rows = rows_of(std::get<SlotCells>(packed), static_cast<std::size_t>(samples + kept));
  if (auto* why = std::get_if<Infeasible>(&rows)) return std::move(*why);
  PeerLayout result{.layout = Layout(std::move(std::get<0>(rows)), static_cast<std::int32_t>(slots),
                                     static_cast<std::int32_t>(samples + kept), std::string(peer.name)),
                    .dummies = kept,
                    .dummies_removed = dummies - kept};
  for (const auto& row : result.layout.cells()) {
    for (const auto& cell : row) {
      std::int64_t aligned = 0;
      for (const SampleId i : cell) aligned += instance.aligned_length(i);
      const std::int64_t tokens = instance.aligned_cell(aligned);
      result.fullest_cell = std::max(result.fullest_cell, tokens);
      if (tokens > instance.capacity) ++result.cells_over_cap;
    }
  }
  return result;
}

}  // namespace routepack::peers
