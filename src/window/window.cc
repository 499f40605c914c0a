// SPDX-License-Identifier: Apache-2.0
#include "routepack/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "routepack/error.h"
#include "window/validate.h"

namespace routepack {

Window::Window(WindowArrays arrays, std::shared_ptr<const void> owner, const std::string& where)
    : arrays_(std::move(arrays)), owner_(std::move(owner)) {
  validate(arrays_, where);
}

Window::Window(WindowArrays arrays, std::shared_ptr<const void> owner, std::vector<Window> parts)
    : arrays_(std::move(arrays)), owner_(std::move(owner)), parts_(std::move(parts)) {
  std::int32_t first = 0;
  for (const Window& part : parts_) {
    first_of_part_.push_back(first);
    first += part.samples();
  }
}

Window Window::without_counts(WindowArrays arrays, std::shared_ptr<const void> owner, std::string fingerprint,
                              const std::string& where) {
  validate_without_counts(arrays, where);
  Window window(std::move(arrays), std::move(owner), std::vector<Window>());
  window.fingerprint_ = std::move(fingerprint);
  window.whole_ = false;
  return window;
}

void Window::throw_not_here(SampleId i) {
  throw InvalidInput(fmt::format("window: the counts of sample {} are in another process", i.value()));
}

Window Window::with_fingerprint() const {
  Window window = *this;
  window.fingerprint_ = fingerprint();
  return window;
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
