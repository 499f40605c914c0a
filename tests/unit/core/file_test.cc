// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "routepack/error.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"

namespace routepack {
namespace {

using testing::contents_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::refusal;
using testing::TemporaryFolder;

/// Files may not grow beyond a few bytes while this lives: what a full disk looks like.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    rlimit limit = old_limit_;
    limit.rlim_cur = bytes;
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) throw std::runtime_error("cannot limit the file size");
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    (void)std::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*old_handler_)(int);
  rlimit old_limit_{};
};

mode_t mode_of(const std::filesystem::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) throw std::runtime_error("cannot inspect " + path.string());
  return status.st_mode & 07777;
}

TEST(WriteAtomically, writes_a_new_file) {
  const TemporaryFolder folder;
  write_atomically(folder / "plan.json", "hello");
  EXPECT_EQ(contents_of(folder / "plan.json"), "hello");
  EXPECT_THAT(folder.names(), ElementsAre("plan.json"));
}

TEST(WriteAtomically, joins_small_and_large_pieces_in_order) {
  const TemporaryFolder folder;
  const std::string large(std::size_t{1} << 20, 'x');
  write_atomically(folder / "f", [&](const WriteSink& sink) {
    for (const std::string_view piece : {std::string_view("head"), std::string_view(large), std::string_view("tail")}) {
      sink(std::as_bytes(std::span(piece)));
    }
  });
  EXPECT_EQ(contents_of(folder / "f"), "head" + large + "tail");
}

TEST(WriteAtomically, replaces_an_existing_file_and_keeps_its_permissions) {
  const TemporaryFolder folder;
  const auto path = folder.file("f", "a much longer old text");
  ASSERT_EQ(::chmod(path.c_str(), 0622), 0);
  write_atomically(path, "new");
  EXPECT_EQ(contents_of(path), "new");
  EXPECT_EQ(mode_of(path), 0622U);
}

TEST(WriteAtomically, shows_readers_the_old_file_until_the_new_one_is_whole) {
  const TemporaryFolder folder;
  const auto path = folder.file("f", "old");
  write_atomically(path, [&](const WriteSink& sink) {
    sink(std::as_bytes(std::span(std::string_view("new"))));
    EXPECT_EQ(contents_of(path), "old");
  });
  EXPECT_EQ(contents_of(path), "new");
}

TEST(WriteAtomically, keeps_the_old_file_and_leaves_nothing_behind_when_the_contents_fail) {
  const TemporaryFolder folder;
  const auto path = folder.file("f", "old");
  const auto half = [](const WriteSink& sink) {
    sink(std::as_bytes(std::span(std::string_view("half"))));
    throw std::runtime_error("no more");
  };
  EXPECT_THROW(write_atomically(path, half), std::runtime_error);
  EXPECT_EQ(contents_of(path), "old");
  EXPECT_THAT(folder.names(), ElementsAre("f"));
}

TEST(WriteAtomically, keeps_the_old_file_and_leaves_nothing_behind_when_the_disk_is_full) {
  const TemporaryFolder folder;
  const auto path = folder.file("f", "old");
  const std::string large(100'000, 'x');
  const std::string message = refusal<IoError>([&] {
    const FileSizeLimit limit(4096);
    write_atomically(path, large);
  });
  EXPECT_THAT(message, HasSubstr(path.string() + ": cannot write: File too large"));
  EXPECT_EQ(contents_of(path), "old");
  EXPECT_THAT(folder.names(), ElementsAre("f"));
}

TEST(WriteAtomically, leaves_no_new_file_when_the_disk_is_full) {
  const TemporaryFolder folder;
  refusal<IoError>([&] {
    const FileSizeLimit limit(4096);
    write_atomically(folder / "f", std::string(600'000, 'x'));
  });
  EXPECT_THAT(folder.names(), ElementsAre());
}

TEST(WriteAtomically, refuses_a_directory) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "d");
  EXPECT_THAT(refusal<IoError>([&] { write_atomically(folder / "d", "x"); }),
              HasSubstr((folder / "d").string() + ": found a directory, wanted a file to write"));
  EXPECT_THAT(folder.names(), ElementsAre("d"));
}

TEST(WriteAtomically, refuses_a_path_that_ends_in_a_slash) {
  const TemporaryFolder folder;
  EXPECT_THROW(write_atomically(folder / "d/", "x"), IoError);
  EXPECT_THAT(folder.names(), ElementsAre());
}

TEST(WriteAtomically, names_the_file_when_its_folder_is_missing) {
  const TemporaryFolder folder;
  const auto path = folder / "missing/plan.json";
  EXPECT_THAT(refusal<IoError>([&] { write_atomically(path, "x"); }),
              HasSubstr(path.string() + ": cannot create: No such file or directory"));
}

TEST(WriteAtomically, refuses_a_file_as_a_folder) {
  const TemporaryFolder folder;
  folder.file("f", "old");
  EXPECT_THAT(refusal<IoError>([&] { write_atomically(folder / "f/plan.json", "x"); }), HasSubstr("Not a directory"));
}

TEST(WriteAtomically, follows_a_symbolic_link) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "real");
  folder.file("real/plan.json", "old");
  std::filesystem::create_symlink("real/plan.json", folder / "link");
  write_atomically(folder / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(contents_of(folder / "real/plan.json"), "new");
}

