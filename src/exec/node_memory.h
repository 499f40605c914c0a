// SPDX-License-Identifier: Apache-2.0
// Memory that processes of a team on one host have once.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "exec/executor.h"

namespace routepack {

/// Zeros at first. Processes of one host write different bytes of it and read what the others wrote after the next
/// collective call. Where sharing is not possible (another host, another container, no memory for it) a process has
/// memory of its own: then it is a host of one.
class NodeMemory {
 public:
  NodeMemory() = default;
  /// All processes of a team call it together, with one size. Alone it is plain memory.
  /// @throws std::bad_alloc
  static NodeMemory make(Executor& executor, std::size_t size);

  [[nodiscard]] std::byte* data() const { return bytes_.get(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  /// This process among those that share the memory, 0 … sharers − 1.
  [[nodiscard]] std::size_t index() const { return index_; }
  [[nodiscard]] std::size_t sharers() const { return sharers_; }
  /// Whether a process of the team shares the memory with this one.
  [[nodiscard]] bool shares_with(std::size_t rank) const { return rank < on_this_node_.size() && on_this_node_[rank]; }

 private:
  std::shared_ptr<std::byte> bytes_;
  std::size_t size_ = 0;
  std::size_t index_ = 0, sharers_ = 1;
  std::vector<bool> on_this_node_;  // [rank]; empty when alone
};

}  // namespace routepack
