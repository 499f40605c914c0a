// SPDX-License-Identifier: Apache-2.0
// Real moves between processes. Usage: transfer_check FOLDER exact EP EDP
//                                      transfer_check FOLDER kill EP EDP SIZE RANK INDEX TIMEOUT_MS
// `kill` makes one move in which RANK kills itself before its message INDEX (−1: nobody dies). Each rank writes
// FOLDER/report-N.json; tests/mpi/test_transfer.py starts it and reads them.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <csignal>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/mpi/mpi_world.h"
#include "routepack/error.h"
#include "routepack/transfer_engine.h"
#include "support/memory_state.h"
#include "support/sabotage.h"
#include "support/transfer_layouts.h"

namespace routepack::testing {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A file that is whole as soon as it is there: the test may look while others still run, or after they were killed.
void write_report(const std::filesystem::path& folder, std::int32_t rank, const nlohmann::json& report) {
  const std::filesystem::path path = folder / fmt::format("report-{}.json", rank);
  {
    std::ofstream out(path.string() + ".part");
    out << report.dump(1) << '\n';
    if (!out.flush()) throw IoError(path.string() + ": cannot be written");
  }
  std::filesystem::rename(path.string() + ".part", path);
}

std::string name_of(LayerState state) {
  for (const auto& choice : choices(state)) {
    if (choice.value == state) return std::string(choice.name);
  }
  return "?";
}

nlohmann::json as_json(const TransferOutcome& outcome) {
  nlohmann::json json = {{"complete", outcome.complete},
                         {"silent", outcome.silent},
                         {"sent", outcome.bytes_sent},
                         {"received", outcome.bytes_received},
                         {"staging", outcome.staging_bytes}};
  for (const LayerState state : outcome.layers) json["layers"].push_back(name_of(state));
  if (outcome.failure) {
    json["failure"] = {
        {"rank", outcome.failure->rank}, {"layer", outcome.failure->layer}, {"what", outcome.failure->what}};
  }
  return json;
}

/// The first byte that is not what the states say.
std::string untrue(const MemoryState& state, const TransferOutcome& outcome, const Placement& from,
                   const Placement& to) {
  for (const LayerId layer : IdRange<LayerId>(from.layers())) {
    if (outcome.layers[layer] == LayerState::Torn) return fmt::format("layer {} is torn", layer.value());
    std::string wrong = state.wrong(outcome.layers[layer] == LayerState::New ? to : from, layer);
    if (!wrong.empty()) return wrong;
  }
  return state.overrun();
}

/// Until all ranks have come here: notes of the next engine must not reach one of the engine before.
void barrier(Transport& end) {
  const std::array<std::byte, 1> out{};
  for (std::int32_t distance = 1; distance < end.ranks(); distance *= 2) {
    std::array<std::byte, 1> in{};
    std::vector<Transport::Ticket> open = {
        end.send((end.rank() + distance) % end.ranks(), out),
        end.receive((end.rank() - distance % end.ranks() + end.ranks()) % end.ranks(), in)};
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    while (std::erase_if(open, [&](Transport::Ticket ticket) { return end.poll(ticket); }), !open.empty()) {
      if (Clock::now() > deadline) throw Error("barrier: somebody does not come");
      std::this_thread::yield();
    }
  }
}

/// Every kind of state on every way, random placements and back.
bool exact(Transport& end, const ExpertGrid& grid, nlohmann::json& report) {
  std::mt19937_64 random(11);
  std::int64_t moves = 0, bytes = 0;
  std::vector<NamedLayout> layouts = layouts_of_every_kind(grid, 3, 2);
  layouts.push_back({"messages longer than a chunk", GridLayout::adam(grid, 1, 1, 577, 641)});
  for (const NamedLayout& it : layouts) {
    for (const auto& [route, atomic] :
         {std::pair(Route::TwoHop, Atomic::Layer), std::pair(Route::Direct, Atomic::Step)}) {
      Placement now = identity_of(it.layout);
      MemoryState state(it.layout, end.rank(), now);
      TransferEngine engine(end, it.layout, state, now, 0, {.route = route, .atomic = atomic});
      for (std::int64_t epoch = 1; epoch <= 3; ++epoch) {
        const Placement to = epoch == 3 ? identity_of(it.layout) : random_placement(random, it.layout);
        const TransferOutcome outcome = engine.move(to, epoch);
        std::string wrong = outcome.failure ? outcome.failure->what : untrue(state, outcome, now, to);
        if (!outcome.complete || !wrong.empty()) {
          report["what"] = fmt::format("{}, move {}: {}", it.name, epoch, wrong);
          return false;
        }
        now = to;
        ++moves;
        bytes += outcome.bytes_received;
      }
      barrier(end);
    }
  }
  report["moves"] = moves;
  report["bytes"] = bytes;
  return true;
}

struct Killing {
  std::int64_t size;
  std::int32_t rank;
  std::int64_t index;
  std::chrono::milliseconds timeout;
};

bool kill_one(Transport& end, const ExpertGrid& grid, const Killing& killing, nlohmann::json& report) {
  const GridLayout layout = GridLayout::adam(grid, 2, 2, killing.size, killing.size);
  std::mt19937_64 random(12);
  const Placement from = identity_of(layout), to = random_placement(random, layout);
  MemoryState state(layout, end.rank(), from);
  TamperedTransport tampered(end, [&](const TamperedTransport::Message& message) {
    if (end.rank() == killing.rank && message.index == killing.index) std::raise(SIGKILL);
  });
  TransferEngine engine(tampered, layout, state, from, 0, {.timeout = killing.timeout});
  const auto start = Clock::now();
  const TransferOutcome outcome = engine.move(to, 1);
  report.update(as_json(outcome));
  report["seconds"] = seconds_since(start);
  report["messages"] = tampered.sent();
  report["untrue"] = untrue(state, outcome, from, to);
  return outcome.complete;
}

/// @returns whether the network is as good as new
bool run(Transport& end, const std::vector<std::string>& arguments, nlohmann::json& report) {
  const ExpertGrid grid{.ep = std::stoi(arguments.at(2)), .edp = std::stoi(arguments.at(3))};
  if (arguments.at(1) == "exact") return exact(end, grid, report);
  return kill_one(end, grid,
                  {.size = std::stoll(arguments.at(4)),
                   .rank = std::stoi(arguments.at(5)),
                   .index = std::stoll(arguments.at(6)),
                   .timeout = std::chrono::milliseconds(std::stoll(arguments.at(7)))},
                  report);
}

}  // namespace
}  // namespace routepack::testing

int main(int argc, char** argv) {
  using namespace routepack;
  MpiWorld world(argc, argv);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  nlohmann::json report = {{"rank", world.transport().rank()}, {"library", world.library()}};
  bool good = false;
  try {
    good = testing::run(world.transport(), arguments, report);
  } catch (const std::exception& error) {
    report["what"] = error.what();
  }
  report["ok"] = good;
  testing::write_report(arguments.at(0), world.transport().rank(), report);
  // Where somebody was killed nobody waits for everybody's goodbye.
  const bool killed = arguments.at(1) == "kill" && arguments.at(6) != "-1";
  if (!good || killed) world.leave(good ? 0 : 4);
}
