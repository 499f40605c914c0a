// SPDX-License-Identifier: Apache-2.0
// The planner: a window in, a placement and a layout out.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "routepack/bounds.h"
#include "routepack/communicator.h"
#include "routepack/error.h"
#include "routepack/instance.h"
#include "routepack/layout.h"
#include "routepack/moves.h"
#include "routepack/params.h"
#include "routepack/placement.h"
#include "routepack/score.h"

namespace routepack {

/// Phases of planning in order; their times are reported under these names.
enum class Phase { Demand, Place, Loads, Rows, Seed, Search, Refine, Check };
inline constexpr std::array<std::string_view, 8> kPhaseNames = {"demand", "place",  "loads",  "rows",
                                                                "seed",   "search", "refine", "check"};

/// Where the search for a layout stands, after a temperature level.
struct SearchProgress {
  std::int64_t level = 0;
  std::int64_t levels = 0;
  double temperature = 0.0;  ///< relative to the energy
  double acceptance = 0.0;   ///< accepted / priced proposals of this level
  double best = 0.0;         ///< first component of the best score so far
  double gap = 0.0;          ///< of that to the bound with this placement
  std::int64_t proposals = 0;
};

/// Called by the coordinating thread between phases and levels; the defaults do nothing.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void phase_begins(Phase /*phase*/) {}
  virtual void level_ends(const SearchProgress& /*progress*/) {}
  /// Experts have a place; packing goes on. Final unless the mode is joint: with two batches the second batch moves
  /// them once more, without they may move as long as planning runs, and with free moves be placed a second time.
  virtual void placed(const Placement& /*placement*/) {}
};

/// What travels through a planning run instead of globals.
struct RunContext {
  Observer* observer = nullptr;  ///< may be null
  std::stop_token stop = {};     ///< asked all the time; from the phase Seed on, a stop ends with a valid plan
  /// Processes that plan together, each with the same arguments but for this, threads and observer: all get the same
  /// plan, which is that of one process alone. Null: this process alone. A stop in one of them ends the search of all.
  Communicator* team = nullptr;

  /// Tells the observer.
  void begin(Phase phase) const;
  /// Tells the observer. @throws Cancelled when a stop was requested.
  void enter(Phase phase) const;
};

/// A stop was requested before there was a plan.
class Cancelled : public Error {
 public:
  using Error::Error;
};

/// How many rows a plan uses and what is known about using fewer.
struct RowCount {
  std::int64_t rows = 0;
  std::int64_t lower_bound = 0;
  std::string because = {};  ///< the rule that binds the lower bound, for people
  [[nodiscard]] bool certified() const { return rows == lower_bound; }
};

/// Why the search for a layout ended.
enum class Ending { Budget, BoundReached, NothingToMove, Stopped };
constexpr auto choices(Ending) {
  return std::array{Choice<Ending>{"budget", Ending::Budget}, Choice<Ending>{"bound reached", Ending::BoundReached},
                    Choice<Ending>{"nothing to move", Ending::NothingToMove},
                    Choice<Ending>{"stopped", Ending::Stopped}};
}

/// What the search for a layout did.
struct SearchReport {
  Ending ending = Ending::Budget;
  double seed = 0.0;              ///< first component of the score of the best seed
  std::int64_t seeds = 0;         ///< different layouts that the seeding found
  std::int64_t failed_seeds = 0;  ///< trials given up
  std::int64_t levels = 0;        ///< temperatures passed
  std::int64_t proposals = 0;     ///< moves priced
  std::int64_t accepted = 0;      ///< moves made
};

/// What placing the experts did, and why it ended there.
struct PlacementReport {
  std::vector<LayerEnd> layers;  ///< [L]; empty when experts were kept or placed afresh
  std::int64_t sticky_swaps = 0;
  /// No fewer swaps balance the layers that a swap can balance.
  std::int64_t swaps_needed = 0;
  std::int64_t row_aware_swaps = 0;
  MoveList moves;                             ///< all of them; with two batches those of both together
  std::optional<Placement> first_batch = {};  ///< two_batches: where experts are after the sticky moves
  /// The limits and prices in effect; none when experts were kept or placed afresh. Plan files do not hold it.
  std::optional<MoveBudget> budget = {};
  std::string model = {};  ///< the preset that the widths of an expert were taken from, if any; in files among params
};

/// A plan with everything that was measured about it. The layout's sample indices at or past the window's N are
/// dummies.
struct Plan {
  Placement placement;
  Layout layout;
  RowCount rows;
  std::int64_t dummies = 0;
  Evaluation evaluation;
  Bounds bounds;
  Moves moves;
  double cv_global = 0.0;
  double cv_global_before = 0.0;  ///< at the current placement
  SearchReport search;
  PlacementReport placing;
  bool complete = true;  ///< false: cut short by a deadline; valid, not reproducible
};

/// Plans one optimizer step (docs/algorithm.md): place experts, fix the rows, search for the best way to fill them.
/// `current` is where experts are now; null means identity. The same result for any number of threads.
/// A deadline (params.deadline_ms, from the call on) or a stop cuts the search; the plan is valid and says so.
/// @throws InvalidInput when `current` has another shape, or a parameter is not built yet; Cancelled when stopped
///         before there was any layout; PeerLost when a process of the team is lost, InvalidInput when another one
///         plans something else.
std::variant<Plan, Infeasible> make_plan(const Instance& instance, const PlanParams& params,
                                         const Placement* current = nullptr, const RunContext& run = {});

/// Plans several steps that share one placement: demand and rows of all of them together decide where experts go, and
/// each gets a layout of its own. The instances agree in everything but the window and the samples in it.
/// @throws as make_plan
std::variant<std::vector<Plan>, Infeasible> make_plans(std::span<const Instance* const> instances,
                                                       const PlanParams& params, const Placement* current = nullptr,
                                                       const RunContext& run = {});

/// `params` with the window's model in it, if that is a preset and nothing else says what an expert weighs.
PlanParams with_model_of(PlanParams params, const Window& window);

/// Bytes of one expert's state: as given, from the preset's widths, or 0 when neither says.
/// @throws InvalidInput for both at once or an unknown preset
std::int64_t bytes_of_expert(const PlanParams& params);

/// @throws InvalidInput, with `where` in front, unless the placement has the instance's layers, experts and EP ranks.
void require_fits(const Placement& placement, const Instance& instance, const std::string& where);

/// What a framework does without routes: samples by falling length, each to the first cell that still holds it, cells
/// in order. The yardstick that `routepack plan` prints beside its own result.
std::variant<Layout, Infeasible> pack_first_fit_decreasing(const Instance& instance);

}  // namespace routepack
