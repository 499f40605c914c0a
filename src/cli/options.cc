// SPDX-License-Identifier: Apache-2.0
#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "cli/command.h"
#include "cli/derived_cost.h"
#include "core/file.h"
#include "core/json_file.h"
#include "routepack/error.h"
#include "routepack/moves.h"

namespace routepack::cli {
namespace {

std::string with_dashes(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name;
}

std::int64_t parse_integer(const std::string& name, const std::string& text, std::int64_t min, std::int64_t max) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    throw UsageError(fmt::format("--{}: found \"{}\", wanted an integer from {} to {}", name, text, min, max));
  }
  return value;
}

double parse_number(const std::string& name, const std::string& text, double min, double max) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= min && value <= max)) {
    throw UsageError(fmt::format("--{}: found \"{}\", wanted a number from {} to {}", name, text, min, max));
  }
  return value;
}

/// `name` stands in front of messages.
std::int64_t parse_size(const std::string& name, const std::string& text, std::int64_t max) {
  try {
    if (const auto size = parse_bytes(text, name)) return *size;
  } catch (const InvalidInput& error) {
    throw UsageError(error.what());
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > max) {
    throw UsageError(fmt::format("{}: found \"{}\", wanted bytes, from 0 to {}, or a size like 66MB", name, text, max));
  }
  return value;
}

