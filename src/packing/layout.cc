// SPDX-License-Identifier: Apache-2.0
#include "routepack/layout.h"

#include <fmt/format.h>

#include <utility>

#include "routepack/error.h"

namespace routepack {
namespace {

/// «2, 5, 9 and 4 more»
std::string some_of(const std::vector<std::size_t>& indices) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t n = 0; n < indices.size() && n < kShown; ++n)
    text += fmt::format("{}{}", n == 0 ? "" : ", ", indices[n]);
  if (indices.size() > kShown) text += fmt::format(" and {} more", indices.size() - kShown);
  return text;
}

struct Position {
  std::int32_t row = -1;
  std::int32_t slot = -1;
};

}  // namespace

Layout::Layout(std::vector<std::vector<std::vector<SampleId>>> cells, std::int32_t slots, std::int32_t samples,
               const std::string& where)
    : slots_(slots), cells_(std::move(cells)) {
  if (slots_ < 1 || samples < 1) {
    throw InvalidInput(
        fmt::format("{}: found {} slots and {} samples, wanted at least one of each", where, slots, samples));
  }
  if (cells_.empty()) throw InvalidInput(fmt::format("{}: found no rows, wanted at least one", where));
  std::vector<Position> seen(static_cast<std::size_t>(samples));
  for (const RowId r : row_ids()) {
    const auto& row = cells_[r];
    if (row.size() != static_cast<std::size_t>(slots_)) {
      throw InvalidInput(
          fmt::format("{}[{}]: found {} cells, wanted {}, one per slot", where, r.value(), row.size(), slots));
    }
    for (const SlotId d : IdRange<SlotId>(slots_)) {
      if (row[d].empty()) {
        throw InvalidInput(
            fmt::format("{}[{}][{}]: found an empty cell, wanted at least one sample", where, r.value(), d.value()));
      }
      for (std::size_t n = 0; n < row[d].size(); ++n) {
        const SampleId i = row[d][n];
        if (i.value() < 0 || i.value() >= samples) {
          throw InvalidInput(fmt::format("{}[{}][{}][{}]: found sample {}, wanted 0 to {}", where, r.value(), d.value(),
                                         n, i.value(), samples - 1));
        }
        if (seen[i].row >= 0) {
          throw InvalidInput(fmt::format("{}[{}][{}][{}]: sample {} occurs twice (first in row {}, slot {})", where,
                                         r.value(), d.value(), n, i.value(), seen[i].row, seen[i].slot));
        }
        seen[i] = {r.value(), d.value()};
      }
    }
  }
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i].row < 0) missing.push_back(i);
  }
  if (!missing.empty()) {
    throw InvalidInput(fmt::format("{}: found {} of {} samples, missing {}", where, seen.size() - missing.size(),
                                   samples, some_of(missing)));
  }
}

}  // namespace routepack
