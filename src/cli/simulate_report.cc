// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "cli/report.h"

namespace routepack::cli {
namespace {

struct Part {
  const char* name;
  const char* key;
  double DeviceTime::* of;
};
constexpr std::array kParts = {Part{"dense side", "dense", &DeviceTime::dense},
                               Part{"experts", "experts", &DeviceTime::experts},
                               Part{"dispatch and combine", "exchange", &DeviceTime::exchange},
                               Part{"fixed, gradients, optimizer", "fixed", &DeviceTime::fixed},
                               Part{"waiting for slower cells", "wait_dispatch", &DeviceTime::wait_dispatch},
                               Part{"waiting for busier ranks", "wait_combine", &DeviceTime::wait_combine},
                               Part{"waiting for other stages", "wait_pipeline", &DeviceTime::wait_pipeline},
                               Part{"waiting for other shards", "wait_shards", &DeviceTime::wait_shards}};

constexpr std::size_t kOnColumns = 40;  // leaves room for the rest of the line

std::string seconds_text(double seconds) {
  if (seconds >= 1.0) return fmt::format("{:.3f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3f} ms", 1e3 * seconds);
  return fmt::format("{:.3f} us", 1e6 * seconds);
}

/// The largest entry and its share of the sum.
std::string worst(const char* name, const std::vector<double>& seconds, std::int32_t ranks_per_shard = 0) {
  double all = 0.0;
  for (const double s : seconds) all += s;
  if (all <= 0.0) return "";
  const auto at = std::ranges::max_element(seconds) - seconds.begin();
  const std::string which = ranks_per_shard > 0
                                ? fmt::format("{} {} of shard {}", name, at % ranks_per_shard, at / ranks_per_shard)
                                : fmt::format("{} {}", name, at);
  return fmt::format("  {}: {:.0f} % of it, {} device-time; evenly spread it would be {:.0f} %\n", which,
                     100.0 * seconds[static_cast<std::size_t>(at)] / all,
                     seconds_text(seconds[static_cast<std::size_t>(at)]), 100.0 / static_cast<double>(seconds.size()));
}

}  // namespace

std::string SimulateReport::text() const {
  const Topology& topology = instance.topology;
  std::string text = fmt::format(
      "{}: {} rows of {} slots, {} shard{}, {} pipeline stage{}, {} layers\n"
      "step {}, {} tokens/s\n\n",
      shortened(one_line(on), kOnColumns), rows, topology.slots(), topology.shards(), topology.shards() == 1 ? "" : "s",
      pipeline.stages, pipeline.stages == 1 ? "" : "s", timing.layers.size(), seconds_text(times.seconds),
      with_commas(static_cast<std::int64_t>(times.tokens_per_second())));
  Table table;
  table.row({"devices", "mean", "%", "least", "most"});
  const auto count = static_cast<double>(times.devices.size());
  for (const Part& part : kParts) {
    double sum = 0.0, least = times.seconds, most = 0.0;
    for (const DeviceTime& device : times.devices) {
      sum += device.*part.of;
      least = std::min(least, device.*part.of);
      most = std::max(most, device.*part.of);
    }
    const double share = times.seconds > 0.0 ? 100.0 * sum / count / times.seconds : 0.0;
    table.row({part.name, seconds_text(sum / count), fixed(share, 1), seconds_text(least), seconds_text(most)});
  }
  text += table.text();
  const Culprits& culprits = times.culprits;
  const std::string who = worst("slot", culprits.by_slot) + worst("EP rank", culprits.by_rank, topology.ranks()) +
                          worst("layer", culprits.by_layer) + worst("row", culprits.by_row);
  if (!who.empty()) text += "\nwho others wait for most\n" + who;
  if (admission) {
    const std::string verdict = admission->exposed() > 0.0
                                    ? fmt::format("packing is {} late", seconds_text(admission->exposed()))
                                    : std::string("packing is hidden");
    text +=
        wrapped(fmt::format("\nadmission: experts placed after {}, rows packed {} later; state moved in {}: ready "
                            "after {}, {} (equation 20)\n",
                            seconds_text(admission->place), seconds_text(admission->pack),
                            seconds_text(admission->state), seconds_text(admission->target()), verdict));
  }
  return text;
}

Json SimulateReport::json() const {
  Json devices = Json::array();
  for (const DeviceTime& time : times.devices) {
    Json device = {{"stage", time.device.stage}, {"shard", time.device.shard.value()}, {"place", time.device.place}};
    for (const Part& part : kParts) device[part.key] = time.*part.of;
    devices.push_back(std::move(device));
  }
  const Culprits& culprits = times.culprits;
  Json json = {{"format", "routepack.simulate/1"},
               {"on", printable(on)},
               {"seconds", times.seconds},
               {"tokens", times.tokens},
               {"tokens_per_second", times.tokens_per_second()},
               {"shard_ends", times.shard_ends},
               {"devices", std::move(devices)},
               {"waited_for",
                {{"by_slot", culprits.by_slot},
                 {"by_rank", culprits.by_rank},
                 {"by_layer", culprits.by_layer},
                 {"by_row", culprits.by_row}}}};
  if (admission) {
    json["admission"] = {{"place", admission->place},      {"pack", admission->pack},   {"other", admission->other},
                         {"state", admission->state},      {"admit", admission->admit}, {"target", admission->target()},
                         {"exposed", admission->exposed()}};
  }
  return json;
}

}  // namespace routepack::cli
