// SPDX-License-Identifier: Apache-2.0
// Figures for people (tables within 100 columns) and for programs (JSON).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "routepack/plan_file.h"

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

Json score_json(const Score& score);
Json metrics_json(const Evaluation& evaluation, double cv_global);

/// `text` as UTF-8, whatever bytes a file name in it has.
std::string printable(const std::string& text);

/// Prints one JSON document and a line end to standard output.
void print_json(const Json& value);

}  // namespace routepack::cli
