// SPDX-License-Identifier: Apache-2.0
// Keys of a model's configuration. Missing keys are collected, so that a message names them all.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace routepack {

/// Bounds that keep every product of widths far inside a double, and a hostile file from allocating much.
inline constexpr std::int64_t kMostLayers = 4096;
inline constexpr std::int64_t kMostHeads = std::int64_t{1} << 16;
inline constexpr std::int64_t kMostExperts = std::int64_t{1} << 16;
inline constexpr std::int64_t kMostWidth = std::int64_t{1} << 24;
inline constexpr std::int64_t kMostVocabulary = std::int64_t{1} << 28;
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

/// What to do when a configuration does not give a cost; ends messages.
inline constexpr std::string_view kInstead =
    "otherwise write the costs by hand (routepack plan --cost-template, --cost FILE)";

/// The members of one object; null counts as absent, as the files use it.
class ConfigKeys {
 public:
  ConfigKeys(const Json& object, std::string where) : object_(&object), where_(std::move(where)) {}

  /// The value of the first of `names` that is there, otherwise 1 and the first name is noted as missing.
  std::int64_t need(std::initializer_list<std::string_view> names, std::int64_t max);
  std::int64_t need(std::string_view name, std::int64_t max) { return need({name}, max); }
  /// The value of the first of `names` that is there. 0 is allowed.
  [[nodiscard]] std::optional<std::int64_t> integer(std::initializer_list<std::string_view> names,
                                                    std::int64_t max) const;
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name, std::int64_t max) const {
    return integer({name}, max);
  }
  [[nodiscard]] std::optional<bool> flag(std::string_view name) const;
  [[nodiscard]] std::optional<std::string> text(std::string_view name) const;
  [[nodiscard]] const Json* find(std::string_view name) const;
  /// One text per layer, each among `known`. @throws InvalidInput for another length or text
  [[nodiscard]] std::optional<std::vector<std::string>> texts(std::string_view name, std::size_t layers,
                                                              std::initializer_list<std::string_view> known) const;
  /// Integers 0 … max in a list.
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view name, std::int64_t max) const;
  /// A member that is an object itself, or an empty one when it is not there, which is noted as missing.
  ConfigKeys object(std::string_view name);

  void miss(std::string_view name) { missing_.emplace_back(name); }
  /// Adds what `part`, a member `name` of this object, found missing.
  void adopt(const ConfigKeys& part, std::string_view name);
  [[nodiscard]] const std::vector<std::string>& missing() const { return missing_; }
  [[nodiscard]] const std::string& where() const { return where_; }
  /// «where: name: found …, wanted …». @throws InvalidInput always
  [[noreturn]] void fail(std::string_view name, const std::string& message) const;

 private:
  [[nodiscard]] std::string at(std::string_view name) const;

  const Json* object_;
  std::string where_;
  std::vector<std::string> missing_;
};

}  // namespace routepack
