// SPDX-License-Identifier: Apache-2.0
// Bytes, prices and the values of --moves.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/integer.h"
#include "routepack/cost.h"
#include "routepack/error.h"
#include "routepack/moves.h"
#include "window/generator/presets.h"

namespace routepack {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;

struct Unit {
  std::string_view name;
  std::int64_t bytes;
};
// Longer names first: every one ends in B.
constexpr std::array kUnits = {Unit{"KiB", 1 << 10},  Unit{"MiB", 1 << 20},      Unit{"GiB", 1 << 30}, Unit{"KB", 1000},
                               Unit{"MB", 1'000'000}, Unit{"GB", 1'000'000'000}, Unit{"B", 1}};
constexpr std::size_t kMostDecimals = 9;

constexpr std::string_view kMoves = "moves";

[[noreturn]] void refuse(std::string_view name, std::string_view text, std::string_view wanted) {
  throw InvalidInput(fmt::format("{}: found \"{}\", wanted {}", name, text, wanted));
}

std::optional<double> number(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

bool is_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

/// Decimal bytes without a detour through doubles, rounded down.
std::int64_t read_bytes(std::string_view name, std::string_view text, std::string_view digits, std::int64_t unit) {
  const std::size_t point = std::min(digits.find('.'), digits.size());
  const std::string_view whole = digits.substr(0, point);
  const std::string_view decimals = point < digits.size() ? digits.substr(point + 1) : "0";
  if (!is_digits(whole) || !is_digits(decimals) || decimals.size() > kMostDecimals) {
    refuse(name, text, "a number with up to 9 decimals before the unit, like 200MB or 1.5GiB");
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(whole.data(), whole.data() + whole.size(), value);
  if (error != std::errc{} || end != whole.data() + whole.size() || value > kMostBytes / unit) {
    refuse(name, text, fmt::format("at most {} bytes", kMostBytes));
  }
  std::int64_t numerator = 0;
  std::int64_t denominator = 1;
  for (const char c : decimals) {
    numerator = numerator * 10 + (c - '0');
    denominator *= 10;
  }
  return value * unit + numerator * unit / denominator;
}

}  // namespace

std::int64_t gated_ffn_parameters(std::int64_t hidden, std::int64_t width) {
  if (hidden < 1 || width < 1 || hidden > kMostBytes / 3 / width) {
    throw InvalidInput(
        fmt::format("expert: found {} x {}, wanted positive widths of at most 2^50 parameters", hidden, width));
  }
  return 3 * hidden * width;
}

std::int64_t expert_state_bytes(std::int64_t parameters, const StateLayout& layout) {
  constexpr std::int64_t kMostPerParameter = 64;
  const auto sane = [](std::int64_t bytes) { return bytes >= 0 && bytes <= kMostPerParameter; };
  if (parameters < 0 || parameters > kMostBytes || !sane(layout.weight_bytes) || !sane(layout.master_bytes) ||
      !sane(layout.moment_bytes) || layout.optimizer_shards < 1) {
    throw InvalidInput(fmt::format(
        "expert state: found {} parameters of {} + {} + {} bytes over {} shards, wanted 0 to 64 bytes each "
        "and at least one shard",
        parameters, layout.weight_bytes, layout.master_bytes, layout.moment_bytes, layout.optimizer_shards));
  }
  return parameters * layout.weight_bytes +
         ceil_div(parameters * (layout.master_bytes + layout.moment_bytes), layout.optimizer_shards);
}

std::int64_t expert_state_bytes(std::string_view model, const StateLayout& layout) {
  const Preset& preset = find_preset(model);
  return expert_state_bytes(gated_ffn_parameters(preset.hidden, preset.moe_width), layout);
}

std::string preset_of(std::string_view model) {
  std::string name(model.substr(model.find_last_of('/') + 1));
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  const auto known = presets();
  return std::ranges::find(known, name, &Preset::name) == known.end() ? std::string() : name;
}

std::optional<std::int64_t> parse_bytes(std::string_view text, std::string_view name) {
  for (const Unit& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    return read_bytes(name, text, text.substr(0, text.size() - unit.name.size()), unit.bytes);
  }
  return std::nullopt;
}

double expert_flops(std::string_view model) {
  const Preset& preset = find_preset(model);
  return 6.0 * static_cast<double>(gated_ffn_parameters(preset.hidden, preset.moe_width));
}

double move_price(std::int64_t state_bytes, const MoveRates& rates, double token_value) {
  const std::array positive = {rates.link_bytes_per_second, rates.flops_per_second, rates.flops_per_routed_token,
                               rates.steps, rates.parallel_swaps};
  if (state_bytes < 0 || !(token_value >= 0.0) ||
      std::ranges::any_of(positive, [](double rate) { return !(rate > 0.0) || !std::isfinite(rate); })) {
    throw InvalidInput(fmt::format(
        "move price: found {} bytes at {} B/s, {} FLOP/s, {} FLOP per routed token, {} steps, {} swaps at once, "
        "wanted positive rates",
        state_bytes, positive[0], positive[1], positive[2], positive[3], positive[4]));
  }
  const double seconds_per_swap = static_cast<double>(state_bytes) / rates.link_bytes_per_second;
  const double routed_tokens = seconds_per_swap * rates.flops_per_second / rates.flops_per_routed_token;
  return routed_tokens / 2.0 / rates.steps / rates.parallel_swaps * token_value;
}

void MoveBudget::add(std::string_view text) {
  constexpr std::string_view kPrice = "price:";
  if (text == "free") return;
  if (text.starts_with(kPrice)) {
    const std::string_view prices = text.substr(kPrice.size());
    const std::size_t comma = std::min(prices.find(','), prices.size());
    const auto near = number(prices.substr(0, comma));
    const auto far = comma < prices.size() ? number(prices.substr(comma + 1)) : near;
    if (!near || !far || *near < 0.0 || *far < *near || *far > kMaxCost) {
      refuse(kMoves, text, "price:X or price:X,Y with 0 <= X <= Y");
    }
    price = std::max(price, *near);
    price_between_nodes = std::max(price_between_nodes, *far);
    return;
  }
  if (const auto bytes = parse_bytes(text, kMoves)) {
    rank_bytes = std::min(rank_bytes.value_or(*bytes), *bytes);
    return;
  }
  const auto value = number(text);
  if (!value) refuse(kMoves, text, "free, a share like 0.05, bytes per rank like 200MB, or price:X[,Y]");
  if (*value < 0.0 || *value > 1.0) refuse(kMoves, text, "a share of all experts from 0 to 1, or a unit such as MB");
  share = std::min(share, *value);
}

MoveBudget MoveBudget::parse(std::span<const std::string> values) {
  MoveBudget budget;
  for (const std::string& value : values) budget.add(value);
  return budget;
}

std::int64_t MoveBudget::most_experts(std::int64_t all) const {
  // 0.29 of 100 are 29, although the product of the doubles is a little less.
  constexpr double kRounding = 1.0 + 1e-12;
  return std::min(all, static_cast<std::int64_t>(share * static_cast<double>(all) * kRounding));
}

}  // namespace routepack
