// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "packing/peers/packers.h"

namespace routepack::peers {

Packed dp_local_ffd(const Lengths& lengths) {
  if (Infeasible why; !all_fit(lengths, why)) return why;
  std::vector<Bin> of_slot(lengths.slots);
  for (const std::size_t i : by_falling(lengths.of)) of_slot[i % lengths.slots].push_back(i);
  SlotCells cells;
  std::size_t most = 0;
  for (const Bin& samples : of_slot) {
    cells.push_back(first_fit(samples, lengths.of, lengths.capacity));
    most = std::max(most, cells.back().size());
  }
  const std::size_t rows = allowed_rows(lengths, most);
  for (std::size_t d = 0; d < cells.size(); ++d) {
    if (!split_heaviest(cells[d], rows, lengths.of, Equals::First)) return too_few(of_slot[d].size(), rows);
  }
  return cells;
}

}  // namespace routepack::peers
