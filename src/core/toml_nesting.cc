// SPDX-License-Identifier: Apache-2.0
#include "core/toml_nesting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "routepack/error.h"

namespace routepack {
namespace {

constexpr int kMaxKeyParts = 16;
constexpr int kMaxBrackets = 16;

/// The position behind a string that begins at `at`. An unclosed one ends at the line's or the text's end, where the
/// parser stops too.
std::size_t skip_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const bool long_form = text.substr(at, 3) == std::string(3, quote);
  const bool escapes = quote == '"';
  std::size_t i = at + (long_form ? 3 : 1);
  while (i < text.size()) {
    if (escapes && text[i] == '\\') {
      i += 2;
    } else if (!long_form && text[i] == '\n') {
      return i;
    } else if (!long_form && text[i] == quote) {
      return i + 1;
    } else if (long_form && text.substr(i, 3) == std::string(3, quote)) {
      // Up to two quotes may stand right before the closing three.
      i += 3;
      for (int extra = 0; extra < 2 && i < text.size() && text[i] == quote; ++extra) ++i;
      return i;
    } else {
      ++i;
    }
  }
  return text.size();
}

[[noreturn]] void refuse(std::string_view text, std::size_t at, const std::string& where, std::string_view what) {
  const std::string_view before = text.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? at + 1 : at - newline;
  throw FormatError(fmt::format("{}:{}:{}: invalid TOML: {}", where, line, column, what));
}

}  // namespace

void refuse_deep_toml(std::string_view text, const std::string& where) {
  int parts = 1;
  int brackets = 0;
  for (std::size_t i = 0; i < text.size();) {
    switch (text[i]) {
      case '"':
      case '\'':
        i = skip_string(text, i);
        continue;
      case '#':
        i = std::min(text.find('\n', i), text.size());
        continue;
      case '.':
        if (++parts > kMaxKeyParts) refuse(text, i, where, fmt::format("a key of more than {} parts", kMaxKeyParts));
        break;
      case '[':
      case '{':
        parts = 1;
        if (++brackets > kMaxBrackets) refuse(text, i, where, fmt::format("brackets more than {} deep", kMaxBrackets));
        break;
      case ']':
      case '}':
        parts = 1;
        brackets = std::max(brackets - 1, 0);
        break;
      case ',':
      case '=':
      case '\n':
        parts = 1;
        break;
      default:
        break;
    }
    ++i;
  }
}

}  // namespace routepack
