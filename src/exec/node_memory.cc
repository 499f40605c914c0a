// SPDX-License-Identifier: Apache-2.0
#include "exec/node_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>

#include "core/bytes.h"

namespace routepack {
namespace {

using Bytes = std::vector<std::byte>;

std::shared_ptr<std::byte> own_memory(std::size_t size) {
  void* memory = std::calloc(std::max<std::size_t>(size, 1), 1);
  if (memory == nullptr) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory), [](std::byte* bytes) { std::free(bytes); }};
}

/// The same for processes that find each other under /proc.
std::string name_of_host() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat space{};
  if (boot.empty() || stat("/proc/self/ns/pid", &space) != 0) return {};
  return fmt::format("{} {} {}", boot, space.st_ino, geteuid());
}

std::shared_ptr<std::byte> mapped(int file, std::size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(memory), [size](std::byte* bytes) { munmap(bytes, size); }};
}

/// A file without a name, closed at the end of the scope.
class MemoryFile {
 public:
  explicit MemoryFile(int file) : file_(file) {}
  ~MemoryFile() {
    if (file_ >= 0) close(file_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  [[nodiscard]] int get() const { return file_; }
  [[nodiscard]] bool is_open() const { return file_ >= 0; }

 private:
  int file_;
};

/// Reserved at once: a page that cannot be had later would kill the process.
int create_memory_file(std::size_t size) {
  const int file = memfd_create("routepack-loads", MFD_CLOEXEC);
  if (file < 0) return -1;
  if (posix_fallocate(file, 0, static_cast<off_t>(size)) == 0) return file;
  close(file);
  return -1;
}

/// What a process says about the file that it made for its host, if it made one.
struct Offer {
  std::int64_t process = 0;
  std::int64_t file = -1;
  std::int64_t inode = 0;
};

/// The file of another process, or −1 when it cannot be had, or is not the one that was offered.
int open_offered(const Offer& offer, std::size_t size) {
  if (offer.file < 0) return -1;
  const int file = open(fmt::format("/proc/{}/fd/{}", offer.process, offer.file).c_str(), O_RDWR | O_CLOEXEC);
  struct stat found{};
  const bool right = file >= 0 && fstat(file, &found) == 0 && std::int64_t(found.st_ino) == offer.inode &&
                     found.st_size == static_cast<off_t>(size);
  if (right || file < 0) return file;
  close(file);
  return -1;
}

template <class T>
std::vector<Bytes> tell(Executor& executor, const T& mine) {
  Bytes bytes;
  put(bytes, mine);
  return executor.gather(bytes);
}

}  // namespace

NodeMemory NodeMemory::make(Executor& executor, std::size_t size) {
  NodeMemory memory;
  memory.size_ = size;
  if (executor.alone() || size == 0) {
    memory.bytes_ = own_memory(size);
    return memory;
  }
  // Who is where; the first of a host makes the file, and holds it open until the others have it.
  const std::string host = name_of_host();
  Bytes said;
  put_list(said, std::span<const char>(host));
  const auto hosts = executor.gather(said);
  const std::size_t me = executor.rank();
  const auto beside = [&](std::size_t r) { return r == me || (!host.empty() && hosts[r] == hosts[me]); };
  std::size_t first = 0;
  while (!beside(first)) ++first;
  bool others = false;
  for (std::size_t r = 0; r < hosts.size(); ++r) others = others || (r != me && beside(r));

  MemoryFile file(first == me && others ? create_memory_file(size) : -1);
  Offer mine{.process = getpid(), .file = file.get()};
  struct stat made{};
  if (file.is_open() && fstat(file.get(), &made) == 0) mine.inode = static_cast<std::int64_t>(made.st_ino);
  const auto offers = tell(executor, mine);
  const MemoryFile theirs(first != me ? open_offered(ByteReader(offers[first]).get<Offer>(), size) : -1);
  if (file.is_open()) memory.bytes_ = mapped(file.get(), size);
  if (theirs.is_open()) memory.bytes_ = mapped(theirs.get(), size);

  const auto attached = tell(executor, static_cast<std::uint8_t>(memory.bytes_ != nullptr));
  const auto shares = [&](std::size_t r) { return beside(r) && ByteReader(attached[r]).get<std::uint8_t>() != 0; };
  memory.on_this_node_.assign(hosts.size(), false);
  if (!memory.bytes_ || !shares(first)) {
    memory.bytes_ = own_memory(size);
    memory.on_this_node_[me] = true;
    return memory;
  }
  memory.sharers_ = 0;
  for (std::size_t r = 0; r < hosts.size(); ++r) {
    if (!shares(r)) continue;
    if (r == me) memory.index_ = memory.sharers_;
    memory.on_this_node_[r] = true;
    ++memory.sharers_;
  }
  return memory;
}

}  // namespace routepack
