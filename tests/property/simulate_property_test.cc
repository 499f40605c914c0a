// SPDX-License-Identifier: Apache-2.0
// Laws of the step simulator: it takes what the objective charges, never less than the bound, and every second of every
// device has one place in the accounts.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "routepack/bounds.h"
#include "routepack/score.h"
#include "routepack/simulate.h"
#include "simulate/schedule.h"
#include "support/problems.h"
#include "support/property.h"

namespace routepack::testing {
namespace {

/// A problem with one way to place and pack it; at times with a dummy, and with more slots than ranks or fewer.
struct Case {
  Problem problem;
  Maps maps;
  Cells cells;
  std::mt19937_64 random;

  [[nodiscard]] std::int32_t rows() const { return static_cast<std::int32_t>(cells.size()); }
  [[nodiscard]] StepTimes simulate(const StepTiming& timing, const PipelineShape& pipeline = {},
                                   TimelineSink* sink = nullptr) const {
    const Scene scene(problem);
    return simulate_step(scene.instance, to_placement(maps, problem.ranks), to_layout(cells, problem), timing, pipeline,
                         sink);
  }
  [[nodiscard]] Evaluation evaluate_it() const {
    const Scene scene(problem);
    return evaluate(scene.instance, to_placement(maps, problem.ranks), to_layout(cells, problem));
  }
};

Case draw_case(bool padding = true) {
  Case drawn{draw_problem(Shape{.max_samples = 12, .max_layers = 4, .padding = padding}),
             {},
             {},
             std::mt19937_64(draw_seed())};
  const std::int32_t rows = draw(1, drawn.problem.samples() / drawn.problem.slots());
  drawn.maps = random_maps(drawn.random, drawn.problem.spec.layers, drawn.problem.spec.experts);
  drawn.cells = random_cells(drawn.random, drawn.problem.samples(), rows, drawn.problem.slots());
  if (below(drawn.random, 3) == 0) {
    const auto r = static_cast<std::size_t>(below(drawn.random, rows));
    const auto d = static_cast<std::size_t>(below(drawn.random, drawn.problem.slots()));
    drawn.cells[r][d].push_back(drawn.problem.samples());
  }
  return drawn;
}

double number(std::mt19937_64& random) {
  return below(random, 4) == 0 ? 0.0 : below(random, 1000) / 777.0;
}

PerPass numbers(std::mt19937_64& random) {
  const double forward = number(random);
  return {forward, number(random)};
}

/// Every term drawn; layers that are not routed stand among those that are.
StepTiming random_timing(std::mt19937_64& random, std::int64_t routed_layers) {
  StepTiming timing;
  const auto add_layer = [&](bool routed) {
    timing.layers.push_back({.stage = routed ? "moe" : "dense",
                             .routed = routed,
                             .token = numbers(random),
                             .pair = numbers(random),
                             .expert_weight = number(random)});
  };
  for (std::int64_t l = 0; l < routed_layers; ++l) {
    if (below(random, 3) == 0) add_layer(false);
    add_layer(true);
  }
  if (below(random, 2) == 0) add_layer(false);
  timing.expert = numbers(random);
  timing.active = numbers(random);
  timing.floor = {20.0 * number(random), 20.0 * number(random)};
  timing.tile = 1 + below(random, 8);
  timing.exchange = numbers(random);
  timing.exchange_fixed = numbers(random);
  timing.layer_fixed = numbers(random);
  timing.row = number(random);
  timing.hand_over = number(random);
  timing.reduce = number(random);
  timing.optimizer = number(random);
  timing.recompute = below(random, 2) == 0;
  return timing;
}

/// Plain 1F1B, or any interleaving that rows and layers allow.
PipelineShape random_pipeline(std::mt19937_64& random, const StepTiming& timing, std::int32_t rows) {
  const auto layers = static_cast<std::int32_t>(timing.layers.size());
  std::vector<PipelineShape> interleaved;
  for (std::int32_t stages = 2; 2 * stages <= layers; ++stages) {
    for (std::int32_t chunks = 2; rows % stages == 0 && stages * chunks <= layers; ++chunks) {
      interleaved.push_back({.stages = stages, .chunks = chunks});
    }
  }
  if (!interleaved.empty() && below(random, 2) == 0) {
    return interleaved[static_cast<std::size_t>(below(random, static_cast<std::int32_t>(interleaved.size())))];
  }
  return {.stages = 1 + below(random, std::min(layers, 4))};
}

bool close(double a, double b, double relative = 1e-9) {
  return std::abs(a - b) <= relative * std::max(std::abs(a), std::abs(b));
}

StepTiming objective_timing(Case& it, double unit_seconds, double forward_share) {
  auto& stages = it.problem.stages;
  stages.resize(std::min(stages.size(), static_cast<std::size_t>(it.problem.spec.layers)));  // a layer for each
  const Scene scene(it.problem);
  return StepTiming::of_cost(scene.instance.cost, it.problem.capacity, scene.window.layers(), unit_seconds,
                             forward_share);
}

TEST(Simulation, takes_what_the_objective_charges) {
  int of_row = 0, uneven = 0, padded = 0, per_layer = 0;
  for_all(1000, [&] {
    Case it = draw_case();
    const double unit = (1 + below(it.random, 100)) / 3e6;
    const StepTiming timing = objective_timing(it, unit, below(it.random, 5) / 4.0);
    const Score score = it.evaluate_it().score;
    const double scale = static_cast<double>(it.problem.capacity) * unit;
    const StepTimes times = it.simulate(timing);
    RC_ASSERT(close(times.seconds, score.max_shard * scale));
    if (it.problem.sync == Sync::Step) {
      double all = 0.0;
      for (const double end : times.shard_ends) all += end;
      RC_ASSERT(close(all, score.total * scale));
    }
    of_row += it.problem.sync == Sync::Row && it.problem.shards.size() > 1 ? 1 : 0;
    const auto sizes = std::ranges::minmax(it.problem.shards, {}, &std::vector<std::int32_t>::size);
    uneven += sizes.min.size() != sizes.max.size() ? 1 : 0;
    padded += it.problem.spec.pad_counts.empty() ? 0 : 1;
    per_layer += it.problem.expert.size() > 1 ? 1 : 0;
  });
  for (const int cases : {of_row, uneven, padded, per_layer}) EXPECT_GT(cases, 50);
}

/// The step a second time, by plain loops over the formulas of docs/model.md: how long each row takes in each chunk,
/// then the longest path through the orders of the stages.
class PlainStep {
 public:
  PlainStep(const Case& it, const StepTiming& timing, const PipelineShape& pipeline)
      : it_(it), timing_(timing), pipeline_(pipeline) {}

