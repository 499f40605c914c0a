// SPDX-License-Identifier: Apache-2.0
#include "core/toml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "routepack/error.h"
#include "support/refusal.h"

namespace routepack {
namespace {

using ::testing::ElementsAre;
using testing::refusal;
using ::testing::StartsWith;

TomlTable parse(const std::string& text) {
  return TomlTable::parse(text, "p.toml");
}

template <class Read>
std::string said(const std::string& text, Read read) {
  return refusal<FormatError>([&] { static_cast<void>(read(parse(text))); });
}

std::string parse_refusal(const std::string& text) {
  return refusal<FormatError>([&] { parse(text); });
}

TEST(TomlTable, gives_values_by_type) {
  const TomlTable table =
      parse("i = 3\nn = 2\nx = 0.5\nb = true\ns = 'text'\nl = [1, 2.5]\nw = ['a', 'b']\n[t]\ny = 1\n");
  EXPECT_EQ(table.integer("i"), 3);
  EXPECT_EQ(table.number("n"), 2.0);
  EXPECT_EQ(table.number("x"), 0.5);
  EXPECT_EQ(table.boolean("b"), true);
  EXPECT_EQ(table.string("s"), "text");
  EXPECT_THAT(*table.numbers("l"), ElementsAre(1.0, 2.5));
  EXPECT_THAT(*table.strings("w"), ElementsAre("a", "b"));
  EXPECT_EQ(table.table("t")->integer("y"), 1);
}

TEST(TomlTable, gives_nothing_for_absent_keys) {
  const TomlTable table = parse("");
  EXPECT_FALSE(table.has("i"));
  EXPECT_EQ(table.integer("i"), std::nullopt);
  EXPECT_FALSE(table.tables("t").has_value());
  EXPECT_FALSE(table.table("t").has_value());
}

TEST(TomlTable, keeps_the_document_alive_for_tables_taken_from_it) {
  std::vector<TomlTable> inner = *parse("[[t]]\na = 1\n[[t]]\na = 2\n").tables("t");
  EXPECT_EQ(inner[1].integer("a"), 2);
}

TEST(TomlTable, names_line_and_column_of_a_syntax_error) {
  EXPECT_THAT(parse_refusal("a = 1\nb = = 2\n"), StartsWith("p.toml:2:5: invalid TOML: "));
  EXPECT_THAT(parse_refusal("a = \"x\ny\"\n"), StartsWith("p.toml:1:"));
  EXPECT_THAT(parse_refusal("a = 1\na = 2\n"), StartsWith("p.toml:2:"));
  EXPECT_THAT(parse_refusal("a = \"\xff\xfe\"\n"), StartsWith("p.toml:1:"));
}

TEST(TomlTable, refuses_another_type_with_line_and_key) {
  EXPECT_EQ(said("\ni = 3.0", [](const TomlTable& t) { return t.integer("i"); }),
            "p.toml:2: i: found 3, wanted an integer");
  EXPECT_EQ(said("i = 9", [](const TomlTable& t) { return t.integer("i", 0, 5); }),
            "p.toml:1: i: found 9, wanted an integer from 0 to 5");
  EXPECT_EQ(said("x = '1'", [](const TomlTable& t) { return t.number("x"); }),
            "p.toml:1: x: found the string \"1\", wanted a finite number");
  EXPECT_EQ(said("x = true", [](const TomlTable& t) { return t.number("x"); }),
            "p.toml:1: x: found true, wanted a finite number");
  EXPECT_EQ(said("b = 1", [](const TomlTable& t) { return t.boolean("b"); }),
            "p.toml:1: b: found 1, wanted true or false");
  EXPECT_EQ(said("s = [1, 2]", [](const TomlTable& t) { return t.string("s"); }),
            "p.toml:1: s: found a list of 2, wanted a string");
  EXPECT_EQ(said("s = 2020-01-01", [](const TomlTable& t) { return t.string("s"); }),
            "p.toml:1: s: found a date or time, wanted a string");
  EXPECT_EQ(said("t = 1", [](const TomlTable& t) { return t.table("t"); }),
            "p.toml:1: t: found 1, wanted a table, [t]");
  EXPECT_EQ(said("[t]\na = 1", [](const TomlTable& t) { return t.tables("t"); }),
            "p.toml:1: t: found a table, wanted tables, each with [[t]] above it");
  EXPECT_EQ(said("t = [1]", [](const TomlTable& t) { return t.tables("t"); }),
            "p.toml:1: t[0]: found 1, wanted tables, each with [[t]] above it");
  EXPECT_EQ(said("w = ['a', 1]", [](const TomlTable& t) { return t.strings("w"); }),
            "p.toml:1: w[1]: found 1, wanted a string");
}

TEST(TomlTable, refuses_numbers_that_are_not_finite_or_too_small) {
  EXPECT_EQ(said("x = nan", [](const TomlTable& t) { return t.number("x"); }),
            "p.toml:1: x: found nan, wanted a finite number");
  EXPECT_EQ(said("x = [1.0, inf]", [](const TomlTable& t) { return t.numbers("x"); }),
            "p.toml:1: x[1]: found inf, wanted a finite number");
  EXPECT_EQ(said("[[t]]\n\nx = -1", [](const TomlTable& t) { return t.tables("t")->at(0).number("x", 0.0); }),
            "p.toml:3: t[0].x: found -1, wanted a finite number, at least 0");
}

TEST(TomlTable, refuses_numbers_beyond_a_limit_with_their_line) {
  EXPECT_EQ(said("\nx = 7", [](const TomlTable& t) { return t.number("x", 0.0, 6.5); }),
            "p.toml:2: x: found 7, wanted a finite number, at least 0 and at most 6.5");
  EXPECT_EQ(said("x = [\n1.0,\n9.0]", [](const TomlTable& t) { return t.numbers("x", 0.0, 2.0); }),
            "p.toml:3: x[1]: found 9, wanted a finite number, at least 0 and at most 2");
  EXPECT_EQ(parse("x = 6.5").number("x", 0.0, 6.5), 6.5);
}

TEST(TomlTable, tells_text_from_other_values) {
  const TomlTable table = parse("a = 'text'\nb = 3\n");
  EXPECT_TRUE(table.is_string("a"));
  EXPECT_FALSE(table.is_string("b"));
  EXPECT_FALSE(table.is_string("c"));
}

TEST(TomlTable, lists_the_known_keys_beside_the_first_unknown_one) {
  const auto read = [](const TomlTable& t) {
    t.refuse_unknown_keys({"known", "other"});
    return 0;
  };
  EXPECT_EQ(said("known = 1\nzebra = 2\nape = 3\n", read),
            "p.toml:2: unknown key \"zebra\", wanted one of: known, other");
  EXPECT_NO_THROW(read(parse("known = 1")));
  EXPECT_EQ(said("[t]\nx = 1", [&](const TomlTable& t) { return read(*t.table("t")); }),
            "p.toml:2: unknown key \"t.x\", wanted one of: known, other");
}

TEST(TomlTable, refuses_absurd_nesting_before_it_can_end_the_process) {
  std::string dots = "a";
  for (int n = 0; n < 100'000; ++n) dots += ".a";
  EXPECT_EQ(parse_refusal(dots + " = 1"), "p.toml:1:32: invalid TOML: a key of more than 16 parts");
  EXPECT_EQ(parse_refusal("\n[" + dots + "]"), "p.toml:2:33: invalid TOML: a key of more than 16 parts");
  EXPECT_EQ(parse_refusal("a = " + std::string(100'000, '[')), "p.toml:1:21: invalid TOML: brackets more than 16 deep");
  EXPECT_EQ(parse_refusal("s = \"\"\"x\"\"\"\"\n" + dots + " = 1"),
            "p.toml:2:32: invalid TOML: a key of more than 16 parts");
}

TEST(TomlTable, takes_dots_and_brackets_in_strings_comments_and_long_lists) {
  const std::string dots(100, '.');
  std::string list = "0.5";
  for (int n = 0; n < 100; ++n) list += ", 0.5";
  const TomlTable table = parse("# " + dots + "[[[[[[[[[[[[[[[[[[[[\ns = \"\\\"" + dots + "\"\nq = '" + dots +
                                "\\'\nm = '''\n" + dots + "'''\nx = [" + list + "]\n");
  EXPECT_EQ(table.string("s"), "\"" + dots);
  EXPECT_EQ(table.string("q"), dots + "\\");
  EXPECT_EQ(table.string("m"), dots);
  EXPECT_EQ(table.numbers("x")->size(), 101U);
}

TEST(TomlTable, refuses_a_file_beyond_the_size_limit) {
  EXPECT_EQ(parse_refusal(std::string(kMaxTomlBytes + 1, '\n')),
            "p.toml: size: found 1048577 bytes, wanted at most 1048576");
}

}  // namespace
}  // namespace routepack
