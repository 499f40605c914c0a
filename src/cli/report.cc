// SPDX-License-Identifier: Apache-2.0
#include "cli/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace routepack::cli {

std::string with_commas(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::ptrdiff_t sign = number < 0 ? 1 : 0;
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > sign; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

std::string fixed(double value, int digits) {
  return fmt::format("{:.{}f}", value, digits);
}

std::string change(double from, double to) {
  if (from == 0.0) return "";
  return fmt::format("{:+.1f} %", 100.0 * (to / from - 1.0));
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string wrapped(const std::string& text, std::size_t indent) {
  std::string result;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    const std::size_t margin = std::min(line.find_first_not_of(' '), line.size());
    std::size_t column = 0;
    std::size_t at = 0;
    while (at < line.size()) {
      const std::size_t word_begin = std::min(line.find_first_not_of(' ', at), line.size());
      const std::size_t word_end = std::min(line.find(' ', word_begin), line.size());
      const std::string_view word = line.substr(at, word_end - at);
      if (at > margin && column + display_width(word) > kColumns) {
        const std::string_view bare = line.substr(word_begin, word_end - word_begin);
        result += '\n' + std::string(margin + indent, ' ');
        result += bare;
        column = margin + indent + display_width(bare);
      } else {
        result += word;
        column += display_width(word);
      }
      at = word_end;
    }
    if (end < text.size()) result += '\n';
    begin = end + 1;
  }
  return result;
}

std::string headed(const std::string& head, const std::string& text) {
  const bool fits = display_width(head) + 2 + display_width(text) <= kColumns + (text.ends_with('\n') ? 1 : 0);
  return head + (fits ? ": " : ":\n  ") + text;
}

std::string shortened(const std::string& text, std::size_t columns) {
  if (display_width(text) <= columns) return text;
  if (columns == 0) return "";
  std::size_t at = 0;
  for (std::size_t kept = 0; kept + 1 < columns; ++kept) {
    do ++at;
    while (at < text.size() && (text[at] & 0xC0) == 0x80);
  }
  return text.substr(0, at) + "…";
}

std::string Table::text() const {
  std::vector<std::size_t> width;
  for (const auto& row : rows_) {
    width.resize(std::max(width.size(), row.size()), 0);
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], display_width(row[c]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line = " ";
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(width[c] - display_width(row[c]), ' ');
      line += c == 0 ? " " + row[c] + padding : "  " + padding + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

Json score_json(const Score& score) {
  return Json{{"max_shard", score.max_shard}, {"total", score.total}, {"worst_row", score.worst_row}};
}

Json metrics_json(const Evaluation& evaluation, double cv_global) {
  return Json{{"cv_global", cv_global},
              {"expert_peak_sum", evaluation.expert_peak_sum},
              {"tail_peak", evaluation.tail_peak},
              {"ep_efficiency", evaluation.ep_efficiency},
              {"attention", evaluation.attention},
              {"joint", evaluation.score.max_shard}};
}

std::string printable(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

std::string one_line(const std::string& text) {
  std::string line = printable(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

void print_json(const Json& value) {
  fmt::print("{}\n", value.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace routepack::cli