  double seconds() {
    const auto shards = it_.problem.shards.size();
    const auto stages = static_cast<std::size_t>(pipeline_.stages);
    std::vector<std::vector<PassOfRow>> orders;
    for (std::int32_t s = 0; s < pipeline_.stages; ++s) orders.push_back(stage_order(pipeline_, s, it_.rows()));
    // Passes in the order of time are not known yet: as many rounds as there are passes settle the longest path.
    std::map<Node, std::vector<double>> ends;
    for (std::size_t round = 0; round < stages * orders[0].size() + 1; ++round) {
      bool changed = false;
      for (std::size_t s = 0; s < stages; ++s) {
        std::vector<double> free(shards, 0.0);
        for (const PassOfRow& pass : orders[s]) {
          std::vector<double> end = end_of(pass, free, ends);
          free = end;
          std::vector<double>& known = ends[node(pass)];
          changed = changed || known != end;
          known = std::move(end);
        }
      }
      if (!changed) break;
    }
    double last = 0.0;
    for (const auto& [_, end] : ends) last = std::max(last, std::ranges::max(end));
    return last + timing_.reduce + timing_.optimizer;
  }

 private:
  using Node = std::tuple<Pass, std::int32_t, std::int32_t>;
  static Node node(const PassOfRow& pass) { return {pass.pass, pass.row, pass.chunk}; }

  std::vector<double> end_of(const PassOfRow& pass, const std::vector<double>& free,
                             std::map<Node, std::vector<double>>& ends) {
    const std::int32_t last_chunk = pipeline_.stages * pipeline_.chunks - 1;
    const bool turns = pass.pass == Pass::Backward && pass.chunk == last_chunk;
    const Node before = pass.pass == Pass::Forward ? Node{Pass::Forward, pass.row, pass.chunk - 1}
                        : turns                    ? Node{Pass::Forward, pass.row, pass.chunk}
                                                   : Node{Pass::Backward, pass.row, pass.chunk + 1};
    std::vector<double>& from = ends[before];  // empty: nothing before the first chunk, or not known yet
    from.resize(free.size(), 0.0);
    const bool travels = pipeline_.stages > 1 && !turns && std::get<2>(before) >= 0;
    std::vector<double> end;
    for (std::size_t g = 0; g < free.size(); ++g) {
      const double begin = std::max(free[g], from[g] + (travels ? timing_.hand_over * longest_cell(pass.row) : 0.0));
      end.push_back(begin + duration(pass, g));
    }
    const bool meets = it_.problem.sync == Sync::Row && (pipeline_.stages > 1 || pass.pass == Pass::Backward);
    if (meets) end.assign(end.size(), std::ranges::max(end));
    return end;
  }

  [[nodiscard]] const std::vector<std::int32_t>& cell(std::int32_t row, std::int32_t slot) const {
    return it_.cells[static_cast<std::size_t>(row)][static_cast<std::size_t>(slot)];
  }

