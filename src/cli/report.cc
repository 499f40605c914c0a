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

void print_json(const Json& value) {
  fmt::print("{}\n", value.dump(2, ' ', false, Json::error_handler_t::replace));
}

}  // namespace routepack::cli
