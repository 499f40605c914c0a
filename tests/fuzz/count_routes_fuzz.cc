// SPDX-License-Identifier: Apache-2.0
// Any bytes, taken as ids of any shape, are counted or refused; what is counted adds up.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

#include "routepack/error.h"
#include "routepack/replay.h"

namespace {

/// The first bytes choose options; 0 once they are used up.
class Choices {
 public:
  explicit Choices(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  std::int64_t below(std::int64_t n) { return at_ < bytes_.size() ? bytes_[at_++] % n : 0; }
  [[nodiscard]] std::span<const std::uint8_t> rest() const { return bytes_.subspan(at_); }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

void count(Choices choices) {
  using namespace routepack;
  const auto type = static_cast<IdType>(choices.below(6));
  const std::int64_t layers = choices.below(5);
  const std::int64_t top_k = choices.below(12);
  CountOptions options{.experts = 2 * choices.below(200),
                       .missing = static_cast<MissingRoutes>(choices.below(3)),
                       .invalid = static_cast<InvalidRoutes>(choices.below(2))};
  for (std::int64_t n = choices.below(4); n > 0; --n) options.layers.push_back(choices.below(6) - 1);
  std::vector<std::int32_t> map;
  for (std::int64_t n = choices.below(3) * 8; n > 0; --n) {
    map.push_back(static_cast<std::int32_t>(choices.below(40)) - 1);
  }
  options.physical_to_logical = map;
  std::vector<std::uint8_t> mask;
  const std::int64_t masked = choices.below(9);
  for (std::int64_t n = 0; n < masked; ++n) mask.push_back(static_cast<std::uint8_t>(choices.below(2)));
  const std::int64_t extra = choices.below(4);

  SampleRoutes sample{.ids = RouteIds::from_bytes(std::as_bytes(choices.rest()), type, layers, top_k)};
  if (extra > 0) sample.length = sample.ids.tokens + extra - 2;
  sample.mask = mask;
  if (choices.rest().size() % 3 == 1 && sample.ids.tokens > 0) {  // backwards
    sample.ids.data += (sample.ids.tokens - 1) * sample.ids.token_stride;
    sample.ids.token_stride = -sample.ids.token_stride;
  }
  std::vector<std::uint32_t> counts(
      static_cast<std::size_t>(std::max<std::int64_t>(counted_layers(sample.ids, options) * options.experts, 0)));
  const CountReport report = count_routes(sample, options, counts);
  std::uint64_t rows = 0;
  for (const LayerReport& layer : report) rows += static_cast<std::uint64_t>(layer.recorded + layer.spread);
  if (std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}) != rows * static_cast<std::uint64_t>(top_k)) {
    throw std::logic_error("the counts do not add up");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    count(Choices(std::span(data, size)));
  } catch (const routepack::InternalError&) {
    throw;  // a bug of ours, not the input's
  } catch (const routepack::Error&) {
  }
  return 0;
}