  [[nodiscard]] double longest_cell(std::int32_t row) const {
    std::int64_t longest = 0;
    for (std::int32_t d = 0; d < it_.problem.slots(); ++d) {
      std::int64_t tokens = 0;
      for (const std::int32_t i : cell(row, d)) tokens += it_.problem.length(i);
      longest = std::max(longest, tokens);
    }
    return static_cast<double>(longest);
  }

  /// Layers of a chunk by number, each with its number among the routed ones.
  [[nodiscard]] std::vector<std::pair<std::size_t, std::int64_t>> layers_of(std::int32_t chunk) const {
    const auto layers = static_cast<std::int32_t>(timing_.layers.size());
    const std::int32_t chunks = pipeline_.stages * pipeline_.chunks;
    std::vector<std::pair<std::size_t, std::int64_t>> result;
    std::int64_t routed = 0;
    std::int32_t end_of_chunk = 0, c = -1;
    for (std::int32_t l = 0; l < layers; ++l) {
      while (l == end_of_chunk) end_of_chunk += layers / chunks + (++c < layers % chunks ? 1 : 0);
      if (c == chunk) result.emplace_back(l, routed);
      routed += timing_.layers[static_cast<std::size_t>(l)].routed ? 1 : 0;
    }
    return result;
  }

  double duration(const PassOfRow& pass, std::size_t g) const {
    auto layers = layers_of(pass.chunk);
    const std::vector<std::int32_t>& slots = it_.problem.shards[g];
    std::vector<double> since_meeting(slots.size(), 0.0);
    double met = pass.pass == Pass::Forward && pass.chunk == 0 ? timing_.row : 0.0;
    const auto meet = [&] {
      met += std::ranges::max(since_meeting);
      since_meeting.assign(slots.size(), 0.0);
    };
    const auto dense = [&](std::size_t layer, Pass way) {
      const LayerTiming& of = timing_.layers[layer];
      for (std::size_t n = 0; n < slots.size(); ++n) {
        double work = timing_.layer_fixed.of(way);
        for (const std::int32_t i : cell(pass.row, slots[n])) {
          const auto t = static_cast<double>(it_.problem.length(i));
          work += of.token.of(way) * t + of.pair.of(way) * t * t;
        }
        since_meeting[n] += work;
      }
    };
    const auto experts = [&](std::size_t layer, std::int64_t routed, Pass way) {
      if (!timing_.layers[layer].routed) return;
      meet();
      met += expert_side(pass.row, g, layer, routed, way);
    };
    if (pass.pass == Pass::Forward) {
      for (const auto& [layer, routed] : layers) {
        dense(layer, Pass::Forward);
        experts(layer, routed, Pass::Forward);
      }
    } else {
      std::ranges::reverse(layers);
      for (const auto& [layer, routed] : layers) {
        if (timing_.recompute) {
          dense(layer, Pass::Forward);
          experts(layer, routed, Pass::Forward);
        }
        experts(layer, routed, Pass::Backward);
        dense(layer, Pass::Backward);
      }
    }
    meet();
    return met;
  }

  /// Exchange, the busiest rank, exchange.
  double expert_side(std::int32_t row, std::size_t g, std::size_t layer, std::int64_t routed, Pass way) const {
    const Problem& problem = it_.problem;
    const std::vector<std::int32_t>& slots = problem.shards[g];
    const auto devices = static_cast<double>(std::max(slots.size(), static_cast<std::size_t>(problem.ranks)));
    double link = 0.0, slowest = 0.0;
    for (const std::int32_t d : slots) {
      double sent = 0.0;
      for (const std::int32_t i : cell(row, d)) {
        for (std::int64_t e = 0; e < problem.spec.experts; ++e) sent += problem.count(i, routed, e);
      }
      link = std::max(link, sent * static_cast<double>(slots.size()) / devices);
    }
    const std::int64_t width = problem.spec.experts / problem.ranks;
    for (std::int32_t p = 0; p < problem.ranks; ++p) {
      const std::int64_t load = rank_load(problem, it_.maps, it_.cells, static_cast<std::size_t>(row), g, routed, p);
      link = std::max(link, static_cast<double>(load) * problem.ranks / devices);
      std::int64_t bare = 0, rounded = 0, active = 0;
      for (std::int64_t v = p * width; v < (p + 1) * width; ++v) {
        const std::int32_t e = it_.maps[static_cast<std::size_t>(routed)][static_cast<std::size_t>(v)];
        std::int64_t of_expert = 0;
        for (const std::int32_t d : slots) {
          for (const std::int32_t i : cell(row, d)) of_expert += problem.count(i, routed, e);
        }
        bare += of_expert;
        while (of_expert % timing_.tile != 0) ++of_expert;
        rounded += of_expert;
        active += of_expert > 0 ? 1 : 0;
      }
      const auto computed = static_cast<double>(rounded + load - bare);  // padding is not rounded
      const auto with_load = static_cast<double>(active);
      const double busy = std::max(timing_.expert.of(way) * computed + timing_.active.of(way) * with_load,
                                   timing_.floor.of(way) * with_load);
      slowest = std::max(slowest, timing_.layers[layer].expert_weight * busy);
    }
    return slowest + 2.0 * (timing_.exchange.of(way) * link + timing_.exchange_fixed.of(way));
  }

