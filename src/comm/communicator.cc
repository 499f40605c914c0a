// SPDX-License-Identifier: Apache-2.0
#include "routepack/communicator.h"

#include <algorithm>
#include <cstring>

#include "core/assert.h"

namespace routepack {
namespace {

template <class T>
void sum_by_gathering(Communicator& team, std::span<T> values) {
  constexpr std::size_t kAtOnce = std::size_t{1} << 20;  // what all members send must fit into memory together
  while (!values.empty()) {
    const auto piece = values.first(std::min(kAtOnce, values.size()));
    values = values.subspan(piece.size());
    const auto all = team.all_gather(std::as_bytes(piece));
    std::ranges::fill(piece, T{0});
    std::vector<T> theirs(piece.size());
    for (const auto& bytes : all) {
      ROUTEPACK_ASSERT(bytes.size() == piece.size_bytes(), "members add up lists of different lengths");
      std::memcpy(theirs.data(), bytes.data(), bytes.size());
      for (std::size_t i = 0; i < piece.size(); ++i) piece[i] += theirs[i];
    }
  }
}

}  // namespace

void Communicator::sum(std::span<std::int64_t> values) {
  sum_by_gathering(*this, values);
}

void Communicator::sum(std::span<std::int32_t> values) {
  sum_by_gathering(*this, values);
}

}  // namespace routepack
