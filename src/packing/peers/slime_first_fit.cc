// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <utility>

#include "packing/peers/packers.h"

namespace routepack::peers {

Packed slime_first_fit(const Lengths& lengths) {
  Bin arrival(lengths.size());
  std::iota(arrival.begin(), arrival.end(), std::size_t{0});
  Bins bins = first_fit(arrival, lengths.of, lengths.capacity);
  const std::size_t rows = allowed_rows(lengths, (bins.size() + lengths.slots - 1) / lengths.slots);
  const std::size_t cells = rows * lengths.slots;
  if (!split_heaviest(bins, cells, lengths.of, Equals::Last)) return too_few(lengths.size(), cells);
  return deal(std::move(bins), lengths.slots);
}

}  // namespace routepack::peers