/// TOML tells floats from integers by the point or exponent.
std::string toml_number(double value) {
  std::string digits = fmt::format("{}", value);
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

template <class Enum>
Enum parse_choice(const std::string& name, const std::string& text) {
  std::string names;
  for (const auto& choice : choices(Enum{})) {
    if (choice.name == text) {
      if (!choice.built) throw UsageError(fmt::format("--{} {}: not built yet", name, text));
      return choice.value;
    }
    names += fmt::format("{}{}", names.empty() ? "" : "|", choice.name);
  }
  throw UsageError(fmt::format("--{}: found \"{}\", wanted {}", name, text, names));
}

template <class Enum>
std::string choice_names() {
  std::string names;
  for (const auto& choice : choices(Enum{})) {
    names += fmt::format("{}{}{}", names.empty() ? "" : "|", choice.name, choice.built ? "" : " (not built yet)");
  }
  return names;
}

/// A TOML basic string: JSON's escapes, and the one control character that JSON leaves as it is.
std::string toml_string(const std::string& text) {
  std::string quoted;
  try {
    quoted = Json(text).dump();
  } catch (const Json::type_error&) {
    throw UsageError("--dump-params: a file name that is not UTF-8 cannot be written as TOML");
  }
  std::string result;
  for (const char c : quoted) {
    if (c == 0x7f) {
      result += "\\u007f";
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

/// Visitors over the table [search] of a parameter file.
struct SearchNames {
  std::vector<std::string> all;
  void integer(const char* field, std::int64_t, std::int64_t, std::int64_t, const char*) { add(field); }
  void number(const char* field, double, double, double, const char*) { add(field); }
  void flag(const char* field, bool, const char*) { add(field); }
  void add(const char* field) { all.push_back(with_dashes(field)); }
};
struct ReadSearch {
  const TomlTable& table;
  void integer(const char* field, std::int64_t& value, std::int64_t min, std::int64_t max, const char*) const {
    value = table.integer(with_dashes(field), min, max).value_or(value);
  }
  void number(const char* field, double& value, double min, double max, const char*) const {
    const auto read = table.number(with_dashes(field), min);
    if (read && *read > max) table.fail(with_dashes(field), fmt::format("found {}, wanted at most {}", *read, max));
    value = read.value_or(value);
  }
  void flag(const char* field, bool& value, const char*) const {
    value = table.boolean(with_dashes(field)).value_or(value);
  }
};
struct WriteSearch {
  std::string& text;
  void integer(const char* field, std::int64_t value, std::int64_t, std::int64_t, const char*) const {
    text += fmt::format("{} = {}\n", with_dashes(field), value);
  }
  void number(const char* field, double value, double, double, const char*) const {
    text += fmt::format("{} = {}\n", with_dashes(field), toml_number(value));
  }
  void flag(const char* field, bool value, const char*) const {
    text += fmt::format("{} = {}\n", with_dashes(field), value);
  }
};

/// Visitor over the describe() lists that fills the option table.
struct CollectOptions {
  CLI::App& command;
  std::vector<std::unique_ptr<PlanOptions::Option>>& options;
  std::string group_name;

  void group(const char* name) { group_name = name; }

  void integer(const char* field, std::int64_t& value, std::int64_t min, std::int64_t max, const char* help) {
    auto& option = add(field, help, value == 0 ? "N" : fmt::format("N={}", value));
    option.set = [&value, name = option.name, min, max](const std::string& text) {
      value = parse_integer(name, text, min, max);
    };
    option.read = [&value, name = option.name, min, max](const TomlTable& table) {
      if (const auto read = table.integer(name, min, max)) value = *read;
    };
    option.write = [&value, min] { return value < min ? std::string() : fmt::format("{}", value); };
  }

  /// A whole number of bytes, or a size with a unit.
  void bytes(const char* field, std::int64_t& value, std::int64_t max, const char* help) {
    auto& option = add(field, help, "BYTES");
    option.set = [&value, name = "--" + option.name, max](const std::string& text) {
      value = parse_size(name, text, max);
    };
    option.read = [&value, name = option.name, max](const TomlTable& table) {
      if (!table.is_string(name)) {
        value = table.integer(name, 0, max).value_or(value);
        return;
      }
      try {
        value = parse_size(name, *table.string(name), max);
      } catch (const UsageError& error) {
        table.fail(name, std::string_view(error.what()).substr(name.size() + 2));  // «name: » stands there already
      }
    };
    option.write = [&value] { return fmt::format("{}", value); };
  }

  void flag(const char* field, bool& value, const char* help) {
    auto& option = add(field, help, "");
    option.set = [&value, name = option.name](const std::string& text) {
      if (text != "true" && text != "false") {
        throw UsageError(fmt::format("--{}: found \"{}\", wanted nothing, true or false", name, text));
      }
      value = text == "true";
    };
    option.read = [&value, name = option.name](const TomlTable& table) {
      if (const auto read = table.boolean(name)) value = *read;
    };
    option.write = [&value] { return std::string(value ? "true" : "false"); };
  }

  template <class Enum>
  void choice(const char* field, Enum& value, const char* help) {
    auto& option = add(field, fmt::format("{}: {}", help, choice_names<Enum>()), fmt::format("={}", name_of(value)));
    option.set = [&value, name = option.name](const std::string& text) { value = parse_choice<Enum>(name, text); };
    option.read = [&value, name = option.name](const TomlTable& table) {
      const auto read = table.string(name);
      if (!read) return;
      try {
        value = parse_choice<Enum>(name, *read);
      } catch (const UsageError& error) {
        table.fail(name, error.what());
      }
    };
    option.write = [&value] { return toml_string(std::string(name_of(value))); };
  }

  void number(const char* field, double& value, double min, double max, const char* help) {
    auto& option = add(field, help, fmt::format("X={}", value));
    option.set = [&value, name = option.name, min, max](const std::string& text) {
      value = parse_number(name, text, min, max);
    };
    option.read = [&value, name = option.name, min, max](const TomlTable& table) {
      const auto read = table.number(name, min);
      if (read && *read > max) table.fail(name, fmt::format("found {}, wanted at most {}", *read, max));
      value = read.value_or(value);
    };
    option.write = [&value] { return toml_number(value); };
  }

  /// Values with spaces between; the option may be given several times.
  void texts(const char* field, std::string& value, const char* help) {
    auto& option = add(field, help, "VALUE...");
    option.on_command_line->multi_option_policy(CLI::MultiOptionPolicy::Join)
        ->join(' ')
        ->expected(1, -1)
        ->allow_extra_args(false);
    option.set = [&value](const std::string& given) { value = given; };
    option.read = [&value, name = option.name](const TomlTable& table) {
      if (const auto read = table.string(name)) value = *read;
    };
    option.write = [&value] { return value.empty() ? std::string() : toml_string(value); };
  }

  void text(const char* field, std::string& value, const char* help) {
    auto& option = add(field, help, "TEXT");
    option.set = [&value](const std::string& given) { value = given; };
    option.read = [&value, name = option.name](const TomlTable& table) {
      const auto read = table.string(name);
      if (!read) return;
      if (read->find('\0') != std::string::npos) table.fail(name, "found a zero byte, wanted a file name");
      value = *read;
    };
    option.write = [&value] { return value.empty() ? std::string() : toml_string(value); };
  }

 private:
  PlanOptions::Option& add(const char* field, const std::string& help, const std::string& type) {
    auto& option = *options.emplace_back(std::make_unique<PlanOptions::Option>());
    option.name = with_dashes(field);
    const std::string flag_name = "--" + option.name;
    option.on_command_line = type.empty() ? command.add_flag(flag_name, option.given, help)
                                          : command.add_option(flag_name, option.given, help)->type_name(type);
    option.on_command_line->group(group_name);
    return option;
  }
};

PlanOptions::PlanOptions(CLI::App& command, PlanSetup& setup) : params_(setup.params) {
  describe(setup, CollectOptions{command, options_, ""});
}

void PlanOptions::apply_file(const std::filesystem::path& path) {
  const TomlTable table = TomlTable::parse(read_text(path, kMaxTomlBytes), path.string());
  std::vector<std::string_view> known = {"search"};
  for (const auto& option : options_) known.push_back(option->name);
  table.refuse_unknown_keys(known);
  if (auto search = table.table("search")) {
    SearchNames names;
    const SearchParams any;
    describe(any, names);
    search->refuse_unknown_keys(std::vector<std::string_view>(names.all.begin(), names.all.end()));
    search_table_ = std::move(search);
  }
  for (const auto& option : options_) option->read(table);
}

void PlanOptions::apply_command_line() {
  for (const auto& option : options_) {
    if (option->on_command_line->count() > 0) option->set(option->given);
  }
  // The effort says what the table starts from, so it must be known first.
  if (search_table_) describe(params_.search.emplace(search_of(params_.effort)), ReadSearch{*search_table_});
}

std::string PlanOptions::to_toml() const {
  std::string text;
  for (const auto& option : options_) {
    if (const std::string value = option->write(); !value.empty())
      text += fmt::format("{} = {}\n", option->name, value);
  }
  text += "\n[search]\n";
  const SearchParams search = params_.effective_search();
  describe(search, WriteSearch{text});
  return text;
}

Instance instance_of(const PlanSetup& setup, const Window& window, const std::string& where) {
  Topology topology = setup.topology();  // these two name their own options and files
  CostModel cost = setup.cost_model();
  if (!cost.uniform() && cost.expert_weights().size() != static_cast<std::size_t>(window.layers())) {
    throw InvalidInput(fmt::format("{}: expert: found {} weights, wanted one number or {}, one per MoE layer of {}",
                                   setup.cost, cost.expert_weights().size(), window.layers(), where));
  }
  require_fits_model(setup, window, where);
  try {
    return Instance(window, std::move(topology), std::move(cost), setup.cap, setup.constraints, setup.sync);
  } catch (const InvalidInput& error) {
    throw InvalidInput(fmt::format("{}: {}", where, error.what()));
  }
}

Topology PlanSetup::topology() const {
  if (ep == 0) throw UsageError("--ep is missing: the number of expert-parallel ranks");
  if (shards.empty()) {
    if (dp == 0) throw UsageError("--dp is missing: the number of data-parallel slots (or give --shards)");
    const auto narrow = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
    return Topology::megatron(
        {.dp = narrow(dp), .ep = narrow(ep), .tp = narrow(tp), .cp = narrow(cp), .etp = narrow(etp), .pp = narrow(pp)});
  }
  if (tp != 1 || cp != 1 || etp != 1) {
    throw UsageError("--shards and --tp, --cp or --etp exclude each other: the shards already say which slots meet");
  }
  std::vector<std::vector<SlotId>> slots;
  for (const auto& shard : json_index_lists(parse_json(shards, "--shards"), "--shards")) {
    auto& ids = slots.emplace_back();
    for (const std::int32_t d : shard) ids.emplace_back(d);
  }
  Topology topology =
      Topology::from_shards(static_cast<std::int32_t>(ep), std::move(slots), static_cast<std::int32_t>(pp));
  if (dp != 0 && dp != topology.slots()) {
    throw UsageError(fmt::format("--dp {} and --shards with {} slots contradict each other", dp, topology.slots()));
  }
  return topology;
}

CostModel PlanSetup::cost_model() const {
  return cost_of(*this);
}

}  // namespace routepack::cli
