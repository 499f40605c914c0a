// SPDX-License-Identifier: Apache-2.0
#include "window/generator/random.h"

#include <algorithm>

#include "core/philox.h"
#include "core/portable_math.h"

namespace routepack {

RandomStream::RandomStream(const StreamName& name) : key_(static_cast<std::uint64_t>(name.seed)) {
  counter_ = {0, static_cast<std::uint32_t>(name.purpose) << 24 | static_cast<std::uint32_t>(name.layer),
              static_cast<std::uint32_t>(name.item), static_cast<std::uint32_t>(name.step)};
}

void RandomStream::refill() {
  used_ = kBuffered - next_size_;
  for (std::size_t at = used_; at < kBuffered; at += 4) {
    const auto block = philox(key_, counter_);
    std::ranges::copy(block, buffer_.begin() + static_cast<std::ptrdiff_t>(at));
    ++counter_[0];
  }
  if (next_size_ < kBuffered) next_size_ *= 2;
}

double RandomStream::normal() {
  return portable::normal_quantile(uniform());
}

void RandomStream::normals(std::span<double> values) {
  for (double& value : values) value = normal();
}

}  // namespace routepack
