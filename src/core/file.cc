// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "routepack/error.h"

namespace routepack {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const fs::path& path, std::string_view doing, int error) {
  throw IoError(fmt::format("{}: cannot {}: {}", path.string(), doing, std::strerror(error)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  Descriptor& operator=(Descriptor&&) = delete;

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  /// Closes and reports: some file systems tell of a full disk only here.
  int close() {
    const int fd = std::exchange(fd_, -1);
    return fd >= 0 && ::close(fd) != 0 ? errno : 0;
  }
  void reset() { (void)close(); }

 private:
  int fd_;
};

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

/// Opens for reading and makes sure that it is a regular file. O_NONBLOCK: opening a pipe must not wait for a writer.
Descriptor open_regular(const fs::path& path, struct stat& status) {
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) fail(path, "open for reading", errno);
  if (::fstat(fd.get(), &status) != 0) fail(path, "inspect", errno);
  if (!S_ISREG(status.st_mode)) {
    throw IoError(fmt::format("{}: found {}, wanted a regular file", path.string(), kind_of(status.st_mode)));
  }
  return fd;
}

void write_all(int fd, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(path, "write", errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

/// Gathers small appends into large writes.
class BufferedSink {
 public:
  BufferedSink(int fd, const fs::path& path) : fd_(fd), path_(path) { buffer_.reserve(kBuffer); }
  void append(std::span<const std::byte> bytes) {
    if (buffer_.size() + bytes.size() > kBuffer) flush();
    if (bytes.size() >= kBuffer) return write_all(fd_, bytes, path_);
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  void flush() {
    write_all(fd_, buffer_, path_);
    buffer_.clear();
  }

 private:
  static constexpr std::size_t kBuffer = std::size_t{1} << 18;
  int fd_;
  const fs::path& path_;
  std::vector<std::byte> buffer_;
};

void fill_descriptor(int fd, const fs::path& path, const std::function<void(const WriteSink&)>& fill) {
  BufferedSink sink(fd, path);
  fill([&](std::span<const std::byte> bytes) { sink.append(bytes); });
  sink.flush();
}

/// A new file beside `target`, so that it can be renamed into place, and its name. Names that a killed process left
/// behind are stepped over: in containers process ids repeat. The name is short, as the target's may be the longest
/// allowed.
Descriptor create_temporary(const fs::path& target, const fs::path& path, fs::path& name) {
  static std::atomic<unsigned> counter{0};  // two threads of one process may write into one folder
  constexpr int kAttempts = 10'000;
  for (int attempt = 1;; ++attempt) {
    const fs::path candidate =
        target.parent_path() / fmt::format(".routepack.{}.{}.tmp", ::getpid(), counter.fetch_add(1));
    Descriptor fd(::open(candidate.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd.valid()) {
      name = candidate;
      return fd;
    }
    if (errno != EEXIST || attempt == kAttempts) fail(path, "create", errno);
  }
}

/// rename() would replace a link instead of the file behind it, which need not exist yet.
fs::path behind_links(fs::path path) {
  std::error_code error;
  while (fs::is_symlink(path, error)) {  // a loop of links was refused before
    const fs::path next = fs::read_symlink(path, error);
    if (error) fail(path, "follow the link", error.value());
    path = path.parent_path() / next;  // an absolute `next` replaces the whole
  }
  return path;
}

/// Into a device or a pipe. Opening does not wait for a pipe's reader: without one it fails.
void write_through(const fs::path& device, const std::function<void(const WriteSink&)>& fill) {
  Descriptor fd(::open(device.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) fail(device, "open for writing", errno);
  if (::fcntl(fd.get(), F_SETFL, 0) != 0) fail(device, "open for writing", errno);
  fill_descriptor(fd.get(), device, fill);
  if (const int error = fd.close()) fail(device, "write", error);
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const fs::path& path) {
  struct stat status{};
  const Descriptor fd = open_regular(path, status);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return std::shared_ptr<const MappedFile>(new MappedFile({}));
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) fail(path, "map", errno);
  return std::shared_ptr<const MappedFile>(new MappedFile({static_cast<const std::byte*>(address), size}));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::string read_text(const fs::path& path, std::size_t limit) {
  struct stat status{};
  const Descriptor fd = open_regular(path, status);
  if (static_cast<std::size_t>(status.st_size) > limit) {
    throw FormatError(fmt::format("{}: file size: found {} bytes, wanted at most {}", path.string(),
                                  static_cast<std::size_t>(status.st_size), limit));
  }
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "read", errno);
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  text.resize(filled);
  return text;
}

StagedFile::StagedFile(fs::path path, const std::function<void(const WriteSink&)>& fill) : path_(std::move(path)) {
  struct stat status{};
  const bool exists = ::stat(path_.c_str(), &status) == 0;
  // A name too long, a loop of links, a file where a folder is wanted: rename() would tell only at the end.
  if (!exists && errno != ENOENT) fail(path_, "write", errno);
  if (exists && S_ISDIR(status.st_mode)) {
    throw IoError(fmt::format("{}: found a directory, wanted a file to write", path_.string()));
  }
  if (exists && !S_ISREG(status.st_mode)) {
    write_through(path_, fill);
    return;
  }

  target_ = behind_links(path_);
  if (target_.filename().empty()) fail(path_, "write", EISDIR);
  try {
    Descriptor fd = create_temporary(target_, path_, temporary_);
    // The new file keeps the old one's permissions. Where that cannot be, the contents still matter more.
    if (exists) (void)::fchmod(fd.get(), status.st_mode & 07777);
    fill_descriptor(fd.get(), path_, fill);
    if (::fsync(fd.get()) != 0 && errno != EINVAL) fail(path_, "write", errno);
    if (const int error = fd.close()) fail(path_, "write", error);
  } catch (...) {
    discard();  // no destructor runs for an object that was never complete
    throw;
  }
}

StagedFile::StagedFile(fs::path path, std::string_view text)
    : StagedFile(std::move(path), [&](const WriteSink& sink) { sink(std::as_bytes(std::span(text))); }) {}

StagedFile::~StagedFile() {
  discard();
}

void StagedFile::discard() noexcept {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void StagedFile::commit() {
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(path_, "put in place", errno);
  temporary_.clear();
}

void write_atomically(const fs::path& path, const std::function<void(const WriteSink&)>& fill) {
  StagedFile(path, fill).commit();
}

void write_atomically(const fs::path& path, std::string_view text) {
  StagedFile(path, text).commit();
}

}  // namespace routepack
