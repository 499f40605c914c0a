// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/hash.h"
#include "routepack/error.h"
#include "routepack/plan_file.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using testing::refusal;
using ::testing::StartsWith;

std::string hash_of_text(const std::string& text) {
  Xxh3 hash;
  hash.text(text);
  return hash.digest();
}

TEST(PlanHash, is_xxh3_over_the_canonical_text) {
  EXPECT_EQ(
      plan_hash(R"({"rows": 2, "layout": [[[0], [1]]], "cost": {"expert": 1.0, "b": "é"}, "timings_ms": {"search": 3},
                          "version": "0.1.0", "params": {"threads": 8, "seed": 0}})"),
      hash_of_text(R"({"cost":{"b":"é","expert":1.0},"layout":[[[0],[1]]],"params":{"seed":0},"rows":2})"));
}

// Both values come from the Python lines of docs/formats.md.
TEST(PlanHash, is_what_another_implementation_computes) {
  EXPECT_EQ(plan_hash("{}"), "xxh3:1349cde127705c16");
  EXPECT_EQ(plan_hash(R"({"b": [1, 2.50, -3, -0, 1e15, 1e16, 1e-5, 0.0001, 1E300, -0.0, 18446744073709551615],
      "a": {"é": "\u00e9\n\u0001\u007f\/", "z": null, "Z": true}, "params": {"threads": 4, "seed": 1}})"),
            "xxh3:c2ea602259f28a25");
}

TEST(PlanHash, does_not_depend_on_key_order_or_white_space) {
  EXPECT_EQ(plan_hash(R"({"a":{"x":1,"y":2.5},"b":[1,2]})"),
            plan_hash("{ \"b\" : [1,\n2], \"a\": {\"y\":2.50, \"x\":1} }\n"));
}

TEST(PlanHash, does_not_depend_on_times_threads_and_version) {
  const std::string bare = plan_hash(R"({"rows": 2, "params": {"seed": 1}})");
  EXPECT_EQ(
      plan_hash(R"({"rows": 2, "params": {"seed": 1, "threads": 4}, "timings_ms": {"search": 1}, "version": "9"})"),
      bare);
}

TEST(PlanHash, depends_on_everything_else) {
  const std::string bare = plan_hash(R"({"rows": 2, "params": {"seed": 1}})");
  EXPECT_NE(plan_hash(R"({"rows": 3, "params": {"seed": 1}})"), bare);
  EXPECT_NE(plan_hash(R"({"rows": 2, "params": {"seed": 2}})"), bare);
  EXPECT_NE(plan_hash(R"({"rows": 2, "params": {"seed": 1}, "threads": 4})"), bare);
  EXPECT_NE(plan_hash(R"({"layout": [[[0, 1]]]})"), plan_hash(R"({"layout": [[[1, 0]]]})"));
}

TEST(PlanHash, survives_reading_and_writing) {
  const std::string json = R"({"format": "routepack.plan/1", "topology": {"ep": 2, "shards": [[0, 1]]}, "capacity": 10,
    "cost": {"stages": [{"name": "linear", "alpha": 0.1, "beta": 1e-7}], "expert": 3}, "rows": 2,
    "physical_to_logical": [[0, 1, 2, 3]], "layout": [[[0], [2]], [[1], [3]]]})";
  const std::string written = to_json(parse_plan(json, "plan.json"));
  EXPECT_EQ(plan_hash(to_json(parse_plan(written, "plan.json"))), plan_hash(written));
}

TEST(PlanHash, refuses_what_is_no_plan) {
  EXPECT_THAT(refusal<FormatError>([] { plan_hash("{"); }), StartsWith("plan: invalid JSON"));
  EXPECT_EQ(refusal<FormatError>([] { plan_hash("[1]"); }), "plan: found an array of 1, wanted an object");
}

}  // namespace
}  // namespace routepack
