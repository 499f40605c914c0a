// SPDX-License-Identifier: Apache-2.0
// The self-test that users run must be able to fail: a wrong byte is found, named, and known to all ranks.
#include "transfer/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>
#include <vector>

#include "comm/in_process.h"
#include "routepack/error.h"
#include "transfer/synthetic_state.h"

namespace routepack {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const GridLayout& layout() {
  static const GridLayout kLayout = GridLayout::adam({.ep = 2, .edp = 3}, 2, 2, 17, 5);  // lanes begin at odd elements
  return kLayout;
}

/// Flips one bit of the n-th bulk message that arrives and is longer than `longest_kept`.
class FlippingTransport : public Transport {
 public:
  FlippingTransport(Transport& below, int message) : below_(below), message_(message) {}
  std::int32_t rank() const override { return below_.rank(); }
  std::int32_t ranks() const override { return below_.ranks(); }
  void post(std::int32_t to, std::span<const std::byte> bytes) override { below_.post(to, bytes); }
  std::optional<Note> note() override { return below_.note(); }
  Ticket send(std::int32_t to, std::span<const std::byte> bytes) override { return below_.send(to, bytes); }
  Ticket receive(std::int32_t from, std::span<std::byte> bytes) override {
    const Ticket ticket = below_.receive(from, bytes);
    if (bytes.size() > kLongestKept) arriving_[ticket] = bytes;
    return ticket;
  }
  bool poll(Ticket ticket) override {
    if (!below_.poll(ticket)) return false;
    const auto found = arriving_.find(ticket);
    if (found != arriving_.end() && message_-- == 0) found->second[found->second.size() / 2] ^= std::byte{4};
    return true;
  }

 private:
  static constexpr std::size_t kLongestKept = 16;  // a canary, a barrier
  Transport& below_;
  int message_;
  std::map<Ticket, std::span<std::byte>> arriving_;
};

std::vector<SelfTestReport> run(int flipped_on_rank_1, const SelfTestOptions& options) {
  InProcessNetwork network(layout().grid().ranks());
  std::vector<SelfTestReport> reports(static_cast<std::size_t>(network.ranks()));
  {
    std::vector<std::jthread> threads;
    for (std::int32_t r = 0; r < network.ranks(); ++r) {
      threads.emplace_back([&, r] {
        if (r == 1 && flipped_on_rank_1 >= 0) {
          FlippingTransport flipping(network.end(r), flipped_on_rank_1);
          reports[static_cast<std::size_t>(r)] = self_test(flipping, layout(), options);
        } else {
          reports[static_cast<std::size_t>(r)] = self_test(network.end(r), layout(), options);
        }
      });
    }
  }
  return reports;
}

TEST(SelfTest, verifies_on_a_good_network) {
  const auto reports = run(-1, {.seed = 3, .moves = 2});
  for (const SelfTestReport& report : reports) {
    EXPECT_TRUE(report.verified) << report.problem.value_or("");
    EXPECT_EQ(report.moves, 3);
    EXPECT_EQ(report.bytes, reports[0].bytes);
    EXPECT_EQ(report.staging_bytes, report.staging_promised);
  }
  EXPECT_GT(reports[0].bytes_sent, 0);
}

TEST(SelfTest, fails_on_all_ranks_when_one_bit_is_flipped) {
  for (const SelfTestReport& report : run(2, {.seed = 3, .moves = 2})) {
    EXPECT_FALSE(report.verified);
    EXPECT_EQ(report.moves, 0);
    ASSERT_TRUE(report.problem);
    EXPECT_THAT(*report.problem, AllOf(HasSubstr("verify"), HasSubstr("checksum")));
  }
}

TEST(SelfTest, refuses_a_grid_of_another_size) {
  InProcessNetwork network(4);
  EXPECT_THROW(self_test(network.end(0), layout(), {}), InvalidInput);
}

TEST(SyntheticState, names_the_first_wrong_byte) {
  const Placement home = Placement::identity(2, 4, 2);
  for (std::int32_t rank = 0; rank < layout().grid().ranks(); ++rank) {
    SyntheticState state(layout(), rank, home, 9);
    EXPECT_EQ(state.mismatch(home), std::nullopt);
    for (std::int32_t tensor = 0; tensor < layout().canary(); ++tensor) {
      const std::span<std::byte> bytes = state.bytes(LayerId(1), 1, tensor);
      if (bytes.empty()) continue;
      bytes.back() ^= std::byte{1};
      const auto wrong = state.mismatch(home);
      ASSERT_TRUE(wrong);
      EXPECT_THAT(*wrong,
                  AllOf(HasSubstr("layer 1"), HasSubstr(layout().tensors()[static_cast<std::size_t>(tensor)].name)));
      EXPECT_EQ(state.mismatch(home, LayerId(0)), std::nullopt);
      bytes.back() ^= std::byte{1};
    }
  }
}

TEST(SyntheticState, is_cut_from_one_tensor_whatever_the_lane) {
  // The lanes' parts of the last layer's fc2 master of one expert, put together, are what another cut gives.
  const GridLayout whole = GridLayout::adam({.ep = 2, .edp = 1}, 2, 2, 17, 5);
  const Placement home = Placement::identity(2, 4, 2);
  SyntheticState uncut(whole, 0, home, 9);
  for (std::int32_t tensor = 0; tensor < layout().canary(); ++tensor) {
    const ExpertTensor& what = layout().tensors()[static_cast<std::size_t>(tensor)];
    if (what.spread != Spread::Sharded) continue;
    std::vector<std::byte> joined(static_cast<std::size_t>(what.bytes()));
    for (std::int32_t lane = 0; lane < layout().grid().edp; ++lane) {
      SyntheticState cut(layout(), layout().grid().rank(0, lane), home, 9);
      const auto part = cut.bytes(LayerId(1), 0, tensor);
      const LaneRange range = layout().range_of(LayerId(1), 0, *what.parameter, lane);
      std::ranges::copy(part, joined.begin() + range.begin * bytes_of(what.type));
    }
    EXPECT_TRUE(std::ranges::equal(joined, uncut.bytes(LayerId(1), 0, tensor))) << what.name;
  }
}

}  // namespace
}  // namespace routepack
