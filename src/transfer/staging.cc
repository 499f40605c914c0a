// SPDX-License-Identifier: Apache-2.0
#include "transfer/staging.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace routepack {

std::shared_ptr<std::byte[]> staging_memory(std::size_t bytes) {
  constexpr std::size_t kSmall = 64, kLargePage = std::size_t{2} << 20;
  const std::size_t alignment = bytes < kLargePage ? kSmall : kLargePage;
  const std::size_t size = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, size);
  if (memory == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (alignment == kLargePage) ::madvise(memory, size, MADV_HUGEPAGE);  // a wish: nothing depends on it
#endif
  return {static_cast<std::byte*>(memory), [](std::byte* data) { std::free(data); }};
}

}  // namespace routepack
