// SPDX-License-Identifier: Apache-2.0
// Memory for what is on its way.
#pragma once

#include <cstddef>
#include <memory>

namespace routepack {

/// Aligned to 64 at least, not zeroed, and in large pages where the system gives them: on 4 KiB pages first touches
/// cost as much as the copies. @throws std::bad_alloc
std::shared_ptr<std::byte[]> staging_memory(std::size_t bytes);

}  // namespace routepack
