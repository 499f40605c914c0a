// SPDX-License-Identifier: Apache-2.0
// What members of a team tell each other: the same sums everywhere, and no byte more than is said.
#include "comm/team_link.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/in_process.h"
#include "support/team.h"

namespace routepack {
namespace {

using std::chrono::milliseconds;
using testing::in_team;

/// Carries messages but leaves sums to Communicator.
class Gatherer final : public Communicator {
 public:
  explicit Gatherer(Communicator& link) : link_(link) {}
  [[nodiscard]] std::int32_t rank() const override { return link_.rank(); }
  [[nodiscard]] std::int32_t ranks() const override { return link_.ranks(); }
  std::vector<std::vector<std::byte>> all_gather(std::span<const std::byte> mine) override {
    return link_.all_gather(mine);
  }

 private:
  Communicator& link_;
};

/// Of any sign and size, such that sums of eight fit.
template <class T>
T value_of(std::int32_t member, std::size_t i) {
  const auto mixed = (static_cast<std::uint64_t>(member) + 1) * 0x9e3779b97f4a7c15U ^ (i * 0xbf58476d1ce4e5b9U);
  return static_cast<T>(mixed ^ (mixed >> 31)) / 8;
}

/// How many of the sums are wrong in a member.
template <class T>
std::size_t wrong_sums(Communicator& team, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_of<T>(team.rank(), i);
  team.sum(std::span(values));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    T sum = 0;
    for (std::int32_t r = 0; r < team.ranks(); ++r) sum = static_cast<T>(sum + value_of<T>(r, i));
    wrong += values[i] != sum ? 1U : 0U;
  }
  return wrong;
}

/// Counts that leave members without a part, and odd ones.
constexpr std::size_t kCounts[] = {0, 1, 2, 3, 4, 5, 7, 64, 1001};

class TeamLinkOf : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Members, TeamLinkOf, ::testing::Values(1, 2, 3, 5, 8));

TEST_P(TeamLinkOf, sums_what_all_members_have) {
  for (const bool gathers : {false, true}) {
    for (const std::string& wrong : in_team(GetParam(), [&](TeamLink& link) {
           Gatherer gatherer(link);
           Communicator& team = gathers ? static_cast<Communicator&>(gatherer) : link;
           std::string report;
           for (const std::size_t count : kCounts) {
             if (wrong_sums<std::int64_t>(team, count) > 0) report += " 64:" + std::to_string(count);
             if (wrong_sums<std::int32_t>(team, count) > 0) report += " 32:" + std::to_string(count);
           }
           return report;
         })) {
      EXPECT_EQ(wrong, "") << (gathers ? "by gathering" : "in parts");
    }
  }
}

TEST_P(TeamLinkOf, tells_everyone_what_each_member_has) {
  for (const std::string& wrong : in_team(GetParam(), [](TeamLink& link) {
         // Of different lengths, some of none.
         const auto said = [](std::int32_t r) {
           return std::vector<std::byte>(static_cast<std::size_t>(r % 3) * 5, static_cast<std::byte>(r));
         };
         const auto all = link.all_gather(said(link.rank()));
         if (all.size() != static_cast<std::size_t>(link.ranks())) return std::string("size");
         std::string report;
         for (std::int32_t r = 0; r < link.ranks(); ++r) {
           if (all[static_cast<std::size_t>(r)] != said(r)) report += " " + std::to_string(r);
         }
         return report;
       })) {
    EXPECT_EQ(wrong, "");
  }
}

TEST_P(TeamLinkOf, sends_a_gathered_message_and_its_size_to_each_other) {
  for (const std::size_t size : {0U, 1U, 1000U}) {
    for (const std::int64_t sent : in_team(GetParam(), [&](TeamLink& link) {
           (void)link.all_gather(std::vector<std::byte>(size));
           return link.sent_bytes();
         })) {
      EXPECT_EQ(sent, (GetParam() - 1) * (8 + static_cast<std::int64_t>(size)));
    }
  }
}

