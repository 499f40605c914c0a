// SPDX-License-Identifier: Apache-2.0
// Any text is a plan or a refusal of one line; a plan survives being written and read, and checking it against a window
// ends in validated types or a refusal.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "routepack/error.h"
#include "routepack/plan_file.h"
#include "routepack/window.h"

namespace {

/// 4 samples, 1 layer, 4 experts.
const routepack::Window& small_window() {
  static constexpr std::array<std::int32_t, 4> kLengths = {6, 4, 8, 2};
  static constexpr std::array<std::uint32_t, 16> kCounts = {3, 3, 0, 0, 4, 0, 0, 0, 0, 0, 4, 4, 1, 0, 0, 1};
  static const routepack::Window kWindow = [] {
    routepack::WindowArrays arrays;
    arrays.samples = 4;
    arrays.layers = 1;
    arrays.experts = 4;
    arrays.top_k = 1;
    arrays.lengths = kLengths;
    arrays.counts = std::span<const std::uint32_t>(kCounts);
    return routepack::Window(std::move(arrays), nullptr);
  }();
  return kWindow;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  try {
    const routepack::PlanRecord record = routepack::parse_plan(text, "plan.json");
    const std::string written = routepack::to_json(record);
    const routepack::PlanRecord again = routepack::parse_plan(written, "plan.json");
    if (routepack::to_json(again) != written) std::abort();
    if (routepack::plan_hash(routepack::to_json(again)) != routepack::plan_hash(written)) std::abort();
    routepack::plan_hash(text);
    routepack::check_record(record, small_window());
  } catch (const routepack::InvalidInput& error) {
    if (std::string(error.what()).find_first_of("\n\r") != std::string::npos) std::abort();
  }
  return 0;
}
