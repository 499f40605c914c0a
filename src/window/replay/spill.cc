// SPDX-License-Identifier: Apache-2.0
#include "window/replay/spill.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "core/assert.h"
#include "routepack/error.h"

namespace routepack::replay {
namespace {

[[noreturn]] void fail(const std::filesystem::path& folder, const char* doing, int error) {
  throw IoError(fmt::format("{}: cannot {} a temporary file: {}", folder.string(), doing, std::strerror(error)));
}

int open_nameless(const std::filesystem::path& folder) {
  const int direct = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (direct >= 0) return direct;
  std::string name = (folder / "routepack-spill-XXXXXX").string();  // file systems without O_TMPFILE
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named < 0) fail(folder, "create", errno);
  ::unlink(name.c_str());
  return named;
}

}  // namespace

Spill::Spill(std::size_t memory_bytes, std::filesystem::path folder)
    : memory_bytes_(memory_bytes), folder_(std::move(folder)) {}

Spill::~Spill() {
  if (file_ >= 0) ::close(file_);
}

std::uint64_t Spill::append(std::span<const std::byte> bytes) {
  if (!tail_.empty() && tail_.size() + bytes.size() > memory_bytes_) flush();
  const std::uint64_t begin = in_file_ + tail_.size();
  tail_.insert(tail_.end(), bytes.begin(), bytes.end());
  return begin;
}

void Spill::flush() {
  if (file_ < 0) {
    if (folder_.empty()) folder_ = std::filesystem::temp_directory_path();
    file_ = open_nameless(folder_);
  }
  std::size_t done = 0;
  while (done < tail_.size()) {
    const ssize_t written =
        ::pwrite(file_, tail_.data() + done, tail_.size() - done, static_cast<off_t>(in_file_ + done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(folder_, "write", errno);
    done += static_cast<std::size_t>(written);
  }
  in_file_ += tail_.size();
  tail_.clear();
}

void Spill::read(std::uint64_t begin, std::span<std::byte> bytes) const {
  while (!bytes.empty() && begin < in_file_) {
    const auto wanted = std::min<std::uint64_t>(bytes.size(), in_file_ - begin);
    const ssize_t got = ::pread(file_, bytes.data(), wanted, static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail(folder_, "read", got < 0 ? errno : EIO);
    begin += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  if (bytes.empty()) return;
  ROUTEPACK_ASSERT(begin - in_file_ + bytes.size() <= tail_.size(), "read beyond the end of a spill");
  std::memcpy(bytes.data(), tail_.data() + (begin - in_file_), bytes.size());
}

void Spill::rewind(std::uint64_t begin) {
  ROUTEPACK_ASSERT(begin <= end(), "rewound a spill forwards");
  tail_.resize(begin > in_file_ ? static_cast<std::size_t>(begin - in_file_) : 0);
  if (begin >= in_file_) return;
  in_file_ = begin;
  // What stays behind is overwritten later; giving the space back is a courtesy that may fail.
  (void)!::ftruncate(file_, static_cast<off_t>(in_file_));
}

}  // namespace routepack::replay
