// SPDX-License-Identifier: Apache-2.0
// Any text is a timing or a refusal of one line; a timing has layers, and no time that is negative or not finite.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "routepack/error.h"
#include "routepack/simulate.h"

namespace {

void check(double seconds) {
  if (!(seconds >= 0.0) || !std::isfinite(seconds)) std::abort();
}

void check(const routepack::PerPass& seconds) {
  check(seconds.forward);
  check(seconds.backward);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  try {
    const routepack::StepTiming timing = routepack::StepTiming::parse(text, "timing.toml");
    if (timing.layers.empty() || timing.tile < 1) std::abort();
    for (const routepack::LayerTiming& layer : timing.layers) {
      if (layer.stage.empty()) std::abort();
      check(layer.token);
      check(layer.pair);
      check(layer.expert_weight);
    }
    for (const routepack::PerPass& seconds :
         {timing.expert, timing.active, timing.exchange, timing.exchange_fixed, timing.layer_fixed}) {
      check(seconds);
    }
    check(timing.row);
    check(timing.optimizer);
    if (!(routepack::StepTiming::parse(text, "again") == timing)) std::abort();
  } catch (const routepack::InvalidInput& error) {
    if (std::string(error.what()).find_first_of("\n\r") != std::string::npos) std::abort();
  }
  return 0;
}
