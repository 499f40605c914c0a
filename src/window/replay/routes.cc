// SPDX-License-Identifier: Apache-2.0
// Views of recorded ids.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "routepack/error.h"
#include "routepack/replay.h"

namespace routepack {
namespace {

constexpr std::array<std::pair<std::string_view, std::size_t>, 6> kTypes = {
    {{"uint8", 1}, {"int8", 1}, {"uint16", 2}, {"int16", 2}, {"int32", 4}, {"int64", 8}}};

}  // namespace

std::size_t size_of(IdType type) {
  return kTypes[static_cast<std::size_t>(type)].second;
}

std::string_view name_of(IdType type) {
  return kTypes[static_cast<std::size_t>(type)].first;
}

RouteIds RouteIds::from_bytes(std::span<const std::byte> bytes, IdType type, std::int64_t layers, std::int64_t top_k,
                              std::optional<std::int64_t> tokens, const std::string& where) {
  const auto fail = [&](const std::string& what) { throw InvalidInput(where + ": " + what); };
  if (layers < 1) fail(fmt::format("layers: found {}, wanted 1 or more", layers));
  if (top_k < 1) fail(fmt::format("top_k: found {}, wanted 1 or more", top_k));
  if (tokens && *tokens < 0) fail(fmt::format("tokens: found {}, wanted 0 or more", *tokens));
  const auto item = static_cast<std::int64_t>(size_of(type));
  std::int64_t row = 0;    // bytes of a token
  std::int64_t total = 0;  // bytes wanted
  const bool too_large = __builtin_mul_overflow(layers, top_k, &row) || __builtin_mul_overflow(row, item, &row) ||
                         (tokens && __builtin_mul_overflow(*tokens, row, &total));
  const std::string shape = fmt::format("{} layers of {} ids of {} bytes", layers, top_k, item);
  if (too_large) fail(fmt::format("found {}, wanted fewer than 2^63 bytes", shape));
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (tokens && size != total) {
    fail(fmt::format("found {} bytes, wanted {} for {} tokens of {}", size, total, *tokens, shape));
  }
  if (!tokens && size % row != 0) {
    fail(fmt::format("found {} bytes, wanted a multiple of {} for {}", size, row, shape));
  }
  return {.data = bytes.data(),
          .type = type,
          .tokens = size / row,
          .layers = layers,
          .top_k = top_k,
          .token_stride = row,
          .layer_stride = top_k * item,
          .id_stride = item};
}

}  // namespace routepack