  const Case& it_;
  const StepTiming& timing_;
  PipelineShape pipeline_;
};

TEST(Simulation, takes_what_plain_loops_compute) {
  int interleaved = 0;
  for_all(1000, [&] {
    Case it = draw_case();
    const StepTiming timing = random_timing(it.random, it.problem.spec.layers);
    const PipelineShape pipeline = random_pipeline(it.random, timing, it.rows());
    RC_ASSERT(close(it.simulate(timing, pipeline).seconds, PlainStep(it, timing, pipeline).seconds()));
    interleaved += pipeline.chunks > 1 ? 1 : 0;
  });
  EXPECT_GT(interleaved, 20);
}

/// Rounds to tiles, charges overheads and computes again: all of it only adds to what the objective charges.
void add_overheads(StepTiming& timing, std::mt19937_64& random) {
  const StepTiming more = random_timing(random, 1);
  timing.tile = more.tile;
  timing.active = more.active;
  timing.floor = more.floor;
  timing.exchange = more.exchange;
  timing.exchange_fixed = more.exchange_fixed;
  timing.layer_fixed = more.layer_fixed;
  timing.row = more.row;
  timing.hand_over = more.hand_over;
  timing.reduce = more.reduce;
  timing.optimizer = more.optimizer;
  timing.recompute = more.recompute;
}

// The bound is one on max_g U_g, the work of a shard whose devices do everything. In a pipeline of S stages the work of
// a shard is spread over S sets of devices, which run at the same time: seconds may be less than the bound. Some stage
// has at least the mean of its shard's work, U_g/S, so S·seconds is never less.
TEST(Simulation, is_never_below_the_bound_over_any_placement) {
  int tight = 0, below_without_stages = 0;
  for_all(1000, [&] {
    Case it = draw_case();
    const double unit = (1 + below(it.random, 100)) / 3e6;
    StepTiming timing = objective_timing(it, unit, 1.0 / 3.0);
    const Scene scene(it.problem);
    const Bounds bounds =
        lower_bounds(scene.instance, to_placement(it.maps, it.problem.ranks), aggregate_demand(scene.window));
    const double bound = bounds.any_placement * static_cast<double>(it.problem.capacity) * unit;
    const double bare = it.simulate(timing).seconds;
    RC_ASSERT(bare >= bound * (1 - 1e-9));
    tight += bare <= bound * (1 + 1e-9) ? 1 : 0;
    const PipelineShape pipeline = random_pipeline(it.random, timing, it.rows());
    const double in_pipeline = it.simulate(timing, pipeline).seconds;
    RC_ASSERT(pipeline.stages * in_pipeline >= bound * (1 - 1e-9));
    below_without_stages += in_pipeline < bound * (1 - 1e-9) ? 1 : 0;
    add_overheads(timing, it.random);
    RC_ASSERT(it.simulate(timing).seconds >= bare * (1 - 1e-9));
    RC_ASSERT(it.simulate(timing, pipeline).seconds >= in_pipeline * (1 - 1e-9));
  });
  EXPECT_GT(tight, 0);
  EXPECT_GT(below_without_stages, 0);  // so the factor S is needed
}

// Every stage has a fixed order of passes, every pass begins when the last of those it waits for is there, and lasts a
// sum of maxima of loads: the step is the longest path through a fixed graph, and monotone in each length.
bool not_shorter(double after, double before) {
  return after >= before * (1 - 1e-12);
}

// Without alignment: a longer sample needs less padding, and padding has load.
TEST(Simulation, is_not_shorter_for_a_longer_sample) {
  int longer = 0;
  for_all(500, [&] {
    Case it = draw_case(false);
    const StepTiming timing = random_timing(it.random, it.problem.spec.layers);
    const PipelineShape pipeline = random_pipeline(it.random, timing, it.rows());
    const double before = it.simulate(timing, pipeline).seconds;
    const auto i = static_cast<std::size_t>(below(it.random, it.problem.samples()));
    it.problem.spec.lengths[i] += 1 + below(it.random, 10);
    const double after = it.simulate(timing, pipeline).seconds;
    RC_ASSERT(not_shorter(after, before));
    longer += after > before ? 1 : 0;
  });
  EXPECT_GT(longer, 100);
}

TEST(Simulation, is_not_shorter_for_more_routes) {
  int longer = 0;
  for_all(500, [&] {
    Case it = draw_case();
    WindowSpec& spec = it.problem.spec;
    const StepTiming timing = random_timing(it.random, spec.layers);
    const PipelineShape pipeline = random_pipeline(it.random, timing, it.rows());
    // One token more in all samples, whose routes nobody recorded, makes room for a route to any expert.
    spec.recorded.clear();
    for (std::int32_t& length : spec.lengths) ++length;
    const double before = it.simulate(timing, pipeline).seconds;
    ++spec.counts[static_cast<std::size_t>(below(it.random, static_cast<std::int32_t>(spec.counts.size())))];
    const double after = it.simulate(timing, pipeline).seconds;
    RC_ASSERT(not_shorter(after, before));
    longer += after > before ? 1 : 0;
  });
  EXPECT_GT(longer, 100);
}

TEST(Simulation, is_not_shorter_for_a_multiple_of_the_tile) {
  int longer = 0;
  for_all(500, [&] {
    Case it = draw_case();
    StepTiming timing = random_timing(it.random, it.problem.spec.layers);
    const PipelineShape pipeline = random_pipeline(it.random, timing, it.rows());
    const double before = it.simulate(timing, pipeline).seconds;
    timing.tile *= 2 + below(it.random, 2);
    const double after = it.simulate(timing, pipeline).seconds;
    RC_ASSERT(not_shorter(after, before));
    longer += after > before ? 1 : 0;
  });
  EXPECT_GT(longer, 100);
}

TEST(Simulation, is_not_shorter_for_any_time_that_grows) {
  using Change = std::function<void(StepTiming&, LayerTiming&, double)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"token.forward", [](StepTiming&, LayerTiming& l, double by) { l.token.forward += by; }},
      {"token.backward", [](StepTiming&, LayerTiming& l, double by) { l.token.backward += by; }},
      {"pair.forward", [](StepTiming&, LayerTiming& l, double by) { l.pair.forward += by; }},
      {"pair.backward", [](StepTiming&, LayerTiming& l, double by) { l.pair.backward += by; }},
      {"expert_weight", [](StepTiming&, LayerTiming& l, double by) { l.expert_weight += by; }},
      {"expert.forward", [](StepTiming& t, LayerTiming&, double by) { t.expert.forward += by; }},
      {"expert.backward", [](StepTiming& t, LayerTiming&, double by) { t.expert.backward += by; }},
      {"active.forward", [](StepTiming& t, LayerTiming&, double by) { t.active.forward += by; }},
      {"active.backward", [](StepTiming& t, LayerTiming&, double by) { t.active.backward += by; }},
      {"floor.forward", [](StepTiming& t, LayerTiming&, double by) { t.floor.forward += 20.0 * by; }},
      {"floor.backward", [](StepTiming& t, LayerTiming&, double by) { t.floor.backward += 20.0 * by; }},
      {"exchange.forward", [](StepTiming& t, LayerTiming&, double by) { t.exchange.forward += by; }},
      {"exchange.backward", [](StepTiming& t, LayerTiming&, double by) { t.exchange.backward += by; }},
      {"exchange_fixed.forward", [](StepTiming& t, LayerTiming&, double by) { t.exchange_fixed.forward += by; }},
      {"exchange_fixed.backward", [](StepTiming& t, LayerTiming&, double by) { t.exchange_fixed.backward += by; }},
      {"layer_fixed.forward", [](StepTiming& t, LayerTiming&, double by) { t.layer_fixed.forward += by; }},
      {"layer_fixed.backward", [](StepTiming& t, LayerTiming&, double by) { t.layer_fixed.backward += by; }},
      {"row", [](StepTiming& t, LayerTiming&, double by) { t.row += by; }},
      {"hand_over", [](StepTiming& t, LayerTiming&, double by) { t.hand_over += by; }},
      {"reduce", [](StepTiming& t, LayerTiming&, double by) { t.reduce += by; }},
      {"optimizer", [](StepTiming& t, LayerTiming&, double by) { t.optimizer += by; }},
      {"recompute", [](StepTiming& t, LayerTiming&, double) { t.recompute = true; }},
  };
  std::vector<int> longer(changes.size(), 0);
  for_all(200, [&] {
    Case it = draw_case();
    const StepTiming timing = random_timing(it.random, it.problem.spec.layers);
    const PipelineShape pipeline = random_pipeline(it.random, timing, it.rows());
    const double before = it.simulate(timing, pipeline).seconds;
    const auto layer = static_cast<std::size_t>(below(it.random, static_cast<std::int32_t>(timing.layers.size())));
    for (std::size_t n = 0; n < changes.size(); ++n) {
      StepTiming slower = timing;
      changes[n].second(slower, slower.layers[layer], 0.01 + number(it.random));
      const double after = it.simulate(slower, pipeline).seconds;
      if (!not_shorter(after, before)) RC_FAIL(changes[n].first);
      longer[n] += after > before ? 1 : 0;
    }
  });
  for (std::size_t n = 0; n < changes.size(); ++n) EXPECT_GT(longer[n], 10) << changes[n].first << " changes nothing";
}

