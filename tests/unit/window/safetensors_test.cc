// SPDX-License-Identifier: Apache-2.0
#include "window/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "routepack/error.h"
#include "support/refusal.h"
#include "support/safetensors_bytes.h"
#include "support/temporary_folder.h"

namespace routepack {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::raw;
using testing::refusal;
using testing::safetensors_bytes;
using testing::SafetensorsText;
using ::testing::StartsWith;

Safetensors parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "f");
}

std::string refusal_of(const std::string& bytes) {
  return refusal<FormatError>([&] { (void)parse(bytes); });
}

/// What the reader says to a header before eight bytes of data.
std::string header_refusal(std::string_view header) {
  return refusal_of(safetensors_bytes(header, "12345678"));
}

std::string u8(std::string_view name, std::string_view shape, std::string_view offsets) {
  return "\"" + std::string(name) + R"(":{"dtype":"U8","shape":)" + std::string(shape) + R"(,"data_offsets":)" +
         std::string(offsets) + "}";
}

TEST(SafetensorsReader, reads_tensors_and_metadata_without_copying) {
  const std::string bytes = SafetensorsText()
                                .metadata("b", "2")
                                .metadata("a", "1")
                                .tensor("x", "U16", "[2, 1]", raw<std::uint16_t>({7, 8}))
                                .tensor("y", "F64", "[]", raw<double>({0.5}))
                                .bytes();
  const Safetensors file = parse(bytes);
  EXPECT_THAT(file.metadata, ElementsAre(Pair("b", "2"), Pair("a", "1")));
  ASSERT_EQ(file.tensors.size(), 2U);
  const TensorView& x = file.tensors.find("x")->second;
  EXPECT_EQ(x.dtype, "U16");
  EXPECT_THAT(x.shape, ElementsAre(2, 1));
  EXPECT_EQ(reinterpret_cast<const char*>(x.bytes.data()), bytes.data() + bytes.size() - 12);
  EXPECT_EQ(file.tensors.find("y")->second.bytes.size(), 8U);
}

TEST(SafetensorsReader, accepts_a_header_padded_with_spaces) {
  EXPECT_EQ(parse(SafetensorsText().tensor("x", "U8", "[1]", "a").bytes(5)).tensors.size(), 1U);
}

TEST(SafetensorsReader, accepts_a_file_without_tensors) {
  EXPECT_TRUE(parse(safetensors_bytes("{}", "")).tensors.empty());
}

TEST(SafetensorsReader, accepts_tensors_in_any_order) {
  EXPECT_EQ(parse(safetensors_bytes("{" + u8("b", "[3]", "[5,8]") + "," + u8("a", "[5]", "[0,5]") + "}", "12345678"))
                .tensors.size(),
            2U);
}

TEST(SafetensorsReader, accepts_an_empty_tensor_at_any_boundary) {
  EXPECT_EQ(parse(safetensors_bytes("{" + u8("a", "[8]", "[0,8]") + "," + u8("b", "[0,9]", "[0,0]") + "," +
                                        u8("c", "[9,0]", "[8,8]") + "}",
                                    "12345678"))
                .tensors.size(),
            3U);
}

TEST(SafetensorsReader, refuses_a_file_shorter_than_the_header_length) {
  EXPECT_THAT(refusal_of("abc"), StartsWith("f: header length: found a file of 3 bytes, wanted at least 8"));
}

TEST(SafetensorsReader, refuses_an_empty_file) {
  EXPECT_THAT(refusal_of(""), HasSubstr("found a file of 0 bytes"));
}

TEST(SafetensorsReader, refuses_a_header_that_ends_beyond_the_file) {
  EXPECT_THAT(refusal_of(safetensors_bytes("{}", "", 3)),
              StartsWith("f: header length: found 3, wanted at most 2, the bytes that follow it"));
}

TEST(SafetensorsReader, refuses_a_header_over_100_mb) {
  EXPECT_THAT(refusal_of(safetensors_bytes("{}", "", 100'000'001)),
              StartsWith("f: header length: found 100000001, wanted at most 100000000"));
  EXPECT_THAT(refusal_of(safetensors_bytes("{}", "", ~std::uint64_t{0})), HasSubstr("wanted at most 100000000"));
}

TEST(SafetensorsReader, recognises_a_json_file) {
  EXPECT_THAT(refusal_of(R"({"format": "routepack.manifest/1"})"),
              HasSubstr("it looks like JSON (a window manifest or a plan), wanted a safetensors window"));
  EXPECT_THAT(refusal_of("{}"), HasSubstr("it looks like JSON"));
}

