// SPDX-License-Identifier: Apache-2.0
// Options of a subcommand made from fields with bounds; what a user gives is checked while it is parsed.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

#include "cli/command.h"
#include "routepack/params.h"

namespace routepack::cli {

/// Visitor over describe() lists, also to be called field by field: `a_field` becomes `--a-field`. What is wrong with a
/// value is a UsageError.
struct AddOptions {
  CLI::App& command;
  std::string group_name = "Options";

  void group(const char* name) { group_name = name; }

  void text(const char* field, std::string& value, const char* help, const char* type = "NAME") const {
    command.add_option(option_name(field), value, help)->type_name(type)->group(group_name);
  }

  void flag(const char* field, bool& value, const char* help) const {
    command.add_flag(option_name(field), value, help)->group(group_name);
  }

  void integer(const char* field, std::int64_t& value, std::int64_t min, std::int64_t max, const char* help) const {
    add(field, help, value == 0 ? "N" : fmt::format("N={}", value), fmt::format("an integer from {} to {}", min, max),
        [&value, min, max](const std::string& text) { return parsed(text, value) && value >= min && value <= max; });
  }

  void number(const char* field, double& value, double min, double max, const char* help) const {
    add(field, help, value == 0.0 ? "X" : fmt::format("X={}", value), fmt::format("a number from {} to {}", min, max),
        [&value, min, max](const std::string& text) { return parsed(text, value) && value >= min && value <= max; });
  }

  template <class Enum>
  void choice(const char* field, Enum& value, const char* help) const {
    std::string names;
    for (const auto& choice : choices(Enum{})) names += fmt::format("{}{}", names.empty() ? "" : "|", choice.name);
    add(field, fmt::format("{}: {}", help, names), fmt::format("={}", name_of(value)), names,
        [&value](const std::string& text) {
          for (const auto& choice : choices(Enum{})) {
            if (choice.name != text) continue;
            value = choice.value;
            return true;
          }
          return false;
        });
  }

 private:
  static std::string option_name(const char* field) {
    std::string name = std::string("--") + field;
    std::ranges::replace(name, '_', '-');
    return name;
  }

  template <class Number>
  static bool parsed(const std::string& text, Number& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
  }

  template <class Read>
  void add(const char* field, const std::string& help, const std::string& type, const std::string& wanted,
           const Read& read) const {
    const std::string name = option_name(field);
    command
        .add_option_function<std::string>(
            name,
            [name, wanted, read](const std::string& text) {
              if (!read(text)) throw UsageError(fmt::format("{}: found \"{}\", wanted {}", name, text, wanted));
            },
            help)
        ->type_name(type)
        ->group(group_name);
  }
};

}  // namespace routepack::cli