TEST(Simulation, is_not_shorter_when_shards_meet_more_often) {
  int longer = 0;
  for_all(500, [&] {
    Case it = draw_case();
    const StepTiming timing = random_timing(it.random, it.problem.spec.layers);
    const PipelineShape pipeline = random_pipeline(it.random, timing, it.rows());
    it.problem.sync = Sync::Step;
    const double step = it.simulate(timing, pipeline).seconds;
    it.problem.sync = Sync::Row;
    const double row = it.simulate(timing, pipeline).seconds;
    RC_ASSERT(not_shorter(row, step));
    longer += row > step ? 1 : 0;
  });
  EXPECT_GT(longer, 50);
}

/// Every cell one sample of `length` tokens, every token on every expert, equal shards, equal layers.
struct Balanced {
  Case it;
  std::int32_t length = 0, slots_of_shard = 0, experts_of_rank = 0;
};

Balanced draw_balanced(std::int32_t rows, std::int32_t layers) {
  Balanced drawn;
  const std::int32_t shards = draw(1, 3);
  drawn.slots_of_shard = draw(1, 4);
  drawn.experts_of_rank = draw(1, 3);
  drawn.length = draw(1, 20);
  Problem& problem = drawn.it.problem;
  problem.ranks = draw(1, 4);
  problem.capacity = drawn.length;
  problem.expert = {1.0};
  problem.sync = draw(0, 1) == 0 ? Sync::Step : Sync::Row;
  for (std::int32_t g = 0; g < shards; ++g) {
    problem.shards.emplace_back();
    for (std::int32_t n = 0; n < drawn.slots_of_shard; ++n) problem.shards.back().push_back(n * shards + g);
  }
  const std::int32_t slots = problem.slots();
  const std::int32_t experts = drawn.experts_of_rank * problem.ranks;
  problem.spec = {.samples = rows * slots, .layers = layers, .experts = experts, .top_k = experts};
  problem.spec.lengths.assign(static_cast<std::size_t>(problem.spec.samples), drawn.length);
  problem.spec.counts.assign(static_cast<std::size_t>(problem.spec.samples * layers * experts),
                             static_cast<std::uint32_t>(drawn.length));
  drawn.it.random.seed(draw_seed());
  drawn.it.maps = random_maps(drawn.it.random, layers, experts);
  drawn.it.cells.assign(static_cast<std::size_t>(rows), {});
  std::int32_t next = 0;
  for (auto& row : drawn.it.cells) {
    for (std::int32_t d = 0; d < slots; ++d) row.push_back({next++});
  }
  return drawn;
}

