// SPDX-License-Identifier: Apache-2.0
// Any text is a cost model or a refusal of one line; a model survives being written and read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "routepack/cost.h"
#include "routepack/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using routepack::CostModel;
  const std::string text(data, data + size);
  try {
    const CostModel cost = CostModel::parse(text, "cost.toml");
    if (!(CostModel::parse(cost.to_toml(), "again") == cost)) std::abort();
  } catch (const routepack::InvalidInput& error) {
    if (std::string(error.what()).find_first_of("\n\r") != std::string::npos) std::abort();
  }
  return 0;
}