TEST(SafetensorsReader, does_not_take_a_header_length_of_123_for_json) {
  const std::string bytes = safetensors_bytes("{}" + std::string(121, ' '), "");
  ASSERT_EQ(bytes[0], '{');
  EXPECT_TRUE(parse(bytes).tensors.empty());
}

TEST(SafetensorsReader, refuses_a_header_that_does_not_start_with_a_brace) {
  EXPECT_THAT(header_refusal(" {}"), StartsWith("f: header: found byte 0x20, wanted a JSON object"));
  EXPECT_THAT(header_refusal("[]"), HasSubstr("found byte 0x5b"));
  EXPECT_THAT(header_refusal(""), HasSubstr("found nothing"));
}

TEST(SafetensorsReader, refuses_invalid_json) {
  EXPECT_THAT(header_refusal("{\"x\": "), StartsWith("f: header: invalid JSON at byte"));
  EXPECT_THAT(header_refusal("{} x"), HasSubstr("invalid JSON"));
  EXPECT_THAT(header_refusal("{\"\xff\": 1}"), HasSubstr("invalid JSON"));
}

TEST(SafetensorsReader, refuses_a_zero_byte_in_the_header) {
  EXPECT_THAT(header_refusal(std::string_view("{}\0{}", 5)), StartsWith("f: header: invalid JSON at byte 3"));
}

TEST(SafetensorsReader, refuses_a_tensor_that_occurs_twice) {
  EXPECT_THAT(header_refusal("{" + u8("x", "[8]", "[0,8]") + "," + u8("x", "[8]", "[0,8]") + "}"),
              HasSubstr("key \"x\" occurs twice"));
}