/// All layers alike and routed.
StepTiming even_timing(std::mt19937_64& random, std::int32_t layers) {
  StepTiming timing = random_timing(random, 1);
  const LayerTiming layer{.token = numbers(random), .pair = numbers(random), .expert_weight = 0.5 + number(random)};
  timing.layers.assign(static_cast<std::size_t>(layers), layer);
  return timing;
}

/// One layer in one pass, by the page: n slots of a shard hold n·t tokens, which all go to each of its P·H experts.
double even_layer(const Balanced& balanced, const StepTiming& timing, Pass pass) {
  const LayerTiming& layer = timing.layers.front();
  const double t = balanced.length, n = balanced.slots_of_shard, h = balanced.experts_of_rank;
  const double ranks = balanced.it.problem.ranks;
  const double dense = layer.token.of(pass) * t + layer.pair.of(pass) * t * t + timing.layer_fixed.of(pass);
  const double tile = static_cast<double>(timing.tile);
  const double rounded = std::ceil(n * t / tile) * tile;
  const double experts = layer.expert_weight * h *
                         std::max(timing.expert.of(pass) * rounded + timing.active.of(pass), timing.floor.of(pass));
  const double devices = std::max(n, ranks);  // n·t·P·H routed tokens leave and reach as many devices evenly
  const double exchange = timing.exchange.of(pass) * n * t * ranks * h / devices + timing.exchange_fixed.of(pass);
  return dense + experts + 2.0 * exchange;
}

double even_row(const Balanced& balanced, const StepTiming& timing) {
  const double forward = even_layer(balanced, timing, Pass::Forward);
  const double backward = even_layer(balanced, timing, Pass::Backward);
  return static_cast<double>(timing.layers.size()) * (forward * (timing.recompute ? 2.0 : 1.0) + backward);
}

TEST(Simulation, of_perfect_balance_is_a_product_and_nobody_waits) {
  for_all(300, [] {
    const std::int32_t rows = draw(1, 4), layers = draw(1, 4);
    Balanced balanced = draw_balanced(rows, layers);
    const StepTiming timing = even_timing(balanced.it.random, layers);
    const StepTimes times = balanced.it.simulate(timing);
    RC_ASSERT(
        close(times.seconds, rows * (timing.row + even_row(balanced, timing)) + timing.reduce + timing.optimizer));
    for (const DeviceTime& device : times.devices) {
      const double waits = device.wait_combine + device.wait_dispatch + device.wait_pipeline + device.wait_shards;
      RC_ASSERT(waits <= 1e-9 * times.seconds);
    }
  });
}

