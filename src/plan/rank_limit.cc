// SPDX-License-Identifier: Apache-2.0
#include "plan/rank_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "core/integer.h"
#include "packing/fill_rows.h"

namespace routepack {

std::optional<Infeasible> sample_over_rank_limit(const Instance& instance, const UnitLoads& loads, const Items& items) {
  const std::int64_t limit = instance.constraints.max_rank_tokens;
  if (limit == 0) return std::nullopt;
  const std::size_t ranks = loads.shape().ranks();
  std::vector<std::int64_t> own(loads.shape().layers() * ranks);
  const Item* hottest = nullptr;
  std::int64_t most = limit;
  std::size_t where = 0;
  for (std::size_t index = 0; index < items.items.size(); ++index) {
    std::ranges::fill(own, 0);
    loads.add_to(index, own);
    const auto worst = std::ranges::max_element(own);
    if (*worst <= most) continue;
    hottest = &items.items[index];
    most = *worst;
    where = static_cast<std::size_t>(worst - own.begin());
  }
  if (hottest == nullptr) return std::nullopt;
  return Infeasible{fmt::format("max_rank_tokens {}: sample {}{} alone puts {} routed tokens on rank {} at layer {}",
                                limit, items.samples_of(*hottest).front().value(),
                                hottest->count > 1 ? " and its atomic group" : "", most, where % ranks, where / ranks),
                    fmt::format("--max-rank-tokens {} or more", most)};
}

std::variant<Arrangement, Infeasible> fill_with_as_few_rows_as_possible(const Instance& instance,
                                                                        const UnitLoads& loads,
                                                                        std::span<const std::int64_t> pad_rates,
                                                                        const Items& items, FittedCells& fitted) {
  const std::int64_t limit = instance.constraints.max_rank_tokens;
  std::int64_t reached = std::numeric_limits<std::int64_t>::max();
  // Wider steps as failures add up: each is a whole fit.
  for (std::int64_t extra = 1;; extra += ceil_div(extra, 4)) {
    if (auto arrangement = fill_rows(instance, loads, pad_rates, fitted)) return *std::move(arrangement);
    reached = std::min(reached, coolest_peak(instance, loads, pad_rates, fitted));
    const std::int64_t rows = fitted.rows + extra * instance.constraints.row_multiple;
    auto more = fewest_rows(instance, items, {rows, fmt::format("max_rank_tokens {}", limit)});
    if (std::holds_alternative<Infeasible>(more)) {
      return Infeasible{
          fmt::format("max_rank_tokens {}: found no layout of up to {} rows that keeps every rank within it "
                      "(the search is not exhaustive); the best puts {} routed tokens on a rank",
                      limit, fitted.rows, reached),
          fmt::format("--max-rank-tokens {}, or fewer slots", reached)};
    }
    fitted = std::get<FittedCells>(std::move(more));
  }
}

}  // namespace routepack
