// SPDX-License-Identifier: Apache-2.0
// Files as the library touches them: mapped for reading, whole or not at all for writing.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace routepack {

/// A regular file mapped read-only. Shared, so that views into it can outlive the opening scope.
class MappedFile {
 public:
  /// @throws IoError for a missing, unreadable or non-regular file (a directory, a pipe).
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

/// Whole contents of a text file of at most `limit` bytes.
/// @throws IoError, FormatError when it is larger
std::string read_text(const std::filesystem::path& path, std::size_t limit = std::size_t{1} << 31);

/// Appends bytes to a file under construction.
using WriteSink = std::function<void(std::span<const std::byte>)>;

/// A file that is complete on disk beside its target and takes its place in one step: readers see the old file or the
/// new one, and a failure or a kill leaves the old one. Symbolic links are followed. A target that is a device or a
/// pipe is written through at once instead of being replaced. Several files can be staged before the first is
/// committed.
class StagedFile {
 public:
  /// Lets `fill` produce the contents.
  /// @throws IoError (no space, no permission, a directory where a file is wanted)
  StagedFile(std::filesystem::path path, const std::function<void(const WriteSink&)>& fill);
  StagedFile(std::filesystem::path path, std::string_view text);
  /// Removes what was never committed.
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  /// @throws IoError
  void commit();

 private:
  void discard() noexcept;

  std::filesystem::path path_;
  std::filesystem::path target_;     // behind links; empty for a device
  std::filesystem::path temporary_;  // empty once committed
};

/// A StagedFile committed at once.
/// @throws IoError
void write_atomically(const std::filesystem::path& path, const std::function<void(const WriteSink&)>& fill);
void write_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace routepack