TEST(SafetensorsReader, refuses_a_header_of_very_many_values_before_parsing_it) {
  std::string header = "{\"x\":[";
  for (int i = 0; i < 60'000; ++i) header += "[],";
  EXPECT_THAT(header_refusal(header), StartsWith("f: header: found 120002 JSON values, wanted at most 50000"));
}

TEST(SafetensorsReader, does_not_count_commas_inside_text) {
  EXPECT_EQ(parse(SafetensorsText().metadata("card", "\\\"" + std::string(60'000, ',')).bytes()).metadata.size(), 1U);
}

TEST(SafetensorsReader, refuses_metadata_that_is_not_text) {
  EXPECT_THAT(header_refusal(R"({"__metadata__":{"top_k":4}})"),
              StartsWith("f: __metadata__: key top_k: found the number 4, wanted a string"));
  EXPECT_THAT(header_refusal(R"({"__metadata__":[]})"), StartsWith("f: __metadata__: found an array"));
}

TEST(SafetensorsReader, refuses_an_entry_that_is_no_object) {
  EXPECT_THAT(header_refusal(R"({"x":3})"), StartsWith("f: tensor x: found the number 3, wanted an object"));
}

TEST(SafetensorsReader, refuses_a_missing_key) {
  EXPECT_THAT(header_refusal(R"({"x":{"dtype":"U8","shape":[8]}})"),
              StartsWith("f: tensor x: key \"data_offsets\" is missing"));
}

TEST(SafetensorsReader, refuses_an_unknown_key) {
  EXPECT_THAT(header_refusal(R"({"x":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"scale":1}})"),
              StartsWith("f: tensor x: found key scale, wanted dtype, shape and data_offsets only"));
}

TEST(SafetensorsReader, refuses_an_unknown_dtype) {
  EXPECT_THAT(header_refusal(R"({"x":{"dtype":"U24","shape":[8],"data_offsets":[0,8]}})"),
              StartsWith("f: tensor x: dtype: found U24"));
}

TEST(SafetensorsReader, refuses_shapes_of_anything_but_non_negative_integers) {
  EXPECT_THAT(header_refusal("{" + u8("x", "[-8]", "[0,8]") + "}"),
              StartsWith("f: tensor x: shape[0]: found the number -8"));
  EXPECT_THAT(header_refusal("{" + u8("x", "[1, 8.0]", "[0,8]") + "}"), HasSubstr("shape[1]: found the number 8.0"));
  EXPECT_THAT(header_refusal("{" + u8("x", "8", "[0,8]") + "}"),
              HasSubstr("shape: found the number 8, wanted an array"));
}

TEST(SafetensorsReader, refuses_a_shape_whose_product_overflows) {
  // 2^32 · 2^32 wraps to 0, which would fit an empty range.
  EXPECT_THAT(header_refusal("{" + u8("x", "[4294967296, 4294967296]", "[0,0]") + "}"),
              AllOf(HasSubstr("tensor x: data_offsets"), HasSubstr("a size that no file has")));
}

TEST(SafetensorsReader, refuses_a_range_that_contradicts_the_shape) {
  EXPECT_THAT(header_refusal("{" + u8("x", "[7]", "[0,8]") + "}"),
              StartsWith("f: tensor x: data_offsets: found [0, 8], 8 bytes, wanted 7 for U8 [7]"));
}

TEST(SafetensorsReader, refuses_a_range_out_of_the_data) {
  EXPECT_THAT(header_refusal("{" + u8("x", "[9]", "[0,9]") + "}"),
              StartsWith("f: tensor x: data_offsets[1]: found the number 9, wanted an integer from 0 to 8"));
}

TEST(SafetensorsReader, refuses_a_range_that_ends_before_it_begins) {
  EXPECT_THAT(header_refusal("{" + u8("x", "[2]", "[4,2]") + "}"),
              StartsWith("f: tensor x: data_offsets[0]: found the number 4, wanted an integer from 0 to 2"));
}

TEST(SafetensorsReader, refuses_a_range_of_one_or_three_numbers) {
  EXPECT_THAT(header_refusal("{" + u8("x", "[8]", "[8]") + "}"), HasSubstr("data_offsets: found 1 numbers, wanted 2"));
  EXPECT_THAT(header_refusal("{" + u8("x", "[8]", "[0,8,8]") + "}"), HasSubstr("found 3 numbers, wanted 2"));
}

TEST(SafetensorsReader, refuses_overlapping_ranges) {
  EXPECT_THAT(header_refusal("{" + u8("x", "[5]", "[0,5]") + "," + u8("y", "[4]", "[4,8]") + "}"),
              StartsWith("f: tensor y: data_offsets: found [4, 8], which overlaps tensor x"));
}

TEST(SafetensorsReader, refuses_a_hole_between_ranges) {
  EXPECT_THAT(header_refusal("{" + u8("x", "[3]", "[0,3]") + "," + u8("y", "[4]", "[4,8]") + "}"),
              StartsWith("f: tensor y: data_offsets: found [4, 8], which leaves a hole of 1 bytes"));
  EXPECT_THAT(header_refusal("{" + u8("x", "[7]", "[1,8]") + "}"), HasSubstr("hole of 1 bytes"));
}

TEST(SafetensorsReader, refuses_bytes_behind_the_last_tensor) {
  EXPECT_THAT(header_refusal("{" + u8("x", "[7]", "[0,7]") + "}"),
              StartsWith("f: tensor data: found 8 bytes, wanted 7"));
}

TEST(SafetensorsReader, refuses_every_truncation_of_a_good_file) {
  const std::string bytes = SafetensorsText().metadata("a", "b").tensor("x", "U16", "[2]", "abcd").bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size) EXPECT_NE(refusal_of(bytes.substr(0, size)), "") << size;
}

TEST(SafetensorsReader, keeps_hostile_names_on_one_line) {
  const std::string message = header_refusal(R"({"a\nb\u001b":3})");
  EXPECT_THAT(message, StartsWith(R"(f: tensor "a\nb\u001b": found the number 3)"));
}

TEST(SafetensorsWriter, aligns_every_tensor_and_the_reader_gets_it_back) {
  const testing::TemporaryFolder folder;
  const std::string odd = raw<std::uint16_t>({1, 2, 3});
  const std::string wide = raw<std::int64_t>({4});
  const std::string word = raw<std::int32_t>({5});
  const auto bytes_of = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  write_safetensors(
      folder / "f", {{"key", "värde \"x\""}},
      {{"odd", "U16", {3}, bytes_of(odd)}, {"word", "I32", {1}, bytes_of(word)}, {"wide", "I64", {1}, bytes_of(wide)}});
  const std::string written = testing::contents_of(folder / "f");
  const Safetensors file = parse(written);
  EXPECT_THAT(file.metadata, ElementsAre(Pair("key", "värde \"x\"")));
  const auto offset_of = [&](std::string_view name) {
    return reinterpret_cast<const char*>(file.tensors.find(name)->second.bytes.data()) - written.data();
  };
  EXPECT_EQ(offset_of("wide") % 8, 0);
  EXPECT_EQ(offset_of("word") % 4, 0);
  EXPECT_EQ(offset_of("odd") % 2, 0);
  EXPECT_TRUE(std::ranges::equal(file.tensors.find("odd")->second.bytes, bytes_of(odd)));
}

TEST(SafetensorsWriter, refuses_metadata_that_is_not_utf_8_and_leaves_no_file) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT(refusal<InvalidInput>([&] { write_safetensors(folder / "f", {{"key", "\xff"}}, {}); }),
              HasSubstr("not UTF-8"));
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace routepack
