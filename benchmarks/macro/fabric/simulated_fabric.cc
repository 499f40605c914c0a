// SPDX-License-Identifier: Apache-2.0
// Planning by more hosts than there are: every rank is a thread that does its real work, timed by its own processor
// clock, and a network of given latency and rate is charged to virtual clocks. What is printed is the time that so many
// hosts would take, one thread each. Usage:
//   simulated_fabric WINDOW COST DP EP CAP EFFORT LATENCY_US OVERHEAD_US GBYTES_PER_S RANKS...
// LATENCY_US: of a message; OVERHEAD_US: of a core per message; GBYTES_PER_S: of a host, each way.
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "routepack/plan.h"
#include "routepack/plan_file.h"
#include "routepack/window_parts.h"

namespace routepack {
namespace {

using Bytes = std::vector<std::byte>;

struct Fabric {
  double latency = 0.0, overhead = 0.0, bytes_per_second = 0.0;
};

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Where the ranks meet.
class Switch {
 public:
  explicit Switch(std::size_t ranks) : told_(ranks), clocks_(ranks) {}

  /// What all told, and the latest of their clocks.
  std::pair<std::vector<Bytes>, double> meet(std::size_t rank, Bytes mine, double clock) {
    std::unique_lock lock(mutex_);
    told_[rank] = std::move(mine);
    clocks_[rank] = clock;
    const std::size_t round = round_;
    if (++arrived_ == told_.size()) {
      all_ = told_;
      latest_ = std::ranges::max(clocks_);
      arrived_ = 0;
      ++round_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return round_ != round; });
    }
    return {all_, latest_};
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<Bytes> told_, all_;
  std::vector<double> clocks_;
  double latest_ = 0.0;
  std::size_t arrived_ = 0, round_ = 0;
};

/// One rank with its virtual clock.
class SimulatedLink final : public Communicator {
 public:
  SimulatedLink(Switch& meeting, const Fabric& fabric, std::size_t rank, std::size_t ranks)
      : meeting_(meeting), fabric_(fabric), rank_(rank), ranks_(ranks), worked_until_(processor_seconds()) {}

  [[nodiscard]] std::int32_t rank() const override { return static_cast<std::int32_t>(rank_); }
  [[nodiscard]] std::int32_t ranks() const override { return static_cast<std::int32_t>(ranks_); }

  std::vector<Bytes> all_gather(std::span<const std::byte> mine) override {
    auto [all, latest] = meet(mine);
    double in = 0.0;
    for (const Bytes& bytes : all) in += static_cast<double>(bytes.size());
    in -= static_cast<double>(mine.size());
    const double out = static_cast<double>(mine.size()) * peers();
    charge(latest, 2, std::max(in, out));  // the sizes first
    sent_ += out + 8.0 * peers();
    return std::move(all);
  }
  void sum(std::span<std::int64_t> values) override { sum_of(values); }
  void sum(std::span<std::int32_t> values) override { sum_of(values); }

  /// The virtual time by now.
  double clock() {
    const double now = processor_seconds();
    clock_ += now - worked_until_;
    worked_until_ = now;
    return clock_;
  }
  [[nodiscard]] double waited() const { return waited_; }
  [[nodiscard]] double sent() const { return sent_; }

 private:
  [[nodiscard]] double peers() const { return static_cast<double>(ranks_ - 1); }

  template <class T>
  void sum_of(std::span<T> values) {
    const auto [all, latest] = meet(std::as_bytes(values));
    std::ranges::fill(values, T{0});
    for (const Bytes& bytes : all) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        T theirs;
        std::memcpy(&theirs, bytes.data() + i * sizeof(T), sizeof(T));
        values[i] += theirs;
      }
    }
    // A part of the sums is each rank's: it gets what is added and tells the result.
    const double bytes = 2.0 * static_cast<double>(values.size_bytes()) * peers() / static_cast<double>(ranks_);
    worked_until_ = processor_seconds();  // here every rank added up everything
    charge(latest, 2, bytes);
    sent_ += bytes;
  }
  std::pair<std::vector<Bytes>, double> meet(std::span<const std::byte> mine) {
    const double arrived = clock();
    auto result = meeting_.meet(rank_, Bytes(mine.begin(), mine.end()), arrived);
    waited_ += result.second - arrived;
    return result;
  }
  void charge(double latest, int messages, double bytes) {
    const double cost = messages * (fabric_.latency + peers() * fabric_.overhead) * (ranks_ > 1 ? 1.0 : 0.0) +
                        bytes / fabric_.bytes_per_second;
    clock_ = latest + cost;
    waited_ += cost;
    worked_until_ = processor_seconds();
  }

  Switch& meeting_;
  const Fabric& fabric_;
  std::size_t rank_, ranks_;
  double worked_until_;
  double clock_ = 0.0, waited_ = 0.0, sent_ = 0.0;
};

