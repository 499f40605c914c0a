// SPDX-License-Identifier: Apache-2.0
// Any text is a grid layout or a refusal of one line; a layout survives being written and read, its lanes partition
// every parameter, and it says how many bytes each lane holds.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "routepack/error.h"
#include "routepack/grid_layout.h"

namespace {

using namespace routepack;

void require(bool condition) {
  if (!condition) std::abort();
}

void look_at(const GridLayout& layout) {
  // A layout may have billions of slots' worth of numbers in few bytes of text; the first ones are like the others.
  const std::int32_t layers = layout.layers() < 3 ? layout.layers() : 3;
  const std::int32_t slots = layout.slots() < 3 ? layout.slots() : 3;
  for (const LayerId layer : IdRange<LayerId>(layers)) {
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      for (std::int32_t k = 0; k < static_cast<std::int32_t>(layout.parameters().size()); ++k) {
        std::int64_t end = 0;
        for (const LaneRange& range : layout.lanes_of(layer, slot, k)) {
          require(range.begin == end && range.size() > 0 && range.lane >= 0 && range.lane < layout.grid().edp);
          require(layout.range_of(layer, slot, k, range.lane) == range);
          end = range.end;
        }
        require(end == layout.parameters()[static_cast<std::size_t>(k)].elements());
      }
      for (std::int32_t tensor = 0; tensor <= layout.canary(); ++tensor) {
        require(layout.bytes_on(layer, slot, tensor, 0) >= 0);
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const GridLayout layout = GridLayout::from_json(std::string(data, data + size), "layout.json");
    const std::string written = layout.to_json();
    const GridLayout again = GridLayout::from_json(written, "layout.json");
    require(again == layout && again.to_json() == written && again.fingerprint() == layout.fingerprint());
    look_at(layout);
  } catch (const InvalidInput& error) {
    require(std::string(error.what()).find_first_of("\n\r") == std::string::npos);
  }
  return 0;
}
