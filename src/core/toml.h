// SPDX-License-Identifier: Apache-2.0
// TOML parsed strictly, and values taken from it with messages that name the file, the line, the key, what was found
// and what was wanted. The library that parses stays behind this header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace routepack {

/// Cost and parameter files are written by hand; anything larger is a mistake.
inline constexpr std::size_t kMaxTomlBytes = std::size_t{1} << 20;

/// A table of a TOML document. Copies share the document. Getters give nothing for an absent key and throw FormatError
/// for a value of another type or outside the bounds.
class TomlTable {
 public:
  /// The document's root table. `where` (a file name) goes in front of messages.
  /// @throws FormatError «where:line:column: …» for invalid TOML, text beyond kMaxTomlBytes, keys with more than 16
  ///         parts, brackets deeper than 16
  static TomlTable parse(std::string_view text, const std::string& where);

  [[nodiscard]] bool has(std::string_view key) const;
  [[nodiscard]] bool is_array(std::string_view key) const;
  [[nodiscard]] bool is_string(std::string_view key) const;
  /// In the document's alphabetical order.
  [[nodiscard]] std::vector<std::string> keys() const;
  /// @throws FormatError for the first key, by line, that is not among `known`; the message lists those
  void refuse_unknown_keys(std::span<const std::string_view> known) const;
  void refuse_unknown_keys(std::initializer_list<std::string_view> known) const {
    refuse_unknown_keys(std::span(known.begin(), known.size()));
  }

  /// A float is no integer, even 3.0.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key,
                                                    std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                                                    std::int64_t max = std::numeric_limits<std::int64_t>::max()) const;
  /// A finite float, or an integer, from `min` to `max`.
  [[nodiscard]] std::optional<double> number(std::string_view key, double min = std::numeric_limits<double>::lowest(),
                                             double max = std::numeric_limits<double>::max()) const;
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const;
  [[nodiscard]] std::optional<std::string> string(std::string_view key) const;
  /// A list of numbers as in `number`.
  [[nodiscard]] std::optional<std::vector<double>> numbers(std::string_view key,
                                                           double min = std::numeric_limits<double>::lowest(),
                                                           double max = std::numeric_limits<double>::max()) const;
  [[nodiscard]] std::optional<std::vector<std::string>> strings(std::string_view key) const;
  /// `[key]`
  [[nodiscard]] std::optional<TomlTable> table(std::string_view key) const;
  /// `[[key]]`
  [[nodiscard]] std::optional<std::vector<TomlTable>> tables(std::string_view key) const;

  /// «where:line: key: message», for rules that only the caller knows.
  /// @throws FormatError always
  [[noreturn]] void fail(std::string_view key, std::string_view message) const;

 private:
  TomlTable(std::shared_ptr<const void> table, std::string where, std::string path)
      : table_(std::move(table)), where_(std::move(where)), path_(std::move(path)) {}

  std::shared_ptr<const void> table_;  // a toml::table inside a document that it keeps alive
  std::string where_;
  std::string path_;  // of this table with a dot behind it; empty for the root
};

}  // namespace routepack
