// SPDX-License-Identifier: Apache-2.0
#include "core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>

#include "core/json_file.h"
#include "core/json_text.h"
#include "routepack/error.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::HasSubstr;
using testing::refusal;
using ::testing::StartsWith;

std::string parse_refusal(const std::string& text) {
  return refusal<FormatError>([&] { parse_json(text, "a.json"); });
}

TEST(ParseJson, keeps_the_order_of_keys) {
  EXPECT_EQ(line_json(parse_json(R"({"b":1,"a":2})", "a.json")), R"({"b": 1, "a": 2})");
}

TEST(ParseJson, refuses_text_that_is_no_json_with_its_position) {
  EXPECT_THAT(parse_refusal("{\"a\": }"), StartsWith("a.json: invalid JSON at byte 7"));
  EXPECT_THAT(parse_refusal(""), StartsWith("a.json: invalid JSON"));
  EXPECT_THAT(parse_refusal("{\"a\": 1} x"), StartsWith("a.json: invalid JSON at byte 10"));
  EXPECT_THAT(parse_refusal("{\"a\": \"new\nline\"}"), StartsWith("a.json: invalid JSON"));
  EXPECT_THAT(parse_refusal("\"\xff\""), StartsWith("a.json: invalid JSON"));
  EXPECT_THAT(parse_refusal("[NaN]"), StartsWith("a.json: invalid JSON"));
}

TEST(ParseJson, refuses_numbers_that_no_double_holds) {
  EXPECT_THAT(parse_refusal("[1e999]"), StartsWith("a.json: invalid JSON"));
}

TEST(ParseJson, refuses_a_key_that_occurs_twice_in_one_object) {
  EXPECT_EQ(parse_refusal(R"({"x": {"a": 1, "b": 2, "a": 3}})"), "a.json: key \"a\" occurs twice in one object");
  EXPECT_NO_THROW(parse_json(R"({"x": {"a": 1}, "y": {"a": 1}})", "a.json"));
}

TEST(ParseJson, refuses_absurd_nesting_and_takes_sane_nesting) {
  EXPECT_THAT(parse_refusal(std::string(100'000, '[')), HasSubstr("nested deeper than 64"));
  EXPECT_NO_THROW(parse_json(std::string(60, '[') + std::string(60, ']'), "a.json"));
}

TEST(JsonInteger, takes_integers_within_the_bounds) {
  EXPECT_EQ(json_integer(parse_json("-3", "a"), "a", -3, 5), -3);
  EXPECT_EQ(json_integer(parse_json("9223372036854775807", "a"), "a"), INT64_MAX);
}

TEST(JsonInteger, refuses_floats_booleans_and_what_is_out_of_bounds) {
  const auto said = [](const std::string& text) {
    return refusal<FormatError>([&] { json_integer(parse_json(text, "a"), "a.json: k", 0, 5); });
  };
  EXPECT_EQ(said("3.0"), "a.json: k: found the number 3.0, wanted an integer from 0 to 5");
  EXPECT_EQ(said("true"), "a.json: k: found true, wanted an integer from 0 to 5");
  EXPECT_EQ(said("6"), "a.json: k: found the number 6, wanted an integer from 0 to 5");
  EXPECT_EQ(said("-1"), "a.json: k: found the number -1, wanted an integer from 0 to 5");
  EXPECT_EQ(said("null"), "a.json: k: found null, wanted an integer from 0 to 5");
  EXPECT_EQ(said("18446744073709551615"),
            "a.json: k: found the number 18446744073709551615, wanted an integer from 0 to 5");
}

TEST(JsonMember, names_the_key_that_is_missing) {
  EXPECT_EQ(refusal<FormatError>([] { json_member(parse_json("{}", "a"), "rows", "a.json"); }),
            "a.json: key \"rows\" is missing");
  EXPECT_EQ(refusal<FormatError>([] { json_member(parse_json("[1]", "a"), "rows", "a.json"); }),
            "a.json: found an array of 1, wanted an object");
}

TEST(CheckFormat, tells_another_format_from_another_version) {
  const auto said = [](const std::string& text) {
    return refusal<FormatError>([&] { check_format(parse_json(text, "a"), "routepack.plan", 1, "a.json"); });
  };
  EXPECT_NO_THROW(check_format(parse_json(R"({"format": "routepack.plan/1"})", "a"), "routepack.plan", 1, "a.json"));
  EXPECT_THAT(said(R"({"format": "routepack.plan/2"})"),
              StartsWith("a.json: format: found version 2 of routepack.plan, wanted version 1"));
  EXPECT_EQ(said(R"({"format": "routepack.window/1"})"),
            "a.json: format: found the string \"routepack.window/1\", wanted \"routepack.plan/1\"");
  EXPECT_EQ(said(R"({"format": 1})"), "a.json: format: found the number 1, wanted a string");
  EXPECT_EQ(said("{}"), "a.json: key \"format\" is missing");
}

TEST(JsonIndexTables, name_the_element_that_is_wrong) {
  const auto said = [](const std::string& text) {
    return refusal<FormatError>([&] { json_index_tables(parse_json(text, "a"), "a.json: layout"); });
  };
  EXPECT_EQ(said("[[[0]], [[1], [2, -1]]]"),
            "a.json: layout[1][1][1]: found the number -1, wanted an integer from 0 to 2147483647");
  EXPECT_EQ(said("[[[0]], [[2147483648]]]"),
            "a.json: layout[1][0][0]: found the number 2147483648, wanted an integer from 0 to 2147483647");
  EXPECT_EQ(said("[[[0]], 7]"), "a.json: layout[1]: found the number 7, wanted an array");
}

TEST(NumberText, is_the_shortest_decimal_in_the_spelling_of_python) {
  EXPECT_EQ(number_text(1.0), "1.0");
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(0.0), "0.0");
  EXPECT_EQ(number_text(-0.0), "-0.0");
  EXPECT_EQ(number_text(8.100000000000001), "8.100000000000001");
  EXPECT_EQ(number_text(1e15), "1000000000000000.0");
  EXPECT_EQ(number_text(9007199254740993.0), "9007199254740992.0");
  EXPECT_EQ(number_text(1e16), "1e+16");
  EXPECT_EQ(number_text(1.5e300), "1.5e+300");
  EXPECT_EQ(number_text(0.0001), "0.0001");
  EXPECT_EQ(number_text(0.00001), "1e-05");
  EXPECT_EQ(number_text(5e-324), "5e-324");
  EXPECT_EQ(number_text(5e-3), "0.005");
}

TEST(NumberText, reads_back_to_the_last_bit) {
  std::mt19937_64 random(7);
  for (int n = 0; n < 20'000; ++n) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(parse_json(number_text(value), "a").get<double>(), value);
  }
}

TEST(CanonicalJson, sorts_keys_by_bytes_and_drops_white_space) {
  const Json value =
      parse_json(R"({ "b": [1, 2.50, -3], "a": {"é": "é\n\u0001", "z": null, "Z": true}, "a1": 1e0 })", "a");
  EXPECT_EQ(canonical_json(value), R"({"a":{"Z":true,"z":null,"é":"é\n\u0001"},"a1":1.0,"b":[1,2.5,-3]})");
}

}  // namespace
}  // namespace routepack
