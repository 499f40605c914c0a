// SPDX-License-Identifier: Apache-2.0
// Any text is the configuration of a model or a refusal of one line; a shape has a finite cost and fits its own window.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "routepack/error.h"
#include "routepack/model_cost.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): bytes as characters
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const routepack::ModelShape shape = routepack::parse_model_shape(text, "config.json");
    const routepack::ParameterCount parameters = routepack::count_parameters(shape);
    if (!std::isfinite(parameters.total) || parameters.activated > parameters.total + parameters.head) std::abort();
    const routepack::DerivedCost derived = routepack::derive_cost(shape, {.capacity = 8192});
    if (derived.cost.stages().empty() || !(derived.unit_flops > 0.0)) std::abort();
    routepack::require_fits(shape, shape.moe_layers(), shape.experts, shape.top_k, "its own window");
    if (routepack::describe(shape).find_first_of("\n\r") != std::string::npos) std::abort();
  } catch (const routepack::InvalidInput& error) {
    if (std::string_view(error.what()).find_first_of("\n\r") != std::string_view::npos) std::abort();
  }
  return 0;
}