/// Virtual time per phase.
class Phases : public Observer {
 public:
  explicit Phases(SimulatedLink& link) : link_(link) { begin("load"); }
  void phase_begins(Phase phase) override { begin(std::string(kPhaseNames[static_cast<std::size_t>(phase)])); }
  [[nodiscard]] std::string text() {
    begin("");
    std::string text;
    for (const auto& [name, seconds] : phases_) text += fmt::format("  {} {:.0f}", name, 1e3 * seconds);
    return text;
  }

 private:
  void begin(const std::string& name) {
    const double now = link_.clock();
    if (!current_.empty()) {
      const auto known = std::ranges::find(phases_, current_, &std::pair<std::string, double>::first);
      if (known == phases_.end()) {
        phases_.emplace_back(current_, now - since_);
      } else {
        known->second += now - since_;
      }
    }
    current_ = name;
    since_ = now;
  }

  SimulatedLink& link_;
  std::vector<std::pair<std::string, double>> phases_;
  std::string current_;
  double since_ = 0.0;
};

struct Job {
  std::string window;
  CostModel cost;
  std::int32_t dp, ep;
  std::int64_t cap;
  PlanParams params;
};

void run(const Job& job, const Fabric& fabric, std::size_t ranks) {
  Switch meeting(ranks);
  std::vector<std::string> hashes(ranks);
  std::vector<double> sent(ranks), waited(ranks);
  std::string phases;
  double total = 0.0;
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      SimulatedLink link(meeting, fabric, r, ranks);
      Phases observer(link);
      const Window window = load_window(job.window, link);
      const Instance instance(window, Topology::megatron({.dp = job.dp, .ep = job.ep}), job.cost, job.cap, {},
                              Sync::Step);
      const auto made = make_plan(instance, job.params, nullptr, {.observer = &observer, .stop = {}, .team = &link});
      hashes[r] = plan_hash(to_json(make_record(instance, job.params, std::get<Plan>(made))));
      sent[r] = link.sent();
      waited[r] = link.waited();
      if (r == 0) {
        phases = observer.text();
        total = link.clock();
      }
    });
  }
  threads.clear();
  if (std::ranges::adjacent_find(hashes, std::not_equal_to<>()) != hashes.end()) throw Error("ranks have other plans");
  fmt::print("{:4} ranks  {:8.0f} ms, {:5.0f} of it waiting; a rank sends {:7.1f} MB  {}  ms:{}\n", ranks, 1e3 * total,
             1e3 * *std::ranges::max_element(waited), 1e-6 * *std::ranges::max_element(sent), hashes.front(), phases);
  std::fflush(stdout);
}

int main_of(std::span<char*> args) {
  constexpr std::size_t kFixed = 10;
  if (args.size() <= kFixed) {
    fmt::print(stderr,
               "usage: simulated_fabric WINDOW COST DP EP CAP EFFORT LATENCY_US OVERHEAD_US GBYTES_PER_S RANKS...\n");
    return 2;
  }
  Job job{.window = args[1],
          .cost = CostModel::load(args[2]),
          .dp = std::stoi(args[3]),
          .ep = std::stoi(args[4]),
          .cap = std::stoll(args[5]),
          .params = {}};
  const auto efforts = choices(Effort{});
  const auto effort = std::ranges::find(efforts, std::string_view(args[6]), &Choice<Effort>::name);
  if (effort == efforts.end()) throw InvalidInput(fmt::format("EFFORT: found {}", args[6]));
  job.params.effort = effort->value;
  job.params.threads = 1;
  const Fabric fabric{.latency = 1e-6 * std::stod(args[7]),
                      .overhead = 1e-6 * std::stod(args[8]),
                      .bytes_per_second = 1e9 * std::stod(args[9])};
  for (const char* ranks : args.subspan(kFixed)) run(job, fabric, static_cast<std::size_t>(std::stoul(ranks)));
  return 0;
}

}  // namespace
}  // namespace routepack

int main(int argc, char** argv) {
  try {
    return routepack::main_of(std::span(argv, static_cast<std::size_t>(argc)));
  } catch (const std::exception& error) {
    fmt::print(stderr, "simulated_fabric: {}\n", error.what());
    return 1;
  }
}
