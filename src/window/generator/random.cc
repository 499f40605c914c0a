// SPDX-License-Identifier: Apache-2.0
#include "window/generator/random.h"

#include <Random123/philox.h>

#include "window/generator/portable_math.h"

namespace routepack {

RandomStream::RandomStream(const StreamName& name) {
  const auto seed = static_cast<std::uint64_t>(name.seed);
  key_ = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  counter_ = {0, static_cast<std::uint32_t>(name.purpose) << 24 | static_cast<std::uint32_t>(name.layer),
              static_cast<std::uint32_t>(name.item), static_cast<std::uint32_t>(name.step)};
}

void RandomStream::refill() {
  const r123::Philox4x32::key_type key = {{key_[0], key_[1]}};
  used_ = kBuffered - next_size_;
  for (std::size_t at = used_; at < kBuffered; at += 4) {
    const r123::Philox4x32::ctr_type block =
        r123::Philox4x32()({{counter_[0], counter_[1], counter_[2], counter_[3]}}, key);
    for (std::size_t i = 0; i < 4; ++i) buffer_[at + i] = block[i];
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