// S equal stages, forward f and backward b of a row on one of them. The last stage gets its first row after (S − 1)·f,
// is then busy for R·(f + b), and its last backward pass takes (S − 1)·b back to the first: (R + S − 1)·(f + b), of
// which a stage works R·(f + b). With t_row = S·(f + b) that is (R + S − 1)·t_row/S.
// With V chunks a stage passes a row on after f/V: the first rows are there after (S − 1)·f/V, the last is back after
// (S − 1)·b/V, so that the bubble is (S − 1)/V·(f + b) (Narayanan et al., arXiv 2104.04473, section 2.2.2).
TEST(Simulation, of_a_balanced_pipeline_has_the_bubble_of_its_schedule) {
  for_all(300, [] {
    const std::int32_t stages = draw(2, 4), chunks = draw(1, 3);
    const std::int32_t rows = chunks == 1 ? draw(1, 9) : stages * draw(1, 3);
    const std::int32_t layers = stages * chunks * draw(1, 2);
    Balanced balanced = draw_balanced(rows, layers);
    StepTiming timing = even_timing(balanced.it.random, layers);
    timing.row = 0.0;  // would make the first stage slower
    timing.hand_over = 0.0;
    const StepTimes times = balanced.it.simulate(timing, {.stages = stages, .chunks = chunks});
    const double of_stage = even_row(balanced, timing) / stages;
    const double bubble = of_stage * (stages - 1) / chunks;
    RC_ASSERT(close(times.seconds, rows * of_stage + bubble + timing.reduce + timing.optimizer));
    for (const DeviceTime& device : times.devices) {
      RC_ASSERT(std::abs(device.wait_pipeline - bubble) <= 1e-9 * times.seconds);
      RC_ASSERT(device.wait_combine + device.wait_dispatch + device.wait_shards <= 1e-9 * times.seconds);
    }
  });
}

/// Intervals by device, as they came.
class Recorder final : public TimelineSink {
 public:
  using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t>;
  void interval(const Interval& interval) override {
    const DeviceId& device = interval.device;
    of_device[{device.stage, device.shard.value(), device.place}].push_back(interval);
  }
  std::map<Key, std::vector<Interval>> of_device;
};