TEST(WriteAtomically, reports_a_full_device_and_does_not_replace_it) {
  EXPECT_THAT(refusal<IoError>([] { write_atomically("/dev/full", "x"); }),
              HasSubstr("/dev/full: cannot write: No space left on device"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

TEST(WriteAtomically, writes_through_a_device) {
  write_atomically("/dev/null", "x");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(WriteAtomically, writes_into_a_pipe) {
  const TemporaryFolder folder;
  const auto pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  write_atomically(pipe, "through");
  std::string received(16, '\0');
  received.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(reader, received.data(), received.size()))));
  ::close(reader);
  EXPECT_EQ(received, "through");
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST(WriteAtomically, does_not_wait_for_the_reader_of_a_pipe) {
  const TemporaryFolder folder;
  const auto pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(refusal<IoError>([&] { write_atomically(pipe, "nobody"); }), HasSubstr("cannot open for writing"));
}

TEST(WriteAtomically, follows_a_link_to_a_file_that_does_not_exist_yet) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("target", folder / "link");
  write_atomically(folder / "link", "text");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(contents_of(folder / "target"), "text");
}

TEST(WriteAtomically, refuses_a_loop_of_links_and_a_name_that_is_too_long) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("b", folder / "a");
  std::filesystem::create_symlink("a", folder / "b");
  EXPECT_THROW(write_atomically(folder / "a", "text"), IoError);
  EXPECT_THROW(write_atomically(folder / std::string(256, 'x'), "text"), IoError);
}

TEST(StagedFile, leaves_nothing_behind_unless_it_is_committed) {
  const TemporaryFolder folder;
  write_atomically(folder / "f", "old");
  {
    const StagedFile staged(folder / "f", "new");
    EXPECT_EQ(contents_of(folder / "f"), "old");
  }
  EXPECT_EQ(contents_of(folder / "f"), "old");
  EXPECT_THAT(folder.names(), ElementsAre("f"));
}

TEST(WriteAtomically, steps_over_temporaries_that_a_killed_process_left_behind) {
  const TemporaryFolder folder;
  // The counter of this process is somewhere below: every name that may come next is taken.
  std::string next;
  write_atomically(folder / "f", [&](const WriteSink&) {
    for (const std::string& name : folder.names()) {
      if (name != "f") next = name;
    }
  });
  const std::string stem = next.substr(0, next.find_last_of('.', next.size() - 5) + 1);
  const int counter = std::stoi(next.substr(stem.size()));
  for (int i = 1; i <= 3; ++i) folder.file(stem + std::to_string(counter + i) + ".tmp", "stale");
  write_atomically(folder / "f", "new");
  EXPECT_EQ(contents_of(folder / "f"), "new");
  EXPECT_EQ(contents_of(folder / (stem + std::to_string(counter + 1) + ".tmp")), "stale");
  EXPECT_EQ(folder.names().size(), 4U);
}

TEST(WriteAtomically, takes_the_longest_name_that_the_file_system_has) {
  const TemporaryFolder folder;
  const std::string name(255, 'n');
  write_atomically(folder / name, "x");
  EXPECT_EQ(contents_of(folder / name), "x");
}

TEST(MappedFile, shows_the_bytes_and_outlives_the_name) {
  const TemporaryFolder folder;
  const auto path = folder.file("f", "abc");
  const auto mapped = MappedFile::open(path);
  std::filesystem::remove(path);
  ASSERT_EQ(mapped->bytes().size(), 3U);
  EXPECT_EQ(mapped->bytes()[1], std::byte{'b'});
}

TEST(MappedFile, opens_an_empty_file) {
  const TemporaryFolder folder;
  EXPECT_TRUE(MappedFile::open(folder.file("f", ""))->bytes().empty());
}

TEST(MappedFile, names_a_missing_file) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal<IoError>([&] { (void)MappedFile::open(folder / "f"); }),
              HasSubstr((folder / "f").string() + ": cannot open for reading: No such file or directory"));
}

TEST(MappedFile, refuses_a_directory) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal<IoError>([&] { (void)MappedFile::open(folder.path()); }),
              HasSubstr("found a directory, wanted a regular file"));
}

TEST(MappedFile, refuses_a_pipe_without_waiting_for_a_writer) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal<IoError>([&] { (void)MappedFile::open(folder / "pipe"); }),
              HasSubstr("found a pipe, wanted a regular file"));
}

TEST(ReadText, reads_a_whole_file) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_text(folder.file("f", "two\nlines")), "two\nlines");
}

TEST(ReadText, refuses_a_file_over_the_limit) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal<FormatError>([&] { (void)read_text(folder.file("f", "12345"), 4); }),
              HasSubstr("file size: found 5 bytes, wanted at most 4"));
}

}  // namespace
}  // namespace routepack
