// SPDX-License-Identifier: Apache-2.0
// Ranks that plan together, one of which ends by SIGKILL when a phase begins. Usage: plan_check FOLDER VICTIM PHASE
// Each rank writes FOLDER/rank-N.json: {"ok": …, "what": "…", "lost": …, "hash": "…", "seconds": …}.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>

#include "comm/mpi/mpi_world.h"
#include "comm/team_link.h"
#include "routepack/plan.h"
#include "routepack/plan_file.h"
#include "support/builders.h"

namespace routepack {
namespace {

/// With a silent rank: where one dies, and where only a busy machine could keep one silent.
constexpr std::chrono::seconds kImpatient{3}, kPatient{60};

/// Ends the process at the first begin of a phase; «level 3» is the third level of the search.
class Killer : public Observer {
 public:
  Killer(bool victim, std::string_view phase) : victim_(victim), phase_(phase) {}
  void phase_begins(Phase phase) override {
    if (victim_ && kPhaseNames.at(static_cast<std::size_t>(phase)) == phase_) std::raise(SIGKILL);
  }
  void level_ends(const SearchProgress& progress) override {
    if (victim_ && fmt::format("level {}", progress.level) == phase_) std::raise(SIGKILL);
  }

 private:
  bool victim_;
  std::string phase_;
};

nlohmann::json plan_as(Transport& end, std::int32_t victim, std::string_view phase) {
  const Window window = testing::make_window(testing::random_window(7, 120, 4, 16, 2, 20, 400));
  const Instance instance(window, Topology::megatron({.dp = 4, .ep = 4, .tp = 2}),
                          CostModel({{.name = "full", .alpha = 12.0, .beta = 3.0}}), 1000);
  const PlanParams params{.threads = 1, .seed = 1};
  Killer killer(end.rank() == victim, phase);
  TeamLink team(end, victim >= 0 ? kImpatient : kPatient);
  nlohmann::json report = {{"lost", -1}, {"hash", ""}};
  try {
    const auto made = make_plan(instance, params, nullptr, {.observer = &killer, .team = &team});
    report["hash"] = plan_hash(to_json(make_record(instance, params, std::get<Plan>(made))));
  } catch (const PeerLost& error) {
    report["lost"] = error.rank();
    report["error"] = error.what();
  }
  report["sent_bytes"] = team.sent_bytes();
  return report;
}

int rank_main(int argc, char** argv) {
  MpiWorld world(argc, argv);
  if (argc != 4) return 2;
  const std::filesystem::path path =
      std::filesystem::path(argv[1]) / fmt::format("rank-{}.json", world.transport().rank());
  const auto write = [path](const nlohmann::json& what) {
    std::ofstream(path.string() + ".part") << what.dump() << '\n';
    std::filesystem::rename(path.string() + ".part", path);
  };
  world.when_stuck(std::chrono::seconds(10), [write] { write({{"ok", true}, {"what", ""}, {"stuck", true}}); });
  const auto begin = std::chrono::steady_clock::now();
  nlohmann::json report;
  try {
    report = plan_as(world.transport(), std::stoi(argv[2]), argv[3]);
    report["ok"] = true;
    report["what"] = "";
  } catch (const std::exception& error) {
    report["ok"] = false;
    report["what"] = error.what();
  }
  report["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  write(report);
  if (std::stoi(argv[2]) >= 0 || !report["ok"]) world.leave(report["ok"] ? 0 : 1);
  return 0;
}

}  // namespace
}  // namespace routepack

int main(int argc, char** argv) {
  return routepack::rank_main(argc, argv);
}
