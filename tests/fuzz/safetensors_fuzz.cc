// SPDX-License-Identifier: Apache-2.0
// Any bytes are a window or an error of ours, and a window that was read can be used.
#include <cstddef>
#include <cstdint>
#include <span>

#include "routepack/error.h"
#include "routepack/window.h"
#include "window/safetensors.h"
#include "window/window_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    (void)routepack::parse_safetensors(bytes, "fuzz");
    const routepack::Window window = routepack::parse_window(bytes, nullptr, "fuzz");
    (void)window.fingerprint();
    for (const auto i : window.sample_ids()) (void)window.lacks_routes(i);
  } catch (const routepack::InternalError&) {
    throw;  // a bug of ours, not the input's
  } catch (const routepack::Error&) {
  }
  return 0;
}
