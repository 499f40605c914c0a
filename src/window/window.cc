// SPDX-License-Identifier: Apache-2.0
#include "routepack/window.h"

#include <algorithm>

#include "window/validate.h"

namespace routepack {

Window::Window(WindowArrays arrays, std::shared_ptr<const void> owner, const std::string& where)
    : arrays_(std::move(arrays)), owner_(std::move(owner)) {
  validate(arrays_, where);
}

std::optional<std::int32_t> Window::recorded(SampleId i, LayerId l) const {
  if (arrays_.recorded.empty() || i.value() >= samples()) return std::nullopt;
  const auto layers = static_cast<std::size_t>(arrays_.layers);
  const bool per_layer = arrays_.recorded.size() == static_cast<std::size_t>(arrays_.samples) * layers;
  return arrays_.recorded[per_layer ? i * layers + l : i];
}

bool Window::lacks_routes(SampleId i) const {
  if (arrays_.recorded.empty() || i.value() >= samples()) return false;
  const std::size_t per_sample = arrays_.recorded.size() / static_cast<std::size_t>(arrays_.samples);
  return std::ranges::all_of(arrays_.recorded.subspan(i * per_sample, per_sample),
                             [](std::int32_t tokens) { return tokens == 0; });
}

}  // namespace routepack
