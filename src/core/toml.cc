// SPDX-License-Identifier: Apache-2.0
#include "core/toml.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>

#include "core/json.h"
#include "core/json_text.h"
#include "core/toml_nesting.h"
#include "routepack/error.h"

namespace routepack {
namespace {

const toml::table& as_table(const std::shared_ptr<const void>& table) {
  return *static_cast<const toml::table*>(table.get());
}

std::string describe(const toml::node& node) {
  if (const auto* integer = node.as_integer()) return fmt::format("{}", integer->get());
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  if (const auto* boolean = node.as_boolean()) return boolean->get() ? "true" : "false";
  if (const auto* string = node.as_string()) return describe_json(Json(string->get()));
  if (const auto* array = node.as_array()) return fmt::format("a list of {}", array->size());
  if (node.is_table()) return "a table";
  return "a date or time";
}

/// One line of printable text, whatever the parser quotes from the input.
std::string one_line(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

/// A value, its key as the user would write it, and the file.
struct Place {
  const toml::node& node;
  const std::string& where;
  std::string key;

  [[noreturn]] void refuse(std::string_view wanted) const {
    throw FormatError(fmt::format("{}:{}: {}: found {}, wanted {}", where, node.source().begin.line, one_line(key),
                                  describe(node), wanted));
  }

  [[nodiscard]] std::int64_t integer(std::int64_t min, std::int64_t max) const {
    const auto* value = node.as_integer();
    if (value == nullptr || value->get() < min || value->get() > max) {
      const bool bounded =
          min != std::numeric_limits<std::int64_t>::min() || max != std::numeric_limits<std::int64_t>::max();
      refuse(bounded ? fmt::format("an integer from {} to {}", min, max) : "an integer");
    }
    return value->get();
  }

  [[nodiscard]] double number(double min, double max) const {
    const std::optional<double> value = node.is_number() ? node.value<double>() : std::nullopt;
    if (value && std::isfinite(*value) && *value >= min && *value <= max) return *value;
    std::string wanted = "a finite number";
    if (min != std::numeric_limits<double>::lowest()) wanted += fmt::format(", at least {}", min);
    if (max != std::numeric_limits<double>::max()) wanted += fmt::format(" and at most {}", max);
    refuse(wanted);
  }

  [[nodiscard]] std::string string() const {
    const auto* value = node.as_string();
    if (value == nullptr) refuse("a string");
    return value->get();
  }

  template <class Element, class Read>
  [[nodiscard]] std::vector<Element> list(std::string_view wanted, Read read) const {
    const auto* array = node.as_array();
    if (array == nullptr) refuse(wanted);
    std::vector<Element> elements;
    for (std::size_t i = 0; i < array->size(); ++i) {
      elements.push_back(read(Place{*array->get(i), where, fmt::format("{}[{}]", key, i)}));
    }
    return elements;
  }
};

std::optional<Place> find(const std::shared_ptr<const void>& table, std::string_view key, const std::string& where,
                          const std::string& path) {
  const toml::node* node = as_table(table).get(key);
  if (node == nullptr) return std::nullopt;
  return Place{*node, where, fmt::format("{}{}", path, key)};
}

}  // namespace

TomlTable TomlTable::parse(std::string_view text, const std::string& where) {
  if (text.size() > kMaxTomlBytes) {
    throw FormatError(fmt::format("{}: size: found {} bytes, wanted at most {}", where, text.size(), kMaxTomlBytes));
  }
  refuse_deep_toml(text, where);
  try {
    return TomlTable(std::make_shared<const toml::table>(toml::parse(text)), where, "");
  } catch (const toml::parse_error& error) {
    const toml::source_position position = error.source().begin;
    throw FormatError(fmt::format("{}:{}:{}: invalid TOML: {}", where, position.line, position.column,
                                  one_line(error.description())));
  }
}

bool TomlTable::has(std::string_view key) const {
  return as_table(table_).contains(key);
}

bool TomlTable::is_string(std::string_view key) const {
  const toml::node* node = as_table(table_).get(key);
  return node != nullptr && node->is_string();
}

bool TomlTable::is_array(std::string_view key) const {
  const toml::node* node = as_table(table_).get(key);
  return node != nullptr && node->is_array();
}

std::vector<std::string> TomlTable::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, node] : as_table(table_)) keys.emplace_back(key.str());
  return keys;
}

void TomlTable::refuse_unknown_keys(std::span<const std::string_view> known) const {
  const toml::key* first = nullptr;
  for (const auto& [key, node] : as_table(table_)) {
    if (std::find(known.begin(), known.end(), key.str()) != known.end()) continue;
    if (first == nullptr || key.source().begin < first->source().begin) first = &key;
  }
  if (first == nullptr) return;
  throw FormatError(fmt::format("{}:{}: unknown key {}, wanted one of: {}", where_, first->source().begin.line,
                                describe_json(Json(fmt::format("{}{}", path_, first->str()))).substr(11),
                                fmt::join(known, ", ")));
}

std::optional<std::int64_t> TomlTable::integer(std::string_view key, std::int64_t min, std::int64_t max) const {
  const auto place = find(table_, key, where_, path_);
  return place ? std::optional(place->integer(min, max)) : std::nullopt;
}

std::optional<double> TomlTable::number(std::string_view key, double min, double max) const {
  const auto place = find(table_, key, where_, path_);
  return place ? std::optional(place->number(min, max)) : std::nullopt;
}

std::optional<bool> TomlTable::boolean(std::string_view key) const {
  const auto place = find(table_, key, where_, path_);
  if (!place) return std::nullopt;
  const auto* value = place->node.as_boolean();
  if (value == nullptr) place->refuse("true or false");
  return value->get();
}

std::optional<std::string> TomlTable::string(std::string_view key) const {
  const auto place = find(table_, key, where_, path_);
  return place ? std::optional(place->string()) : std::nullopt;
}

std::optional<std::vector<double>> TomlTable::numbers(std::string_view key, double min, double max) const {
  const auto place = find(table_, key, where_, path_);
  if (!place) return std::nullopt;
  return place->list<double>("a list of numbers", [&](const Place& element) { return element.number(min, max); });
}

std::optional<std::vector<std::string>> TomlTable::strings(std::string_view key) const {
  const auto place = find(table_, key, where_, path_);
  if (!place) return std::nullopt;
  return place->list<std::string>("a list of strings", [](const Place& element) { return element.string(); });
}

std::optional<TomlTable> TomlTable::table(std::string_view key) const {
  const auto place = find(table_, key, where_, path_);
  if (!place) return std::nullopt;
  if (!place->node.is_table()) place->refuse(fmt::format("a table, [{}]", place->key));
  return TomlTable(std::shared_ptr<const void>(table_, place->node.as_table()), where_, place->key + ".");
}

std::optional<std::vector<TomlTable>> TomlTable::tables(std::string_view key) const {
  const auto place = find(table_, key, where_, path_);
  if (!place) return std::nullopt;
  const std::string wanted = fmt::format("tables, each with [[{}]] above it", place->key);
  return place->list<TomlTable>(wanted, [&](const Place& element) {
    if (!element.node.is_table()) element.refuse(wanted);
    return TomlTable(std::shared_ptr<const void>(table_, element.node.as_table()), where_, element.key + ".");
  });
}

void TomlTable::fail(std::string_view key, std::string_view message) const {
  const toml::node* node = as_table(table_).get(key);
  const auto line = (node != nullptr ? *node : static_cast<const toml::node&>(as_table(table_))).source().begin.line;
  throw FormatError(fmt::format("{}:{}: {}{}: {}", where_, line, path_, key, message));
}

}  // namespace routepack
