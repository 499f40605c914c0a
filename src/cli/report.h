// SPDX-License-Identifier: Apache-2.0
// Figures for people (tables within 100 columns) and for programs (JSON).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "routepack/score.h"

namespace routepack::cli {

/// 103800 → «103,800».
std::string with_commas(std::int64_t number);
/// A value to `digits` decimals.
std::string fixed(double value, int digits);
/// «−3.1 %» of `from`, empty when `from` is 0.
std::string change(double from, double to);

/// Columns padded to their widest entry: the first to the left, the others to the right. Two spaces indent.
class Table {
 public:
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// Characters on a terminal of UTF-8 text (no combining characters here).
std::size_t display_width(std::string_view text);

/// Columns that text for people keeps within, file names apart.
inline constexpr std::size_t kColumns = 100;

/// Sentences, one per line, broken at spaces so that they keep within kColumns; what goes on is indented by `indent`
/// more than its line. A longer word stays whole.
std::string wrapped(const std::string& text, std::size_t indent = 2);

/// «head: text» for a file name and what is said about it; in two lines where one would be wider than kColumns.
std::string headed(const std::string& head, const std::string& text);

/// Valid UTF-8 cut to `columns`, with «…» where something is missing.
std::string shortened(const std::string& text, std::size_t columns);

Json score_json(const Score& score);
Json metrics_json(const Evaluation& evaluation, double cv_global);

/// `text` as UTF-8, whatever bytes a file name in it has.
std::string printable(const std::string& text);

/// The same in one line: control characters become spaces.
std::string one_line(const std::string& text);

/// Prints one JSON document and a line end to standard output.
void print_json(const Json& value);

}  // namespace routepack::cli
