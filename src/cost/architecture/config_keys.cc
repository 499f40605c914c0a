// SPDX-License-Identifier: Apache-2.0
#include "cost/architecture/config_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "routepack/error.h"

namespace routepack {

std::string ConfigKeys::at(std::string_view name) const {
  return fmt::format("{}: {}", where_, name);
}

void ConfigKeys::fail(std::string_view name, const std::string& message) const {
  throw InvalidInput(fmt::format("{}: {}", at(name), message));
}

const Json* ConfigKeys::find(std::string_view name) const {
  const auto member = object_->find(name);
  return member == object_->end() || member->is_null() ? nullptr : &*member;
}

std::optional<std::int64_t> ConfigKeys::integer(std::initializer_list<std::string_view> names, std::int64_t max) const {
  for (const std::string_view name : names) {
    if (const Json* value = find(name)) return json_integer(*value, at(name), 0, max);
  }
  return std::nullopt;
}

std::int64_t ConfigKeys::need(std::initializer_list<std::string_view> names, std::int64_t max) {
  for (const std::string_view name : names) {
    if (const Json* value = find(name)) return json_integer(*value, at(name), 1, max);
  }
  miss(*names.begin());
  return 1;
}

std::optional<bool> ConfigKeys::flag(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return json_bool(*value, at(name));
}

std::optional<std::string> ConfigKeys::text(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return json_string(*value, at(name));
}

std::optional<std::vector<std::string>> ConfigKeys::texts(std::string_view name, std::size_t layers,
                                                          std::initializer_list<std::string_view> known) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const Json& list = json_array(*value, at(name));
  if (list.size() != layers) {
    fail(name, fmt::format("found {} entries, wanted one for each of {} layers", list.size(), layers));
  }
  std::vector<std::string> result;
  for (std::size_t k = 0; k < list.size(); ++k) {
    const std::string where = fmt::format("{}[{}]", at(name), k);
    result.push_back(json_string(list[k], where));
    if (std::ranges::find(known, result.back()) != known.end()) continue;
    std::string names;
    for (const std::string_view word : known) names += fmt::format("{}{}", names.empty() ? "" : ", ", word);
    throw InvalidInput(fmt::format("{}: found {}, wanted {}; {}", where, Json(result.back()).dump(), names, kInstead));
  }
  return result;
}

std::optional<std::vector<std::int64_t>> ConfigKeys::integers(std::string_view name, std::int64_t max) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const Json& list = json_array(*value, at(name));
  std::vector<std::int64_t> result;
  for (std::size_t k = 0; k < list.size(); ++k) {
    result.push_back(json_integer(list[k], fmt::format("{}[{}]", at(name), k), 0, max));
  }
  return result;
}

ConfigKeys ConfigKeys::object(std::string_view name) {
  static const Json kEmpty = Json::object();
  const Json* value = find(name);
  if (value == nullptr) miss(name);
  return {value == nullptr ? kEmpty : json_object(*value, at(name)), at(name)};
}

void ConfigKeys::adopt(const ConfigKeys& part, std::string_view name) {
  for (const std::string& missing : part.missing()) missing_.push_back(fmt::format("{}.{}", name, missing));
}

}  // namespace routepack
