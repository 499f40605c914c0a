// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <utility>

#include "core/integer.h"
#include "packing/peers/karmarkar_karp.h"
#include "packing/peers/packers.h"

namespace routepack::peers {
namespace {

// Operations of a forward pass of Qwen3-30B-A3B over its operations per pair of tokens (causal attention, 32 heads of
// 128 in each of 48 layers): queries, keys, values, output, eight experts of width 768, and the vocabulary.
constexpr std::int64_t kLinear = 14383;

}  // namespace

Packed kk_on_work(const Lengths& lengths) {
  std::vector<std::int64_t> work;
  if (!work_of(lengths.of, kLinear, work)) return Infeasible{"the work of all samples passes 2^63", "a smaller window"};
  const std::int64_t tokens = std::accumulate(lengths.of.begin(), lengths.of.end(), std::int64_t{0});
  const auto needed = static_cast<std::size_t>(ceil_div(tokens, lengths.capacity));
  Bins bins = karmarkar_karp(work, std::min(needed, lengths.size()), false);
  for (Bin& bin : bins) std::ranges::sort(bin);
  const std::size_t rows = allowed_rows(lengths, (bins.size() + lengths.slots - 1) / lengths.slots);
  const std::size_t cells = rows * lengths.slots;
  if (!split_heaviest(bins, cells, lengths.of, Equals::Last)) return too_few(lengths.size(), cells);

  std::vector<std::int64_t> work_of_bin;
  for (const Bin& bin : bins) work_of_bin.push_back(sum_over(bin, work));
  SlotCells dealt;
  for (Bin& bins_of_slot : karmarkar_karp(work_of_bin, lengths.slots, true)) {
    std::ranges::sort(bins_of_slot);
    Bins& slot = dealt.emplace_back();
    for (const std::size_t b : bins_of_slot) slot.push_back(std::move(bins[b]));
  }
  return dealt;
}

}  // namespace routepack::peers
