// SPDX-License-Identifier: Apache-2.0
// Whatever a plan file holds, the verifier answers; and no plan with a broken assignment passes.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "routepack/error.h"
#include "routepack/verify.h"
#include "support/builders.h"
#include "verify/figures.h"

namespace routepack::testing {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

Window any_window() {
  const auto samples = *rc::gen::inRange<std::int64_t>(8, 20);
  const auto layers = *rc::gen::inRange<std::int64_t>(1, 4);
  WindowSpec spec = random_window(*rc::gen::arbitrary<std::uint64_t>(), samples, layers, 4, 2, 1, 12);
  if (*rc::gen::arbitrary<bool>()) {
    spec.pad_counts = *rc::gen::container<std::vector<std::uint32_t>>(static_cast<std::size_t>(layers * 4),
                                                                      rc::gen::arbitrary<std::uint32_t>());
  }
  return make_window(std::move(spec));
}

/// A correct plan without stated figures: samples dealt at random over R rows of D cells, none empty.
PlanRecord any_plan(const Window& window) {
  PlanRecord plan;
  plan.ep = *rc::gen::element(1, 2, 4);
  plan.capacity = 1000;
  using Shards = std::vector<std::vector<std::int32_t>>;
  plan.shards = *rc::gen::elementOf(std::vector<Shards>{{{0, 1, 2, 3}}, {{0, 2}, {1, 3}}, {{3}, {1, 0, 2}}});
  plan.rows = *rc::gen::inRange(1, 3);
  plan.stages = {{"a", 60, 0}, {"b", 36, 100}};
  plan.sync = *rc::gen::element(Sync::Step, Sync::Row);
  plan.constraints.sample_multiple = *rc::gen::inRange(1, 9);
  plan.constraints.cell_multiple = *rc::gen::inRange(1, 17);
  for (std::int32_t l = 0; l < window.layers(); ++l) {
    std::vector<std::int32_t> map = {0, 1, 2, 3};
    for (std::size_t v = 3; v > 0; --v) std::swap(map[v], map[*rc::gen::inRange<std::size_t>(0, v + 1)]);
    plan.physical_to_logical.push_back(map);
  }
  plan.layout.assign(static_cast<std::size_t>(plan.rows), std::vector<std::vector<std::int32_t>>(4));
  const std::int32_t cells = static_cast<std::int32_t>(plan.rows) * 4;
  for (std::int32_t i = 0; i < window.samples(); ++i) {
    const std::int32_t cell = i < cells ? i : *rc::gen::inRange(0, cells);
    plan.layout[static_cast<std::size_t>(cell / 4)][static_cast<std::size_t>(cell % 4)].push_back(i);
  }
  return plan;
}

std::vector<std::int32_t>& any_cell(PlanRecord& plan) {
  return plan.layout[*rc::gen::inRange<std::size_t>(0, plan.layout.size())][*rc::gen::inRange<std::size_t>(0, 4)];
}

RC_GTEST_PROP(VerifyMutations, a_broken_assignment_is_never_accepted, ()) {
  const Window window = any_window();
  PlanRecord plan = any_plan(window);
  RC_ASSERT(verify(window, plan).accepted());

  std::vector<std::int32_t>& cell = any_cell(plan);
  const auto at = *rc::gen::inRange<std::size_t>(0, cell.size());
  switch (*rc::gen::inRange(0, 8)) {
    case 0:  // lose a sample
      cell.erase(cell.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1:  // train one twice
      any_cell(plan).push_back(cell[at]);
      break;
    case 2:  // another index
      cell[at] = *rc::gen::suchThat(rc::gen::arbitrary<std::int32_t>(), [&](std::int32_t i) { return i != cell[at]; });
      break;
    case 3:  // an unplanned dummy
      cell.push_back(window.samples());
      break;
    case 4:  // lose a row
      plan.layout.pop_back();
      plan.rows -= 1;
      break;
    case 5:  // an empty row
      plan.layout.emplace_back(4);
      plan.rows += 1;
      break;
    case 6:  // a fifth cell
      plan.layout.front().push_back({});
      break;
    default: {  // an expert twice
      auto& map = plan.physical_to_logical[*rc::gen::inRange<std::size_t>(0, plan.physical_to_logical.size())];
      map[0] = map[3];
    }
  }
  RC_ASSERT(!verify(window, plan).accepted());
}

RC_GTEST_PROP(VerifyMutations, a_moved_sample_is_noticed_when_the_price_changes, ()) {
  const Window window = any_window();
  PlanRecord plan = any_plan(window);
  judge::Rule exact("exact");
  const auto price = [&] { return judge::recompute(window, plan, nullptr, exact)->score; };
  plan.score = price();
  RC_ASSERT(verify(window, plan).accepted());

  auto& row = plan.layout.front();
  const auto from = *rc::gen::inRange<std::size_t>(0, 4);
  const auto to = (from + *rc::gen::inRange<std::size_t>(1, 4)) % 4;
  std::swap(row[from].back(), row[to].back());
  const Score after = price();
  const bool same = judge::agrees(plan.score->max_shard, after.max_shard) &&
                    judge::agrees(plan.score->total, after.total) &&
                    judge::agrees(plan.score->worst_row, after.worst_row);
  RC_CLASSIFY(!same, "the price changed");
  RC_ASSERT(verify(window, plan).accepted() == same);
}

/// A number that is often ordinary and sometimes at an end of its range.
template <class Number>
Number any_number() {
  return *rc::gen::weightedOneOf<Number>(
      {{6, rc::gen::cast<Number>(rc::gen::inRange(-2, 24))},
       {1, rc::gen::arbitrary<Number>()},
       {1, rc::gen::element(std::numeric_limits<Number>::lowest(), std::numeric_limits<Number>::max())}});
}

double any_double() {
  using Limits = std::numeric_limits<double>;
  return *rc::gen::oneOf(rc::gen::element(0.0, 1.0, -1.0, Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity(),
                                          Limits::max(), Limits::denorm_min()),
                         rc::gen::arbitrary<double>());
}

void spoil(PlanRecord& plan) {
  Constraints& c = plan.constraints;
  switch (*rc::gen::inRange(0, 30)) {
    case 0:
      plan.ep = any_number<std::int32_t>();
      break;
    case 1:
      plan.shards[0].push_back(any_number<std::int32_t>());
      break;
    case 2:
      plan.shards[0].clear();
      break;
    case 3:
      plan.shards.clear();
      plan.shards.emplace_back();
      break;
    case 4:
      plan.capacity = any_number<std::int64_t>();
      break;
    case 5:
      plan.rows = any_number<std::int64_t>();
      break;
    case 6:
      plan.physical_to_logical[0].push_back(any_number<std::int32_t>());
      break;
    case 7:
      plan.physical_to_logical[0].assign(4, any_number<std::int32_t>());
      break;
    case 8:
      plan.physical_to_logical.clear();
      break;
    case 9:
      plan.layout.clear();
      break;
    case 10:
      plan.layout.emplace_back(*rc::gen::inRange<std::size_t>(0, 6));
      break;
    case 11:
      plan.layout.push_back({{any_number<std::int32_t>()}, {any_number<std::int32_t>()}});
      break;
    case 12:
      plan.stages.push_back({"x", any_double(), any_double()});
      break;
    case 13:
      plan.stages.clear();
      break;
    case 14:
      plan.expert.assign(*rc::gen::inRange<std::size_t>(0, 5), any_double());
      break;
    case 15:
      plan.expert_uniform = !plan.expert_uniform;
      break;
    case 16:
      c.sample_multiple = any_number<std::int64_t>();
      break;
    case 17:
      c.cell_multiple = any_number<std::int64_t>();
      break;
    case 18:
      c.min_rows = any_number<std::int64_t>();
      break;
    case 19:
      c.row_multiple = any_number<std::int64_t>();
      break;
    case 20:
      c.equal_count = true;
      c.add_dummies = *rc::gen::arbitrary<bool>();
      break;
    case 21:
      c.max_samples_per_cell = any_number<std::int64_t>();
      break;
    case 22:
      c.max_rank_tokens = any_number<std::int64_t>();
      break;
    case 23:
      c.oversized = Oversized::OwnCell;
      break;
    case 24:
      plan.dummies = any_number<std::int64_t>();
      break;
    case 25:
      plan.pipeline_stages = any_number<std::int64_t>();
      break;
    case 26:
      plan.rows_lower_bound = any_number<std::int64_t>();
      plan.rows_certified = *rc::gen::arbitrary<bool>();
      break;
    case 27:
      plan.score = Score{any_double(), any_double(), any_double()};
      plan.bound = any_double();
      plan.gap = any_double();
      plan.bound_fixed_placement = any_double();
      break;
    case 28:
      plan.moves = PlanRecord::MovesRecord{any_number<std::int64_t>(), any_number<std::int64_t>(), any_double(),
                                           any_number<std::int64_t>()};
      plan.params = PlanParams{.expert_bytes = any_number<std::int64_t>()};
      break;
    default:
      for (const char* name :
           {"cv_global", "expert_peak_sum", "tail_peak", "ep_efficiency", "attention", "joint", "gap"}) {
        plan.metrics.emplace_back(name, any_double());
      }
  }
}

RC_GTEST_PROP(VerifyMutations, any_content_gets_a_verdict_or_is_refused_as_foreign, ()) {
  const Window window = any_window();
  PlanRecord plan = any_plan(window);
  const int times = *rc::gen::inRange(1, 6);
  for (int n = 0; n < times; ++n) {
    if (!plan.shards.empty() && !plan.physical_to_logical.empty()) spoil(plan);
  }
  std::size_t looked_at = 1;
  try {
    looked_at = verify(window, plan).checked.size();
  } catch (const InvalidInput&) {  // a plan for another window
  }
  RC_ASSERT(looked_at > 0U);
}

TEST(VerifyMutations, the_largest_numbers_everywhere_do_no_harm) {
  WindowSpec spec = random_window(5, 8, 2, 4, 2, 1, 12);
  spec.lengths.assign(8, std::numeric_limits<std::int32_t>::max());
  spec.recorded.clear();
  spec.pad_counts.assign(8, std::numeric_limits<std::uint32_t>::max());
  const Window window = make_window(spec);
  PlanRecord plan;
  plan.ep = 2;
  plan.shards = {{0, 1}};
  plan.capacity = kMaxCapacity;
  plan.rows = kHuge;
  plan.physical_to_logical = {{0, 1, 2, 3}, {3, 2, 1, 0}};
  plan.layout = {{{0, 1, 2, 3}, {4, 5, 6, 7}}};
  plan.stages = {{"a", std::numeric_limits<double>::max(), std::numeric_limits<double>::max()}};
  plan.constraints = {.sample_multiple = kMaxCapacity,
                      .cell_multiple = kMaxCapacity,
                      .min_rows = kHuge,
                      .row_multiple = kHuge,
                      .max_samples_per_cell = kHuge,
                      .max_rank_tokens = kHuge};
  plan.constraints.oversized = Oversized::OwnCell;
  plan.dummies = kHuge;
  plan.pipeline_stages = kHuge;
  plan.rows_lower_bound = kHuge;
  plan.moves = PlanRecord::MovesRecord{kHuge, kHuge, 1.0, kHuge};
  EXPECT_FALSE(verify(window, plan).accepted());
}

}  // namespace
}  // namespace routepack::testing
