// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "routepack/error.h"
#include "routepack/moves.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using testing::refusal;

MoveBudget parse(std::vector<std::string> values) {
  return MoveBudget::parse(values);
}
std::string refused(const std::string& value) {
  return refusal<InvalidInput>([&] { MoveBudget().add(value); });
}

TEST(MoveBudget, is_free_unless_something_is_said) {
  EXPECT_EQ(parse({}), MoveBudget());
  EXPECT_EQ(parse({"free"}), MoveBudget());
  EXPECT_EQ(MoveBudget().most_experts(100), 100);
}

TEST(MoveBudget, reads_a_share_of_all_experts) {
  EXPECT_EQ(parse({"0.05"}).most_experts(2944), 147);
  EXPECT_EQ(parse({"0"}).most_experts(2944), 0);
  EXPECT_EQ(parse({"1"}).most_experts(2944), 2944);
}

// 0.29 · 100 is 28.999999999999996 in doubles.
TEST(MoveBudget, counts_a_decimal_share_as_people_do) {
  EXPECT_EQ(parse({"0.29"}).most_experts(100), 29);
}

TEST(MoveBudget, reads_bytes_in_powers_of_a_thousand_and_of_1024) {
  EXPECT_EQ(parse({"200MB"}).rank_bytes, 200'000'000);
  EXPECT_EQ(parse({"1.5KB"}).rank_bytes, 1500);
  EXPECT_EQ(parse({"0.1KB"}).rank_bytes, 100);
  EXPECT_EQ(parse({"2GB"}).rank_bytes, 2'000'000'000);
  EXPECT_EQ(parse({"3KiB"}).rank_bytes, 3072);
  EXPECT_EQ(parse({"1.5MiB"}).rank_bytes, 1'572'864);
  EXPECT_EQ(parse({"2GiB"}).rank_bytes, std::int64_t{2} << 30);
  EXPECT_EQ(parse({"17B"}).rank_bytes, 17);
}

TEST(MoveBudget, rounds_a_fraction_of_a_byte_down) {
  EXPECT_EQ(parse({"1.9B"}).rank_bytes, 1);
  EXPECT_EQ(parse({"0.0019KB"}).rank_bytes, 1);
}

TEST(ParseBytes, reads_what_a_budget_reads_and_names_who_asked) {
  EXPECT_EQ(parse_bytes("66MB", "size"), 66'000'000);
  EXPECT_EQ(parse_bytes("1.5GiB", "size"), std::int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("66", "size"), std::nullopt);
  EXPECT_EQ(parse_bytes("", "size"), std::nullopt);
  EXPECT_EQ(refusal<InvalidInput>([] { (void)parse_bytes("-1MB", "size"); }),
            "size: found \"-1MB\", wanted a number with up to 9 decimals before the unit, like 200MB or 1.5GiB");
}

TEST(PresetOf, finds_the_preset_in_the_names_that_models_go_by) {
  EXPECT_EQ(preset_of("openai/gpt-oss-20b"), "gpt-oss-20b");
  EXPECT_EQ(preset_of("Mixtral-8x7B"), "mixtral-8x7b");
  EXPECT_EQ(preset_of("runs/7/my-own"), "");
  EXPECT_EQ(preset_of(""), "");
}

TEST(MoveBudget, reads_one_price_or_a_second_one_between_nodes) {
  EXPECT_EQ(parse({"price:0.5"}).price, 0.5);
  EXPECT_EQ(parse({"price:0.5"}).price_between_nodes, 0.5);
  EXPECT_EQ(parse({"price:0.5,2e1"}).price_between_nodes, 20.0);
}

TEST(MoveBudget, holds_everything_that_was_said) {
  const MoveBudget budget = parse({"0.1", "200MB", "price:1", "0.05", "free", "1GB", "price:0.5,3"});
  EXPECT_EQ(budget.share, 0.05);
  EXPECT_EQ(budget.rank_bytes, 200'000'000);
  EXPECT_EQ(budget.price, 1.0);
  EXPECT_EQ(budget.price_between_nodes, 3.0);
}

TEST(MoveBudget, refuses_what_it_cannot_read_in_one_line) {
  const std::string kinds = ", wanted free, a share like 0.05, bytes per rank like 200MB, or price:X[,Y]";
  for (const std::string text : {"", "some", "5%", "0x1", "nan", "0.1 ", "1e999"}) {
    EXPECT_EQ(refused(text), "moves: found \"" + text + "\"" + kinds);
  }
  EXPECT_EQ(refused("7"), "moves: found \"7\", wanted a share of all experts from 0 to 1, or a unit such as MB");
  EXPECT_EQ(refused("-0.1"), "moves: found \"-0.1\", wanted a share of all experts from 0 to 1, or a unit such as MB");
}

TEST(MoveBudget, refuses_bytes_that_are_no_number_or_too_many) {
  const std::string number = ", wanted a number with up to 9 decimals before the unit, like 200MB or 1.5GiB";
  for (const std::string text : {"MB", "-1MB", "1e3MB", ".5GB", "1.GB", "1 MB", "1.0123456789GB", "1.2.3B"}) {
    EXPECT_EQ(refused(text), "moves: found \"" + text + "\"" + number);
  }
  for (const std::string text : {"1125899906842625B", "9999999GB", "99999999999999999999KB"}) {
    EXPECT_EQ(refused(text), "moves: found \"" + text + "\", wanted at most 1125899906842624 bytes");
  }
  EXPECT_EQ(parse({"1125899906842624B"}).rank_bytes, std::int64_t{1} << 50);
}

TEST(MoveBudget, refuses_prices_that_are_negative_or_cheaper_between_nodes) {
  for (const std::string text :
       {"price:", "price:-1", "price:2,1", "price:1,", "price:1,2,3", "price:inf", "price:x"}) {
    EXPECT_EQ(refused(text), "moves: found \"" + text + "\", wanted price:X or price:X,Y with 0 <= X <= Y");
  }
}

// Qwen3-30B-A3B: 3 · 2048 · 768 = 4,718,592 parameters; 14 bytes each are 66 MB.
TEST(ExpertState, is_14_bytes_per_parameter_with_adam_in_fp32) {
  EXPECT_EQ(gated_ffn_parameters(2048, 768), 4'718'592);
  EXPECT_EQ(expert_state_bytes(4'718'592), 66'060'288);
  EXPECT_EQ(expert_state_bytes("qwen3-30b-a3b"), 66'060'288);
}

// 2 + 12/8 = 3.5 bytes.
TEST(ExpertState, shards_the_optimizer_but_not_the_weights) {
  EXPECT_EQ(expert_state_bytes(1000, {.optimizer_shards = 8}), 3500);
  EXPECT_EQ(expert_state_bytes(1, {.optimizer_shards = 8}), 4);
  EXPECT_EQ(expert_state_bytes(1000, {.weight_bytes = 1, .master_bytes = 0, .moment_bytes = 0}), 1000);
}

TEST(ExpertState, refuses_nonsense) {
  EXPECT_EQ(refusal<InvalidInput>([] { gated_ffn_parameters(0, 768); }),
            "expert: found 0 x 768, wanted positive widths of at most 2^50 parameters");
  EXPECT_EQ(refusal<InvalidInput>([] { expert_state_bytes(8, {.optimizer_shards = 0}); }),
            "expert state: found 8 parameters of 2 + 4 + 8 bytes over 0 shards, wanted 0 to 64 bytes each and at least "
            "one shard");
  EXPECT_NE(refusal<InvalidInput>([] { expert_state_bytes("no-such-model"); }).find("mixtral-8x7b"), std::string::npos);
}

// H100: 400 TFLOP/s and 360 GB/s make a swap worth 2.33 · 1111 = 2593 routed tokens, whatever the widths.
TEST(MovePrice, of_two_experts_is_seven_thirds_of_flops_per_byte_in_routed_tokens) {
  for (const std::int64_t parameters : {std::int64_t{3} * 2048 * 768, std::int64_t{3} * 7168 * 2048}) {
    const MoveRates rates{.link_bytes_per_second = 360e9,
                          .flops_per_second = 400e12,
                          .flops_per_routed_token = 6.0 * static_cast<double>(parameters)};
    EXPECT_NEAR(2.0 * move_price(expert_state_bytes(parameters), rates, 1.0), 2592.6, 0.1);
    EXPECT_NEAR(2.0 * move_price(expert_state_bytes(parameters), rates, 0.5), 1296.3, 0.1);
  }
}

TEST(MovePrice, is_shared_by_steps_and_by_swaps_at_the_same_time) {
  MoveRates rates{.link_bytes_per_second = 100.0, .flops_per_second = 1000.0, .flops_per_routed_token = 10.0};
  EXPECT_EQ(move_price(400, rates, 1.0), 200.0);  // 4 s, in which 400 routed tokens are computed
  rates.steps = 5.0;
  rates.parallel_swaps = 2.0;
  EXPECT_EQ(move_price(400, rates, 1.0), 20.0);
  rates.steps = 0.0;
  EXPECT_EQ(refusal<InvalidInput>([&] { move_price(400, rates, 1.0); }),
            "move price: found 400 bytes at 100 B/s, 1000 FLOP/s, 10 FLOP per routed token, 0 steps, 2 swaps at once, "
            "wanted positive rates");
}

}  // namespace
}  // namespace routepack
