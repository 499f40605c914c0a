// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <variant>

#include "routepack/placement.h"
#include "routepack/window.h"

namespace routepack {

std::vector<std::int64_t> aggregate_demand(const Window& window) {
  const std::size_t cells = static_cast<std::size_t>(window.layers()) * static_cast<std::size_t>(window.experts());
  std::vector<std::int64_t> demand(cells);
  for (const Window& part : window.parts()) {
    std::visit(
        [&](auto counts) {
          for (std::size_t start = 0; start < counts.size(); start += cells) {
            for (std::size_t le = 0; le < cells; ++le) demand[le] += static_cast<std::int64_t>(counts[start + le]);
          }
        },
        part.arrays().counts);
  }
  return demand;
}

}  // namespace routepack