TEST(Simulation, accounts_for_every_second_of_every_device) {
  for_all(500, [] {
    Case it = draw_case();
    const StepTiming timing = random_timing(it.random, it.problem.spec.layers);
    const PipelineShape pipeline = random_pipeline(it.random, timing, it.rows());
    const StepTimes times = it.simulate(timing, pipeline);
    std::size_t places = 0;
    for (const auto& shard : it.problem.shards) {
      places += std::max(shard.size(), static_cast<std::size_t>(it.problem.ranks));
    }
    RC_ASSERT(times.devices.size() == static_cast<std::size_t>(pipeline.stages) * places);
    for (const DeviceTime& device : times.devices) {
      const double all = device.dense + device.experts + device.exchange + device.fixed + device.wait_dispatch +
                         device.wait_combine + device.wait_pipeline + device.wait_shards;
      RC_ASSERT(close(all, times.seconds));
    }
    RC_ASSERT(times.shard_ends.size() == it.problem.shards.size());
    RC_ASSERT(close(std::ranges::max(times.shard_ends) + timing.reduce + timing.optimizer, times.seconds));
    const std::vector<std::int32_t>& lengths = it.problem.spec.lengths;
    RC_ASSERT(times.tokens == std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
  });
}

TEST(Simulation, draws_each_device_without_holes_or_overlaps_as_in_its_account) {
  int same = 0;
  for_all(500, [&] {
    Case it = draw_case();
    const StepTiming timing = random_timing(it.random, it.problem.spec.layers);
    const PipelineShape pipeline = random_pipeline(it.random, timing, it.rows());
    Recorder drawn;
    const StepTimes times = it.simulate(timing, pipeline, &drawn);
    RC_ASSERT(times.seconds == it.simulate(timing, pipeline).seconds);  // watching changes nothing
    if (times.seconds <= 0.0) return;
    RC_ASSERT(drawn.of_device.size() == times.devices.size());
    for (const DeviceTime& device : times.devices) {
      const auto& intervals = drawn.of_device[{device.device.stage, device.device.shard.value(), device.device.place}];
      RC_ASSERT(!intervals.empty());
      std::map<Activity, double> sums;
      double now = 0.0;
      for (const Interval& interval : intervals) {
        RC_ASSERT(interval.begin == now);
        RC_ASSERT(interval.end > interval.begin);
        RC_ASSERT(interval.row < it.rows());
        RC_ASSERT(interval.layer < static_cast<std::int32_t>(timing.layers.size()));
        sums[interval.activity] += interval.end - interval.begin;
        now = interval.end;
      }
      RC_ASSERT(now == times.seconds);
      const auto equal = [&](double a, double b) { return std::abs(a - b) <= 1e-9 * times.seconds; };
      // What a layer costs beside its work is drawn with its dense side.
      RC_ASSERT(equal(sums[Activity::Dense] + sums[Activity::Row] + sums[Activity::Reduce] + sums[Activity::Optimizer],
                      device.dense + device.fixed));
      RC_ASSERT(equal(sums[Activity::Experts], device.experts));
      RC_ASSERT(equal(sums[Activity::Dispatch] + sums[Activity::Combine], device.exchange));
      RC_ASSERT(equal(sums[Activity::Dispatch], sums[Activity::Combine]));
      RC_ASSERT(equal(sums[Activity::Wait],
                      device.wait_dispatch + device.wait_combine + device.wait_pipeline + device.wait_shards));
      ++same;
    }
  });
  EXPECT_GT(same, 1000);
}

TEST(Simulation, lays_all_waiting_inside_shards_to_somebodys_charge) {
  int waited = 0;
  for_all(500, [&] {
    Case it = draw_case();
    const StepTiming timing = random_timing(it.random, it.problem.spec.layers);
    const StepTimes times = it.simulate(timing, random_pipeline(it.random, timing, it.rows()));
    double dispatch = 0.0, combine = 0.0;
    for (const DeviceTime& device : times.devices) {
      dispatch += device.wait_dispatch;
      combine += device.wait_combine;
    }
    const auto sum = [](const std::vector<double>& seconds) {
      return std::accumulate(seconds.begin(), seconds.end(), 0.0);
    };
    const auto equal = [&](double a, double b) { return std::abs(a - b) <= 1e-9 * times.seconds; };
    const Culprits& culprits = times.culprits;
    RC_ASSERT(culprits.by_slot.size() == static_cast<std::size_t>(it.problem.slots()));
    RC_ASSERT(culprits.by_rank.size() == it.problem.shards.size() * static_cast<std::size_t>(it.problem.ranks));
    RC_ASSERT(culprits.by_layer.size() == timing.layers.size());
    RC_ASSERT(culprits.by_row.size() == it.cells.size());
    RC_ASSERT(equal(sum(culprits.by_slot), dispatch));
    RC_ASSERT(equal(sum(culprits.by_rank), combine));
    RC_ASSERT(equal(sum(culprits.by_layer), dispatch + combine));
    RC_ASSERT(equal(sum(culprits.by_row), dispatch + combine));
    waited += dispatch > 0.0 && combine > 0.0 ? 1 : 0;
  });
  EXPECT_GT(waited, 100);
}

TEST(Simulation, does_not_depend_on_the_names_of_slots_in_a_shard) {
  for_all(300, [] {
    Case it = draw_case();
    const StepTiming timing = random_timing(it.random, it.problem.spec.layers);
    const PipelineShape pipeline = random_pipeline(it.random, timing, it.rows());
    const double before = it.simulate(timing, pipeline).seconds;
    for (const auto& shard : it.problem.shards) {
      std::vector<std::int32_t> order = shard;
      std::shuffle(order.begin(), order.end(), it.random);
      for (auto& row : it.cells) {
        const auto old = row;
        for (std::size_t n = 0; n < shard.size(); ++n) {
          row[static_cast<std::size_t>(order[n])] = old[static_cast<std::size_t>(shard[n])];
        }
      }
    }
    RC_ASSERT(close(it.simulate(timing, pipeline).seconds, before, 1e-12));
  });
}

TEST(Simulation, does_not_depend_on_the_names_of_ranks) {
  for_all(300, [] {
    Case it = draw_case();
    const StepTiming timing = random_timing(it.random, it.problem.spec.layers);
    const PipelineShape pipeline = random_pipeline(it.random, timing, it.rows());
    const double before = it.simulate(timing, pipeline).seconds;
    const auto width = it.problem.spec.experts / it.problem.ranks;
    std::vector<std::int32_t> order(static_cast<std::size_t>(it.problem.ranks));
    std::iota(order.begin(), order.end(), 0);
    for (auto& map : it.maps) {
      std::shuffle(order.begin(), order.end(), it.random);
      const auto old = map;
      for (std::size_t p = 0; p < order.size(); ++p) {
        std::copy_n(old.begin() + order[p] * width, width, map.begin() + static_cast<std::ptrdiff_t>(p) * width);
      }
    }
    RC_ASSERT(close(it.simulate(timing, pipeline).seconds, before, 1e-12));
  });
}

}  // namespace
}  // namespace routepack::testing
