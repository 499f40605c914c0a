// SPDX-License-Identifier: Apache-2.0
// Bytes that are kept in order, in memory as long as they are few.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace routepack::replay {

/// An append-only store. Beyond `memory_bytes` its contents wait in a temporary file without a name, which vanishes
/// with the process, however that ends.
class Spill {
 public:
  Spill(std::size_t memory_bytes, std::filesystem::path folder);
  ~Spill();
  Spill(const Spill&) = delete;
  Spill& operator=(const Spill&) = delete;

  /// Where the bytes begin. @throws IoError; then nothing was appended
  std::uint64_t append(std::span<const std::byte> bytes);
  /// @throws IoError
  void read(std::uint64_t begin, std::span<std::byte> bytes) const;
  /// Where the next bytes will begin.
  [[nodiscard]] std::uint64_t end() const { return in_file_ + tail_.size(); }
  /// Forgets everything from `begin` on.
  void rewind(std::uint64_t begin);

 private:
  void flush();

  std::size_t memory_bytes_;
  std::filesystem::path folder_;
  int file_ = -1;
  std::uint64_t in_file_ = 0;
  std::vector<std::byte> tail_;  // what follows the file's contents
};

}  // namespace routepack::replay
