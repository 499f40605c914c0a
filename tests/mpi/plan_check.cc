// SPDX-License-Identifier: Apache-2.0
// Ranks that plan together, one of which is up to something when a phase begins. Usage:
//   plan_check FOLDER VICTIM PHASE [kill|halt [PATIENCE_MS]]
// kill: the victim ends by SIGKILL. halt: it writes FOLDER/halted and goes on when FOLDER/go is there. «load» is before
// it has made the window, «level 3» after the third level of the search.
// Each rank writes FOLDER/rank-N.json: {"ok": …, "what": "…", "host": "…", "lost": …, "hash": "…", "seconds": …,
// "messages": [to each rank, …], "bytes": [to each rank, …]}.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "comm/mpi/mpi_world.h"
#include "comm/team_link.h"
#include "routepack/plan.h"
#include "routepack/plan_file.h"
#include "support/builders.h"

namespace routepack {
namespace {

/// With a silent rank: where one dies, and where only a busy machine could keep one silent.
constexpr std::chrono::seconds kImpatient{3}, kPatient{60};

/// Passes everything on, and counts what is sent to whom. Must outlive the job: what a failed call left is kept here.
class CountingTransport final : public Transport {
 public:
  explicit CountingTransport(Transport& end)
      : messages(static_cast<std::size_t>(end.ranks())), bytes(static_cast<std::size_t>(end.ranks())), end_(end) {}
  [[nodiscard]] std::int32_t rank() const override { return end_.rank(); }
  [[nodiscard]] std::int32_t ranks() const override { return end_.ranks(); }
  Ticket send(std::int32_t to, std::span<const std::byte> what) override {
    ++messages.at(static_cast<std::size_t>(to));
    bytes.at(static_cast<std::size_t>(to)) += what.size();
    return end_.send(to, what);
  }
  Ticket receive(std::int32_t from, std::span<std::byte> what) override { return end_.receive(from, what); }
  bool poll(Ticket ticket) override { return end_.poll(ticket); }
  void post(std::int32_t to, std::span<const std::byte> what) override { end_.post(to, what); }
  std::optional<Note> note() override { return end_.note(); }

  std::vector<std::size_t> messages, bytes;  // [to]

 private:
  Transport& end_;
};

/// What the victim is up to, when the phase first begins.
class Mischief : public Observer {
 public:
  Mischief(bool victim, std::string_view phase, std::string_view deed, std::filesystem::path folder)
      : armed_(victim), phase_(phase), deed_(deed), folder_(std::move(folder)) {}
  void phase_begins(Phase phase) override { at(kPhaseNames.at(static_cast<std::size_t>(phase))); }
  void level_ends(const SearchProgress& progress) override { at(fmt::format("level {}", progress.level)); }
  void at(std::string_view moment) {
    if (!armed_ || moment != phase_) return;
    armed_ = false;
    if (deed_ == "kill") std::raise(SIGKILL);
    std::ofstream(folder_ / "halted") << moment << '\n';
    while (!std::filesystem::exists(folder_ / "go")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

 private:
  bool armed_;
  std::string phase_, deed_;
  std::filesystem::path folder_;
};

struct Arguments {
  std::filesystem::path folder;
  std::int32_t victim = -1;
  std::string phase, deed = "kill";
  std::chrono::milliseconds patience{};
};

Arguments read_arguments(int argc, char** argv) {
  if (argc < 4 || argc > 6) throw InvalidInput("plan_check FOLDER VICTIM PHASE [kill|halt [PATIENCE_MS]]");
  Arguments read{.folder = argv[1], .victim = std::stoi(argv[2]), .phase = argv[3]};
  if (argc > 4) read.deed = argv[4];
  if (read.deed != "kill" && read.deed != "halt") throw InvalidInput(read.deed + ": wanted kill or halt");
  read.patience = read.victim >= 0 ? kImpatient : kPatient;
  if (argc > 5) read.patience = std::chrono::milliseconds(std::stoi(argv[5]));
  return read;
}

nlohmann::json plan_as(CountingTransport& end, const Arguments& arguments) {
  Mischief mischief(end.rank() == arguments.victim, arguments.phase, arguments.deed, arguments.folder);
  mischief.at("load");
  const Window window = testing::make_window(testing::random_window(7, 120, 4, 16, 2, 20, 400));
  const Instance instance(window, Topology::megatron({.dp = 4, .ep = 4, .tp = 2}),
                          CostModel({{.name = "full", .alpha = 12.0, .beta = 3.0}}), 1000);
  const PlanParams params{.threads = 1, .seed = 1};
  TeamLink team(end, arguments.patience);
  nlohmann::json report = {{"lost", -1}, {"hash", ""}};
  try {
    const auto made = make_plan(instance, params, nullptr, {.observer = &mischief, .team = &team});
    report["hash"] = plan_hash(to_json(make_record(instance, params, std::get<Plan>(made))));
  } catch (const PeerLost& error) {
    report["lost"] = error.rank();
    report["error"] = error.what();
  }
  report["sent_bytes"] = team.sent_bytes();
  report["messages"] = end.messages;
  report["bytes"] = end.bytes;
  return report;
}

int rank_main(int argc, char** argv) {
  MpiWorld world(argc, argv);
  const Arguments arguments = read_arguments(argc, argv);
  const std::filesystem::path path = arguments.folder / fmt::format("rank-{}.json", world.transport().rank());
  const auto write = [path](const nlohmann::json& what) {
    std::ofstream(path.string() + ".part") << what.dump() << '\n';
    std::filesystem::rename(path.string() + ".part", path);
  };
  world.when_stuck(std::chrono::seconds(10), [write] { write({{"ok", true}, {"what", ""}, {"stuck", true}}); });
  CountingTransport end(world.transport());
  const auto begin = std::chrono::steady_clock::now();
  nlohmann::json report;
  try {
    report = plan_as(end, arguments);
    report["ok"] = true;
    report["what"] = "";
  } catch (const std::exception& error) {
    report["ok"] = false;
    report["what"] = error.what();
  }
  report["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  report["host"] = host;
  write(report);
  if (arguments.victim >= 0 || !report["ok"]) world.leave(report["ok"] ? 0 : 1);
  return 0;
}

}  // namespace
}  // namespace routepack

int main(int argc, char** argv) {
  return routepack::rank_main(argc, argv);
}