TEST_P(TeamLinkOf, sends_of_a_sum_its_parts_and_the_sums_of_its_own) {
  const auto members = static_cast<std::size_t>(GetParam());
  for (const std::size_t count : kCounts) {
    const auto part = [&](std::size_t r) { return count * (r + 1) / members - count * r / members; };
    const auto sent = in_team(GetParam(), [&](TeamLink& link) {
      std::vector<std::int64_t> values(count, 1);
      link.sum(std::span(values));
      return link.sent_bytes();
    });
    std::int64_t all = 0;
    for (std::size_t me = 0; me < members; ++me) {
      const std::size_t wanted = 8 * (count - part(me) + (members - 1) * part(me));
      EXPECT_EQ(sent[me], static_cast<std::int64_t>(wanted)) << count << " values, member " << me;
      all += sent[me];
    }
    EXPECT_EQ(all, static_cast<std::int64_t>(2 * (members - 1) * 8 * count));  // 2 (m − 1)/m of the bytes, times m
  }
}

TEST(TeamLink, sums_more_values_than_it_takes_at_once) {
  // Pieces of 2^22 values; the last is shorter than the team.
  constexpr std::size_t kCount = (std::size_t{1} << 22) + 2;
  for (const std::string& wrong : in_team(3, [](TeamLink& link) {
         const std::size_t narrow = wrong_sums<std::int32_t>(link, kCount);
         const std::int64_t sent = link.sent_bytes();
         Gatherer gatherer(link);
         const std::size_t gathered = wrong_sums<std::int32_t>(gatherer, kCount);
         if (narrow + gathered > 0) return std::to_string(narrow) + " and " + std::to_string(gathered) + " wrong";
         return std::string(sent > 6 * 4 * std::int64_t{kCount} ? "too much sent" : "");
       })) {
    EXPECT_EQ(wrong, "");
  }
}

TEST(TeamLink, sums_up_to_the_largest_number) {
  for (const bool right : in_team(3, [](TeamLink& link) {
         constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
         std::vector<std::int64_t> values = {link.rank() == 1 ? kMost - 2 : 1,
                                             link.rank() == 2 ? -kMost : -link.rank()};
         link.sum(std::span(values));
         return values == std::vector<std::int64_t>{kMost, -kMost - 1};
       })) {
    EXPECT_TRUE(right);
  }
}

TEST(TeamLink, names_the_member_that_is_lost_in_a_sum) {
  for (const std::int32_t lost : in_team(
           3,
           [](TeamLink& link) -> std::int32_t {
             if (link.rank() == 1) return 1;
             std::vector<std::int64_t> values(100, 1);
             try {
               link.sum(std::span(values));
             } catch (const PeerLost& error) {
               return error.rank();
             }
             return -1;
           },
           milliseconds(1500))) {
    EXPECT_EQ(lost, 1);
  }
}

TEST(TeamLink, tells_the_others_who_is_missing_so_that_all_end_with_one_name) {
  InProcessNetwork network(3);
  const std::byte mine{1};
  const auto error_of = [&](std::int32_t rank, milliseconds patience) {
    TeamLink link(network.end(rank), patience);
    try {
      link.all_gather(std::span(&mine, 1));
    } catch (const PeerLost& error) {
      return std::to_string(error.rank()) + ": " + error.what();
    }
    return std::string("nothing");
  };
  // Member 1 says nothing; member 2 would wait for it an hour.
  std::string first, patient;
  {
    const std::jthread other([&] { patient = error_of(2, milliseconds(3'600'000)); });
    first = error_of(0, milliseconds(100));
  }
  EXPECT_EQ(first, "1: rank 1 was silent for 0.1 s");
  EXPECT_EQ(patient, "1: rank 1 is lost, as rank 0 says");
}

}  // namespace
}  // namespace routepack
